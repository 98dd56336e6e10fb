#!/usr/bin/env bash
# Run the GPU tests and benchmarks one after the other, each with a time limit and a log of its own:
#
#     tools/gpu_session.sh OUT [STEP…]      steps: tests norm stem casts augment search training decode filters
#                                           packing cold million fast fig7 plan, or a recipe;
#                                           default: all up to fig7 but decode, in this order
#
# CIFAR-10 must be in the cache (`thresher data get cifar10`). AIRBENCH names the file of airbench94
# that `fast` runs beside ours, WORKERS the trials of `fig7` at a time (8). What is finished stays
# in OUT if the session is cut off; another call of the same steps repeats them, but `fig7`, `plan`
# and recipes resume.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { echo "usage: tools/gpu_session.sh OUT [STEP…]"; exit 2; }
out=$(realpath -m "$1")
shift
mkdir -p "$out"
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
unset PYTHONDONTWRITEBYTECODE # commands are timed from their start
python -m compileall -q src benchmarks

# step NAME SECONDS COMMAND…
step() {
  local name=$1 limit=$2 begun=$SECONDS code=0
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
  echo "$name: code $code after $((SECONDS - begun)) s" | tee -a "$out/session.log"
}

tests() {
  step tests 200 python -m pytest -q -m gpu -n 8 -p no:cacheprovider --timeout 150 tests/training \
    tests/select tests/data tests/models tests/scaling tests/test_startup.py
}
norm() {
  step norm 120 python -m benchmarks.batch_norm --out "$out"
  for rows in 0 4096; do
    step "norm$rows" 120 python -m benchmarks.batch_norm --whole-rows "$rows"
  done
}
stem() { step stem 60 python -m benchmarks.stem_convolution --out "$out"; }
search() { step search 200 python -m benchmarks.convolution_search --out "$out"; }
augment() { step augment 60 python -m benchmarks.augmentation --out "$out"; }
casts() { step casts 90 python -m benchmarks.half_weights --out "$out"; }
training() {
  step training 300 python -m benchmarks.imagenet_training --quality 68 --epochs 3 \
    --out "$out/imagenet_training.json"
}
decode() {
  step decode 120 python -m benchmarks.imagenet_training --quality 68 --epochs 3 --cpu \
    --out "$out/imagenet_training_cpu.json"
}
filters() { step filters 420 python -m benchmarks.imagenet_filters --out "$out/imagenet_filters.json"; }
packing() { step packing 150 python -m benchmarks.packing --images 4000 --copies 15 --rounds 3 --out "$out/packing.json"; }
cold() {
  step cold 150 python -m benchmarks.cold_start --data cifar10 --profile --out "$out/cold_start"
}
million() {
  step million 120 python -m benchmarks.selection_speed --device cuda --n 50000 --million \
    --out "$out/selection.json"
}
fast() {
  step fast 300 python -m benchmarks.fast_cifar --seeds 20 --share-steps --out "$out/fast_cifar.json" \
    ${AIRBENCH:+--beside "$AIRBENCH" --beside-runs 20}
}
fig7() {
  sed "s/^workers = .*/workers = ${WORKERS:-8}/" examples/ornl-fig7.toml >"$out/fig7.toml"
  step fig7 420 python -m thresher study run "$out/fig7.toml" --out "$out/fig7"
}
plan() {
  # Its trainings share the GPU through NVIDIA's multi-process service.
  export CUDA_MPS_PIPE_DIRECTORY="$out/mps" CUDA_MPS_LOG_DIRECTORY="$out/mps"
  mkdir -p "$out/mps"
  nvidia-cuda-mps-control -d
  step plan 1000 python -m benchmarks.plan_check --data cifar10 --factors 0.5,1,2 --seeds 6 --jobs 14 \
    --out "$out/plan"
  echo quit | nvidia-cuda-mps-control
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

is_step() { [ "$(type -t "$1")" = function ] && [[ ! "$1" =~ ^(step|is_step|is_recipe)$ ]]; }
is_recipe() { [ -f "src/thresher/recipes/${1//-/_}.py" ]; }

[ $# -gt 0 ] || set -- tests norm stem casts augment search training filters packing cold million fast fig7
for name in "$@"; do
  is_step "$name" || is_recipe "$name" || { echo "there is no step $name"; exit 2; }
done
for name in "$@"; do
  if is_step "$name"; then
    "$name"
  else
    step "$name" 1700 python -m thresher reproduce "$name" --preset gpu --out "$out/$name"
  fi
done

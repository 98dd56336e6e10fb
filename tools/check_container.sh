#!/usr/bin/env bash
# Build the container and try what people do with it.
# ENGINE=docker takes Docker; BUILD and RUN are further options of its commands build and run.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${ENGINE:-podman}
read -ra build <<<"${BUILD:-}"
read -ra run <<<"run --rm ${RUN:-}"
name=thresher-check-$$
work=$(mktemp -d)
trap '"$engine" rm -f "$name" &>/dev/null || true; rm -rf "$work"' EXIT
train=(train --data digits --model tiny --out run)

"$engine" build "${build[@]}" -t thresher .
"$engine" "${run[@]}" thresher --version
echo "the demo:"
"$engine" "${run[@]}" thresher demo --out /tmp/demo 2>"$work/log" | grep "network is better than random"
echo "two workers of a user without a name, and of torchrun:"
"$engine" "${run[@]}" --user 1234 thresher "${train[@]}" --epochs 2 --workers 2 2>&1 | grep "test accuracy"
torchrun=(--standalone --nproc-per-node 2 -m thresher)
"$engine" "${run[@]}" --entrypoint torchrun thresher "${torchrun[@]}" "${train[@]}" --epochs 2 2>&1 | grep "test accuracy"
echo "a run that is stopped keeps its checkpoint:"
mkdir -m 777 "$work/data"
"$engine" "${run[@]}" --name "$name" -v "$work/data:/data" thresher "${train[@]}" --epochs 30000 --checkpoint-every 20 \
  &>"$work/log" &
until ls "$work"/data/run/checkpoints/* &>/dev/null; do sleep 0.5; done
"$engine" stop -t 30 "$name" >/dev/null
code=0
wait $! || code=$?
tail -n 1 "$work/log"
[ "$code" = 143 ] || { echo "it ended with code $code instead of 143"; exit 1; }
echo "the container builds and works"

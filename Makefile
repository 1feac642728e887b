# Each target does its own set-up: on a fresh machine `make demo` and `make test` are enough.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TORCH  ?= 2.13.0

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types imports docs clean

help:
	@echo "make demo    a 4-rank CPU job with an injected fault, wrapped, diagnosed and explained"
	@echo "make test    every test that CI runs, the fast ones first"
	@echo "make check   lint, types, import contract, generated docs"
	@echo "make docs    write the generated docs again"
	@echo "make setup   only the set-up: $(VENV), CPU torch $(TORCH), packages"

# The stamp's recipe is tools/setup.sh; it runs again when what it installs changes.
$(VENV)/.ready: pyproject.toml tools/setup.sh tools/importroot.py
	@PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH="$(TORCH)" bash tools/setup.sh

setup: $(VENV)/.ready

demo: setup
	@$(BIN)/fabwatch demo

test: setup
	@$(BIN)/python -m pytest -m "not matrix"

check: lint types imports docs-check

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

# Lays the links again first: a file that was added since the install has none yet.
imports: setup
	@$(BIN)/python tools/importroot.py
	@$(BIN)/lint-imports

.PHONY: docs-check
docs-check: setup
	@$(BIN)/python tools/docs.py --check

docs: setup
	@$(BIN)/python tools/docs.py

clean:
	rm -rf $(VENV) .importroot dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

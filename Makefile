# Two commands matter: `make audit` and `make test`. Both set everything up first and can be run again.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export OMP_WAIT_POLICY ?= passive

.PHONY: audit test lint types layers setup clean

audit: $(STAMP)
	@echo "==> Auditing the built-in demonstration (no download)"
	$(BIN)/seepage audit

test: $(STAMP)
	@echo "==> Running all tests"
	$(BIN)/python -m pytest -n 2 tests src/seepage

lint: $(STAMP)
	@echo "==> Ruff"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	@echo "==> Types"
	$(BIN)/mypy

layers: $(STAMP)
	@echo "==> Import layers"
	$(BIN)/lint-imports

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "==> Setting up $(VENV) (needs Python 3.11 or newer)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "seepage needs Python 3.11 or newer, this is %d.%d: run make PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache seepage-runs

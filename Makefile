# Two commands matter: `make audit` and `make test`. Both set everything up first and can be run again.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What an audit needs, and what the tests need besides: extras, linters, second implementations to compare with.
STAMP  := $(VENV)/.installed
TESTED := $(VENV)/.installed-for-tests
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export OMP_WAIT_POLICY ?= passive

.PHONY: audit example-flower example-nvflare test docs lint types layers setup clean

audit: $(STAMP)
	@echo "==> Auditing the built-in demonstration (no download)"
	$(BIN)/seepage audit

test: $(TESTED)
	@echo "==> Running all tests"
	$(BIN)/python -m pytest -n 2 tests src/seepage

example-flower: $(STAMP)
	@echo "==> Auditing a Flower app (examples/flower)"
	$(PIP) -e '.[flower]'
	rm -rf recorded-flower
	$(BIN)/seepage audit recorded-flower --flower examples/flower --rounds 1 --clients 0,1,2 --model digits_app.task:Net --truth digits_app.task:load_data --known lr=0.1,epochs=1,batch_size=8

example-nvflare: $(TESTED)
	@echo "==> Two sites in FLARE's simulator, recorded behind its PercentilePrivacy, then attacked"
	rm -rf examples/nvflare/recorded
	cd examples/nvflare && ../../$(BIN)/python job.py recorded && ../../$(BIN)/python attack.py recorded

docs: $(TESTED)
	@echo "==> The documentation, strictly: build/site/index.html"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(TESTED)
	@echo "==> Ruff"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TESTED)
	@echo "==> Types"
	$(BIN)/mypy

layers: $(TESTED)
	@echo "==> Import layers"
	$(BIN)/lint-imports

setup: $(TESTED)

$(STAMP): pyproject.toml constraints.txt
	@echo "==> Setting up $(VENV) (needs Python 3.11 or newer)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "seepage needs Python 3.11 or newer, this is %d.%d: run make PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	@touch $(STAMP)

$(TESTED): $(STAMP)
	@echo "==> Adding what the tests need"
	$(PIP) -e '.[dev]'
	@touch $(TESTED)

clean:
	rm -rf $(VENV) recorded-flower .mypy_cache .ruff_cache .pytest_cache seepage-runs

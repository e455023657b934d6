# Every target makes its own environment in .venv, with nothing but Python >= 3.11 and make on the machine.
#
#   make demo     scan a real pretrained transformer and write its page
#   make test     the tests: the fast lane, under two minutes (LANE=all or LANE=slow for the others)
#   make check    lint, format, types, the arrows between rooms, the docs' own examples
#   make bench    measured speeds on this machine, beside transformer-lens and WeightWatcher (writes 3.3 GB for a while)
#
#   make PYTHON=/path/to/python3.12 ...    another Python
#   make TORCH=2.11.0 ...                  another torch than the pinned one; say it again at each call, or export it

PYTHON ?= python3
TORCH ?=
WORKERS ?= 2
LANE ?= $(if $(CI),all,fast)

VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := $(VENV)/constraints.txt
MARK_fast := -m "not slow"
MARK_slow := -m slow
MARK_all :=

# Also heard by the isolated environments that pip builds packages in. A relative path, because pip splits it at spaces.
export PIP_CONSTRAINT := $(CONSTRAINTS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help demo test check bench format real clean FORCE
.DEFAULT_GOAL := help

help:
	@sed -n '3,9s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.demo
	$(BIN)/rankwise demo

test: $(VENV)/.dev real
	$(if $(filter fast slow all,$(LANE)),,$(error LANE is "$(LANE)": give fast, slow or all))
	$(BIN)/python -m pytest $(MARK_$(LANE)) -n $(WORKERS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest src tests/test_docs.py

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/products.py
	$(BIN)/python benchmarks/scans.py small
	$(BIN)/python benchmarks/scans.py large
	$(BIN)/python benchmarks/decay.py
	$(BIN)/python benchmarks/theory.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The real weights that tests read, fetched into the user's cache; a test whose weights are missing says so itself.
real: $(VENV)/.dev
	-@$(BIN)/python -m tests.real

clean:
	rm -rf $(VENV)

# One stamp for each set of packages: it is there when pip finished, and stale when what it installed from changed.
$(VENV)/.demo: pyproject.toml examples/demo-requirements.txt $(CONSTRAINTS)
	$(BIN)/python -m pip install --editable ".[report]"
	$(BIN)/python -m pip install --no-deps --requirement examples/demo-requirements.txt
	@touch $@

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -m pip install --editable ".[dev]"
	@touch $@

$(VENV)/.bench: pyproject.toml benchmarks/requirements.txt $(CONSTRAINTS)
	$(BIN)/python -m pip install --editable ".[theory]"
	$(BIN)/python -m pip install --no-deps --requirement benchmarks/requirements.txt
	@touch $@

# The pinned versions, with torch replaced where TORCH says so; rewritten only when that changes what they say.
$(CONSTRAINTS): FORCE $(BIN)/python
	@sed $(if $(TORCH),'s/^torch==.*/torch==$(TORCH)/',-n p) constraints.txt > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1): Rankwise needs Python 3.11 or newer," \
	       "give it with make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "make: $(PYTHON) cannot make an environment: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }

FORCE:

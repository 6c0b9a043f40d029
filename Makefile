# Everything here works in a fresh clone: the first target that needs the environment makes it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SIZES := 512,1024,2048,4096,8192
CHIPS := v5e,v5p,v6e,v7x

.PHONY: setup demo test test-slow test-device lint types check docs lesson-numbers clean help

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## make .venv and install systolic with the versions that were tested

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[tpu,dev]'
	touch $@

demo: $(STAMP) ## the ladder on a v5e in float32 and bfloat16, beside XLA, with plots
	$(BIN)/systolic ladder all --chip v5e --dtype float32 --sizes $(SIZES) --sweep --plot build/demo
	$(BIN)/systolic ladder all --chip v5e --dtype bfloat16 --sizes $(SIZES) --sweep --plot build/demo

test: $(STAMP) ## all tests that need neither a device nor patience
	$(BIN)/python -m pytest

test-slow: $(STAMP) ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-device: $(STAMP) ## the tests that need a TPU or a GPU; skipped, and said so, where there is none
	$(BIN)/python -m pytest -m device tests/device

lint: $(STAMP) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## pyright
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint types test ## what .ci/run does

docs: $(STAMP) ## the pages, in build/docs; a warning is an error
	$(BIN)/sphinx-build -E -a -W --keep-going -q docs build/docs

lesson-numbers: $(STAMP) ## simulate the lessons and the ladder anew, for their pages
	$(BIN)/systolic lessons all --chip $(CHIPS) --json docs/numbers/lessons.json
	$(BIN)/systolic ladder all --chip $(CHIPS) --sizes $(SIZES) --json docs/numbers/ladder.json
	$(BIN)/systolic ladder all --chip v5e,v6e --sizes $(SIZES) --no-check --plot docs/numbers

clean: ## remove the environment and everything that was made
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache

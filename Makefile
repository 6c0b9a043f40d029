# Everything here works in a fresh clone: the first target that needs the environment makes it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONSTRAINTS ?= constraints.txt
TESTS ?=
# Two at a time, each its half of the files; who ends first takes the last tests of the other.
PYTEST := -m pytest --numprocesses 2 --dist worksteal
SIZES := 512,1024,2048,4096,8192
CHIPS := v5e,v5p,v6e,v7x
# Of those that compile, some of each kind: another version of the compiler or of a library shows in these.
COMPILED := $(addprefix tests/compiled/test_,bugs_in_workers.py check_command.py compiler_compile.py doctor_command.py \
	rewriting.py simulate_command.py tune_command.py)
# Property tests take many examples; those of the oldest stack are enough.
NO_PROPERTIES := -m 'not hypothesis and not exhaustive and not slow and not device'
EXHAUSTIVE := (exhaustive or hypothesis) and not slow and not device
# Their unit tests trace with JAX, which is the same in the lowest versions and on the oldest stack.
TRACED_OPS := collective cross_entropy exchange functions gated grouped matmul moe sparse

define with_newest
	@if python=$$(.ci/newest-python); then \
	  $(MAKE) $(1) VENV=$(VENV)-newest PYTHON="$$python" CONSTRAINTS=constraints-newest.txt; \
	else echo "the newest stack is not tested: there is no Python 3.13 or later here"; fi
endef

.PHONY: setup demo bytecode test test-exhaustive test-half test-all test-newest setup-newest test-lowest packages test-slow test-device lint types check docs gallery lesson-numbers quotes clean help

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## make .venv and install systolic with the versions that were tested

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[tpu,dev]'
	touch $@

demo: $(STAMP) ## the ladder on a v5e in float32 and bfloat16, beside XLA, with plots
	$(BIN)/systolic ladder all --chip v5e --dtype float32 --sizes $(SIZES) --sweep --plot build/demo
	$(BIN)/systolic ladder all --chip v5e --dtype bfloat16 --sizes $(SIZES) --sweep --plot build/demo

# Where PYTHONDONTWRITEBYTECODE is set, each of the hundreds of processes that tests start would compile the package.
bytecode: $(STAMP)
	@$(BIN)/python -m compileall -q src

test: bytecode ## the quick selection of tests, in minutes; screenshots of pages in build/screenshots
	SYSTOLIC_SCREENSHOTS="$(CURDIR)/build/screenshots" $(BIN)/python $(PYTEST) $(TESTS)

test-exhaustive: bytecode ## the cases that `make test` leaves out, and property tests with more examples
	$(BIN)/python $(PYTEST) -m '$(EXHAUSTIVE)' --hypothesis-profile exhaustive $(TESTS)

test-half: bytecode ## of these every second case of a test: those that .ci/run has the time for
	$(BIN)/python $(PYTEST) -m '$(EXHAUSTIVE) and not alternate' --hypothesis-profile exhaustive $(TESTS)

test-all: test test-exhaustive ## all tests that need neither a device nor patience

test-newest: ## unit, interpret and some compiled tests with the newest Python and JAX, in an environment of its own
	$(call with_newest,test TESTS="$(NO_PROPERTIES) tests/unit tests/interpret $(COMPILED)")

setup-newest:
	$(call with_newest,setup)

test-lowest: ## unit and some compiled tests with the lowest versions that pyproject.toml allows
	$(PYTHON) -m venv --clear $(VENV)-uv
	$(VENV)-uv/bin/python -m pip install --quiet uv
	$(PYTHON) -m venv --clear $(VENV)-lowest
	$(VENV)-uv/bin/uv pip install --quiet --resolution lowest-direct --compile-bytecode \
	  --python $(VENV)-lowest/bin/python --editable '.[tpu,dev]'
	$(VENV)-lowest/bin/python -m compileall -q src
	# Warnings are no errors here: old versions give some of their own.
	$(VENV)-lowest/bin/python $(PYTEST) -W default $(NO_PROPERTIES) tests/unit $(COMPILED) \
	  $(addprefix --ignore=tests/unit/,examples $(addprefix ops/,$(TRACED_OPS)))

packages: ## sdist and wheel, in dist; each is installed with the oldest and the newest stack, and compiles a product
	PYTHON="$(PYTHON)" .ci/packages

test-slow: $(STAMP) ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-device: $(STAMP) ## the tests that need a TPU or a GPU; skipped, and said so, where there is none
	$(BIN)/python -m pytest -m device tests/device

lint: $(STAMP) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## pyright
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint types test test-half ## what .ci/run does on the oldest stack

docs: $(STAMP) ## the pages, in build/docs; a warning is an error
	$(BIN)/sphinx-build -E -a -W --keep-going -q docs build/docs

gallery: $(STAMP) ## make the results anew that the gallery's reports are drawn from
	$(BIN)/python docs/_ext/renew_gallery.py

lesson-numbers: $(STAMP) ## simulate the lessons and the ladder anew, for their pages
	$(BIN)/systolic lessons all --chip $(CHIPS) --json docs/numbers/lessons.json
	$(BIN)/systolic ladder all --chip $(CHIPS) --sizes $(SIZES) --json docs/numbers/ladder.json
	$(BIN)/systolic ladder all --chip v5e,v6e --sizes $(SIZES) --no-check --plot docs/numbers

quotes: $(STAMP) ## write the numbers that pages quote anew, from their data
	$(BIN)/python docs/_ext/quoted_numbers.py

clean: ## remove the environment and everything that was made
	rm -rf $(VENV) $(VENV)-newest $(VENV)-lowest $(VENV)-uv build dist .pytest_cache .ruff_cache

# `make` lists the verbs. Each sets up what it needs; a second run does nothing twice.
#
#   VENV=.venv                  where the virtual environment lies
#   PYTHON=python3.11           the interpreter it is made from (3.10 or later; the first that is found)
#   CONSTRAINTS=FILE            which releases are installed (constraints-oldest.txt: the oldest that are supported)
#   TORCH_FLAGS="--index-url …" where pip takes torch from; on Linux without a GPU, PyTorch's CPU index saves gigabytes
#   DATA=../shared/data         evaluation data (see docs); tests and scripts that need it say so where it is absent

SHELL := /bin/bash
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
EXTRAS ?= dev
TORCH_FLAGS ?=
DATA ?= ../shared/data
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1 && echo $$p && break; done)
TESTS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(EXTRAS)-$(notdir $(CONSTRAINTS))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help install assets demo test lint types readme check format bench clean

help:  ## list the verbs
	@echo "usage: make VERB   (settings: see the top of the Makefile)"
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

install: $(STAMP)  ## make the virtual environment and install the package with its tools
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "expected Python 3.10 to 3.13 on PATH, found none; give PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@# torch on its own, so that its build (CPU or GPU) is chosen once and nothing later exchanges it
	@$(BIN)/python -m pip install --quiet $(TORCH_FLAGS) "$$(grep '^torch==' $(CONSTRAINTS))"
	@$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[$(EXTRAS)]"
	@touch $@

assets: $(STAMP)  ## fetch the real model and tokenizers (once, into ~/.cache/lettuceprevent)
	@$(BIN)/python scripts/get_assets.py

demo: $(STAMP)  ## a real model answers with and without prevention
	@$(BIN)/python scripts/get_assets.py smollm2-135m-instruct
	@$(BIN)/lettuceprevent demo

test: $(STAMP)  ## run the tests (TESTS="tests/test_x.py -k name" for some, --slow for more)
	@$(BIN)/python scripts/get_assets.py || echo "going on without; tests that need what is missing say so and are skipped"
	@$(BIN)/python -m pytest $(TESTS)

lint: $(STAMP)  ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy, strict
	@$(BIN)/mypy

readme: $(STAMP)  ## run the README's Python snippets as they are written
	@$(BIN)/python scripts/get_assets.py smollm2-135m-instruct
	@$(BIN)/python scripts/run_readme.py

check: lint types readme test  ## all of lint, types, readme and test

format: $(STAMP)  ## let ruff format and mend what it can
	@$(BIN)/ruff check --fix --exit-zero .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## what the number detector costs a step (DATA=...)
	@$(BIN)/python scripts/get_assets.py
	@$(BIN)/python scripts/bench_numbers.py --data $(DATA)

clean:  ## remove the virtual environment and caches in this folder (fetched assets stay)
	rm -rf $(VENV) .ci/build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

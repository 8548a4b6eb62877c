# alidpfl: `make run` and `make test` do all the set-up they need. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SET_UP_RUN := $(VENV)/.set-up-run
SET_UP := $(VENV)/.set-up
SET_UP_BENCH := $(VENV)/.set-up-bench
SET_UP_FLOWER := $(VENV)/.set-up-flower

.NOTPARALLEL:  # two set-ups at once would install into one environment

.PHONY: help run demo-flower test lint types contracts unit test-slow nightly fuzz soak audit-dependencies mutants bench \
	bench-round bench-accounting bench-grid bench-features bench-tables bench-softmax bench-flower bench-timing \
	bench-clinical bench-persons docs site format clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

run: $(SET_UP_RUN) ## Train on the embedded default: ten clients, epsilon = 2, half a minute on two idle cores
	@$(BIN)/alidpfl run $(ARGS)

demo-flower: $(SET_UP_FLOWER) ## Watch a deployment on this machine: SuperLink, three nodes, three vaults, TLS; a few minutes
	@$(BIN)/alidpfl flower demo $(ARGS)

test: lint types contracts unit ## Lint, check types and import contracts, run the tests

lint: $(SET_UP) ## ruff: lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SET_UP) ## mypy --strict on src
	$(BIN)/mypy

contracts: $(SET_UP) ## import-linter: imports point down only
	$(BIN)/lint-imports

# Module by module, as tests/conftest.py orders them: the longest first, so that no process is left alone at the end.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder

unit: $(SET_UP) ## pytest without the slow tests, in three processes: some tests only wait
	$(PYTEST) -m 'not slow' $(PYTEST_ARGS)

test-slow: $(SET_UP) ## The tests that take minutes
	$(PYTEST) -m slow

nightly: $(SET_UP) ## 200 kills of vaults, SuperNodes and the ServerApp, and 200 of a vault alone; hours
	ALIDPFL_KILLS=200 $(BIN)/python -m pytest -m slow tests/flower/test_kills.py tests/vault/test_kills.py

FUZZ ?= 50
fuzz: $(SET_UP) ## Damaged files, updates and requests, drawn anew: FUZZ=50 times as many as in CI; half an hour
	ALIDPFL_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/fuzz

soak: $(SET_UP) ## 2,000 rounds with 100 clients, then through a vault: memory and open files must stay flat; minutes
	$(BIN)/python -m tests.faults.soak

# A report, never a failure: it needs a vulnerability service, which may be out of reach, and is not waited for long.
# --strict: what could not be looked up must not pass for safe.
AUDIT := $(VENV)/audit
audit-dependencies: ## pip-audit on constraints.txt, for at most a minute; a report only
	@timeout 60 bash -c '{ test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && \
		$(AUDIT)/bin/pip install --quiet --disable-pip-version-check pip-audit; }; } && $(AUDIT)/bin/pip-audit --strict \
		--requirement constraints.txt --no-deps --disable-pip --progress-spinner off --timeout 10' \
		2>&1 | grep -v ^WARNING | cut -c 1-200 | tail -n 8; \
	if [ "$${PIPESTATUS[0]}" = 0 ]; then echo "audit: no known vulnerability in constraints.txt"; \
	else echo "audit: not clean, or no vulnerability service in reach within a minute; a report only"; fi

mutants: $(SET_UP) ## Break the code on purpose, one bug at a time; each must turn a test red. ONLY=ledger, ARGS="--jobs 2"
	$(BIN)/python -m tests.mutation --only "$(ONLY)" $(ARGS)

bench: $(SET_UP_BENCH) ## Measure step and round against plain SGD and the peers, and the accountants
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.round
	$(BIN)/python -m benchmarks.accounting
	$(BIN)/python -m benchmarks.grid
	$(BIN)/python -m benchmarks.persons

bench-grid: $(SET_UP_BENCH) ## Measure only a step with noise on a grid
	$(BIN)/python -m benchmarks.grid

bench-round: $(SET_UP_BENCH) ## Measure only the federated round
	$(BIN)/python -m benchmarks.round

bench-accounting: $(SET_UP) ## Measure only the accountants
	$(BIN)/python -m benchmarks.accounting

bench-features: $(SET_UP) ## Measure only the fixed image features
	$(BIN)/python -m benchmarks.features

bench-tables: $(SET_UP) ## Measure how fast tables are read, and in how much memory
	$(BIN)/python -m benchmarks.tables --only speed

bench-persons: $(SET_UP) ## Measure only a step by person against a step by record
	$(BIN)/python -m benchmarks.persons

bench-softmax: $(SET_UP) ## Measure only a DP step of softmax regression
	$(BIN)/python -m benchmarks.softmax

bench-flower: $(SET_UP) ## Measure what a round of a deployment costs beside the training
	$(BIN)/python -m benchmarks.flower

bench-clinical: $(SET_UP) ## Compare private training on two real tables with pooled training without noise
	$(BIN)/python -m benchmarks.clinical

bench-timing: $(SET_UP) ## Attack vaults by their answering times
	$(BIN)/python -m benchmarks.timing

docs: $(SET_UP) ## Fill the generated parts of the pages, and write the page of settings
	$(BIN)/python -m docs.generate

site: $(SET_UP) ## Build the documents as a site, strictly: build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "read it: $(BIN)/python -m http.server -d build/site (or open build/site/index.html)"

format: $(SET_UP) ## Format and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove the environment and everything built
	rm -rf $(VENV) build dist src/*.egg-info src/alidpfl/dpsgd/_native*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		.import_linter_cache .mutants.jsonl

# Whoever only runs it waits half as long: the tools of `make test` are a set-up of their own.
$(SET_UP_RUN): pyproject.toml setup.py constraints.txt src/alidpfl/dpsgd/_native.c src/alidpfl/dpsgd/_native_kernels.h
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "alidpfl needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; set PYTHON=/path/to/python3.11")'
	@echo "Setting up $(VENV) (once; a few minutes on a slow connection) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[examples,report,vault]'
	@touch $@

$(SET_UP): $(SET_UP_RUN)
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@

$(SET_UP_BENCH): $(SET_UP)
	$(PIP_INSTALL) -e '.[dev,bench]'
	@touch $@

$(SET_UP_FLOWER): $(SET_UP_RUN)
	$(PIP_INSTALL) -e '.[flower]'
	@touch $@

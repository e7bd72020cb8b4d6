# Everything a person or a CI runs. `make help` lists it; nothing here names a package index, so pip's own settings hold.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# As tests/conftest.py counts cores. More than 10 would only make tests that start whole programs fight for them.
WORKERS_MAX ?= 10
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses=$(WORKERS_MAX) --dist loadgroup

# Where this is set, every start of Python would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

INSTALLED := $(VENV)/.installed
TEST_INSTALLED := $(VENV)/.test-installed

# A venv whose Python has gone (the system's was upgraded) is made anew.
ifneq ($(shell test -x $(BIN)/python && echo yes),yes)
$(INSTALLED): .FORCE
endif

.PHONY: .FORCE help install test-install demo lint check fast test test-kubernetes test-flux test-flytectl test-slurm-versions bench
.PHONY: soak reference proto pins clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F '|' '{ printf "%-21s %s\n", $$1, $$2 }'

install: $(INSTALLED) ## Make .venv with the `yard` command: server, agent, CLI and SDK

test-install: $(TEST_INSTALLED) ## Add what the tests need: Python packages, PostgreSQL, Redis, Slurm, faketime, Chromium, an S3 server
	@scripts/install-services $(BIN)/python
	@scripts/install-s3-server $(BIN)/python

demo: install ## Start a server and clusters on this machine and run jobs on them
	@$(BIN)/yard demo

lint: $(TEST_INSTALLED)
	@$(BIN)/ruff format --check --quiet . || { echo "The files above are not formatted: run $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

check: lint ## Format, lint, types, imports, tidiness, documents: under a minute, before each push
	@$(BIN)/python -m pytest tests/test_tidy.py tests/test_docs.py

# What `make check` runs is left out, and what has no fast test is not even read.
NOT_FAST := tests/acceptance tests/simulation tests/test_tidy.py tests/test_docs.py

# These tests compute, so a worker per core is enough: each of them reads all test files first.
FAST := $(BIN)/python -m pytest -n $(shell nproc) --maxprocesses=$(WORKERS_MAX) --dist loadgroup

fast: test-install ## Run the tests that start no whole program and take no time, on SQLite
	@$(FAST) -m "not acceptance and not slow and not long and not kubernetes and not flux and not flytectl" $(addprefix --ignore=,$(NOT_FAST))

# Of a fresh clone each worker would compile the same 1,700 files: 22 seconds of a core instead of 7. mypy leaves a core
# free; what is compiled beside it is compiled once.
test: test-install ## Install what is needed, check, and run every test but the slow ones and those that need Kubernetes, Flux or flytectl
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & $(MAKE) lint && wait
	@$(PYTEST)

# Each worker has a cluster of its own: 1.2 GB of memory, and 15 s of two cores to start.
KUBERNETES_WORKERS ?= 4
KUBERNETES_TESTS ?= tests

test-kubernetes: test-install ## Build Kubernetes once, and run the tests that need a real cluster of it (as root)
	@scripts/install-kubernetes $(BIN)/python
	@$(BIN)/python -m pytest -n $(KUBERNETES_WORKERS) --dist loadgroup -m "kubernetes and not slow" --timeout=600 \
		-o faulthandler_timeout=3000 $(KUBERNETES_TESTS)

# Each worker has an instance of its own, of three brokers: 3 s of a core to start.
FLUX_TESTS ?= tests/agent/flux tests/match/test_fluxion.py tests/contracts/test_backends.py tests/acceptance

test-flux: test-install ## Run the tests that need real Flux instances, where the command flux is in the PATH
	@command -v flux >/dev/null || { echo "There is no command flux in the PATH: install flux-core first."; exit 1; }
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m "flux and not slow" $(FLUX_TESTS)

# The documents, too: without flytectl their commands of it are left out.
FLYTECTL_TESTS := tests/acceptance/flyte/test_flytectl.py tests/acceptance/clients/test_docs_run.py

test-flytectl: test-install ## Run the tests and documents that use flytectl, where it is in the PATH
	@command -v flytectl >/dev/null || { echo "There is no command flytectl in the PATH: install it first."; exit 1; }
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not kubernetes and not flux" -k flyte $(FLYTECTL_TESTS)

bench: test-install ## Measure, and write the figures into bench/RESULTS.md
	@command -v wrk >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -q install -y wrk >/dev/null; } || \
		{ echo "The load generator is missing: install the Debian package wrk."; exit 1; }
	@$(BIN)/python -m bench

# Debian's suites with a Slurm of 24.11 and of 26.05; the machine's own (22.05 on Debian 12) is in `make test`.
SLURM_SUITES ?= trixie forky
SLURM_TREES ?= $(CURDIR)/.run/slurm
# Not the accounts: only root can enter a tree, and they are about an agent that is not. Nor the full spool: a file system
# that is mounted after a tree was made is not seen in it. Nor images: the trees have no podman.
SLURM_TESTS := tests/test_slurm_bed.py tests/agent/slurm tests/contracts/test_backends.py \
	$(filter-out %_accounts.py %_images.py,$(wildcard tests/acceptance/slurm/test_slurm_*.py))

test-slurm-versions: test-install ## Run the tests of Slurm on other versions of it, in Debian trees (as root)
	@for suite in $(SLURM_SUITES); do \
		scripts/make-slurm-root $$suite $(SLURM_TREES)/$$suite || exit 1; \
		SLURM_TREE=$(SLURM_TREES)/$$suite $(BIN)/python -m pytest -k "slurm and not full_spool" $(SLURM_TESTS) || exit 1; \
	done

soak: test-install ## Run the slow tests: minutes to hours of faults, also on real Kubernetes clusters (as root)
	@scripts/install-kubernetes $(BIN)/python
	@SOAK=1 $(BIN)/python -m pytest -m slow -o faulthandler_timeout=0

reference: install ## Write docs/reference anew, from the code
	@$(BIN)/python scripts/reference.py

proto: $(TEST_INSTALLED) ## Write the compiled form of Rainbow's messages anew
	@cd src/switchyard/features/rainbow/server/proto && $(CURDIR)/$(BIN)/python -m grpc_tools.protoc -I. --include_imports \
		--descriptor_set_out=rainbow.binpb rainbow.proto memory.proto handover.proto

pins: ## Renew constraints.txt with the newest versions, from a venv of its own
	@scripts/pin $(PYTHON)

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .run
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@scripts/make-venv $(PYTHON) $(VENV)
	@# hatchling first and no isolation: what builds us is then pinned like all the rest.
	@$(PIP) install -c constraints.txt hatchling editables
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[server,dashboard,flyte,storage]'
	@touch $@
	@echo "Installed: $(BIN)/yard"

# The dependency groups by our own reader: pip learned --group in 25.1, and Debian 12 has pip 23.
$(TEST_INSTALLED): $(INSTALLED) scripts/group.py
	@$(BIN)/python scripts/group.py test check >$(VENV)/test-requirements.txt
	@$(PIP) install -c constraints.txt -r $(VENV)/test-requirements.txt
	@touch $@

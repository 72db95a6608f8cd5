# The commands of the project; `make help` lists them. Set-up runs by itself where a target needs it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-python docs dist pictures console-assets setup-demo setup-tables check compiled-tests fix wire status test test-official test-python test-versions test-airflow demo demo-archive bench bench-spark soak soak-examples clean

PYTHON ?=
PYTHONS ?=
SPARKS ?=
GO ?=
CHROMIUM ?=
NAMESRV ?=
SPARK_MASTER ?=
CYCLES ?= 100
KILLS ?= 20
MUTANTS ?= 600
SEEDS ?= 100000
TESTS ?= tests
WORKERS ?=
PARTS ?=
OPTIONS ?=
TIMES ?= 100
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
ROWS ?=
FORMAT ?=

BIN := .venv/bin
# Spark and the Java tests find the Java that set-up chose; Spark's workers run our interpreter.
WITH_JAVA = env JAVA_HOME="$$(cat .setup/java_home)" \
            PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python" PYSPARK_DRIVER_PYTHON="$(CURDIR)/$(BIN)/python"

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

setup: ## .venv, Java, Maven, Go, PostgreSQL, Chromium, Spark 4.0 and the RocketMQ clients the tests need (installs what is missing; twice does nothing)
	@PYTHON="$(PYTHON)" GO="$(GO)" CHROMIUM="$(CHROMIUM)" scripts/setup.sh test

setup-python:
	@PYTHON="$(PYTHON)" scripts/setup.sh python

pictures: ## the pictures of the console in docs/images, taken anew by its tests
	PICTURES=yes $(BIN)/python -m pytest -q tests/console/test_pictures.py

console-assets: ## the console's files for browsers, which are fetched from npm and never committed
	@PYTHON="$(PYTHON)" scripts/setup.sh console

setup-demo: ## the part of set-up that `make demo` needs: .venv and Java
	@PYTHON="$(PYTHON)" scripts/setup.sh demo

check: setup-python ## ruff, mypy --strict and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup-python console-assets ## the site, in site/, to be read and searched from a disk or a server: links and anchors are checked
	$(BIN)/python src/rocketspark/console/assets.py site docs/vendor
	$(BIN)/zensical build --strict --clean

dist: setup-python console-assets ## the source archive and the wheel in dist/, checked, and tried on every Python found here (PYTHONS=...)
	@PYTHON="$(PYTHON)" PYTHONS="$(PYTHONS)" scripts/dist.sh

fix: setup-python ## mend what ruff can mend, format, and write the pages that are made from the source
	$(BIN)/python scripts/api_page.py
	$(BIN)/python scripts/command_page.py
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

WIRE = src/rocketspark/proxy/wire
wire: setup-python ## messaging.binpb, of RocketMQ 5's gRPC protocol, from messaging.proto
	$(BIN)/python -m grpc_tools.protoc -I $(WIRE) --include_imports --descriptor_set_out=$(WIRE)/messaging.binpb messaging.proto

status: setup-python ## what the tests show, as a table, from the marks at the tests
	@$(BIN)/python -m tests.support.shown_points

# Groups of tests that share servers or a session go to one worker: tests/conftest.py. Servers make each other wait for
# more than half of the time: four workers share two cores.
AT_ONCE = 4
# Sets are gone through in the same order everywhere.
HASH_SEED = 0
soak-examples: HASH_SEED = $(SEED)
# What pytest makes of the tests' code is kept: each worker needs 28 s of processor for it, and 10 s to read it.
PYTEST = $(WITH_JAVA) PYTHONDONTWRITEBYTECODE= PYTHONHASHSEED=$(HASH_SEED) $(BIN)/python -m pytest $(TESTS) -n $(or $(WORKERS),$(AT_ONCE)) --dist loadscope $(OPTIONS)

compiled-tests: setup-python
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest tests --collect-only -qq -p no:cacheprovider >/dev/null || true

# The tests' code is compiled beside the check, which keeps one core busy.
test: setup ## check, then the tests (TESTS=tests/unit for a part alone, WORKERS=1 for one at a time, OPTIONS=--durations=30)
	$(if $(filter tests,$(TESTS)),@$(MAKE) --no-print-directory -j2 check compiled-tests)
	$(PYTEST) -m "not official and not soak"

# All of the core on each version: make test-versions.
READS_AND_WRITES = tests/spark/test_batch_read.py tests/spark/test_write.py
test-official: setup ## what drives official clients and brokers beyond `make test`, and the connector's batch reads and writes on Spark 4.0 (TESTS, WORKERS, OPTIONS)
	@trap 'exit 130' INT; code=0; $(PYTEST) -m "official and not soak" || code=$$?; \
	$(if $(filter tests,$(TESTS)),SPARKS=4.0 CORE="$(READS_AND_WRITES)" WORKERS="$(WORKERS)" scripts/test_sparks.sh $(OPTIONS) || code=$$?;) exit $$code

test-python: setup-python ## base, clients and servers on every Python 3.11 or later found here (PYTHONS="/path/to/python3.14")
	@PYTHONS="$(PYTHONS)" scripts/test_pythons.sh $(OPTIONS)

test-versions: setup-demo ## the connector's core on the newest Spark 4.0, 4.1, 4.2 and 4.3 (SPARKS="4.0 4.1.0" for some)
	@PYTHON="$(PYTHON)" SPARKS="$(SPARKS)" WORKERS="$(WORKERS)" scripts/test_sparks.sh $(OPTIONS)

test-airflow: setup-python ## the Airflow provider in a DAG that Airflow runs, in an environment of its own (some 3 minutes at first)
	@scripts/test_airflow.sh $(OPTIONS)

demo: setup-demo ## real flights through the whole system (NAMESRV=host:port SPARK_MASTER=spark://... for an existing cluster)
	@exec $(WITH_JAVA) $(if $(NAMESRV),NAMESRV="$(NAMESRV)") $(if $(SPARK_MASTER),SPARK_MASTER="$(SPARK_MASTER)") \
	  $(BIN)/python -m examples.flights.demo

# The Spark of .venv is newer than the newest release of a table format.
TABLES = $(filter delta iceberg,$(FORMAT))
setup-tables:
	@PYTHON="$(PYTHON)" scripts/setup.sh tables

demo-archive: BIN := $(if $(TABLES),.setup/spark-4.0/bin,$(BIN))
demo-archive: $(if $(TABLES),setup-tables,setup-demo) ## two real data sets through archive, restore and audit (ROWS=5000 for a part, FORMAT=delta or iceberg)
	@exec $(WITH_JAVA) $(BIN)/python -m examples.archive.run $(if $(ROWS),--rows $(ROWS)) $(if $(NAMESRV),--namesrv $(NAMESRV)) \
	  $(if $(FORMAT),--format $(FORMAT)) $(OPTIONS)

bench: setup ## measured beside the Java broker and client, ratios printed (PARTS="raw pull" OPTIONS="--quick --json FILE")
	@exec $(WITH_JAVA) $(BIN)/python -m bench $(PARTS) $(OPTIONS)

bench-spark: setup ## Spark's reads and writes beside its Kafka connector (PARTS="read write" OPTIONS="--quick --long --json FILE")
	@exec $(WITH_JAVA) $(BIN)/python -m bench.spark_kafka $(PARTS) $(OPTIONS)

# PARTS names files of tests/soak; mutants and simulation (SEEDS=N of each scenario) take a night and more, and run when
# they are named.
LONGEST = mutants simulation
SOAKED = $(if $(PARTS),$(patsubst %,tests/soak/test_%.py,$(PARTS)),$(TESTS) $(patsubst %,--deselect tests/soak/test_%.py,$(LONGEST)))
soak: setup ## the long runs (PARTS="mutants nemesis" for some): kill cycles (CYCLES=N), kills under Spark (KILLS=N), then soak-examples
	@code=0; $(WITH_JAVA) SOAK_CYCLES=$(CYCLES) SOAK_KILLS=$(KILLS) SOAK_MUTANTS=$(MUTANTS) SOAK_SEEDS=$(SEEDS) \
	  $(BIN)/python -m pytest $(SOAKED) -m soak --timeout 0 -s || code=$$?; \
	$(if $(PARTS),,$(MAKE) soak-examples || code=$$?;) exit $$code

soak-examples: setup ## new examples of hypothesis, TIMES=100 as many as `make test` has (SEED=N draws those of that run again)
	EXAMPLES_TIMES=$(TIMES) $(PYTEST) -m "hypothesis and not soak" --hypothesis-seed=$(SEED) --timeout 0

clean: ## remove outputs and caches (ALL=1: the set-up too)
	rm -rf demo-out mutants-out store build dist target spark-warehouse metastore_db derby.log \
	  .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
	$(if $(ALL),rm -rf .venv .setup docs/vendor)

# Every target prepares what it needs: `make demo` works in a fresh clone.
PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
RELEASE := .venv-release
LOWEST := .venv-lowest
# What a release is tried on.
PYTHONS ?= python3.11 python3.12 python3.13
SPARK_OLDEST := pyspark==3.5.9
# The first one with data sources in Python; its planner knows no limits of a batch.
FIRST_4 := .venv-4.0
SPARK_4_0 := pyspark==4.0.5
BIN := $(VENV)/bin
FANOUT := .[kinesis,kafka,msk,spark,postgres,testing,object-storage,delta,iceberg,prometheus,protobuf,cli]
# A process of tests for each core; tests/conftest.py says which stay together.
PARALLEL := -n auto
# The quick tests try fewer examples of a property.
FEW_EXAMPLES := --hypothesis-profile=quick
SEEDS ?= 2000
FIRST ?= 0
ROUNDS ?= 30
# What the jobs of `make crash` write to, one after the other; Delta and Iceberg: `make crash-oldest`.
SINKS ?= kafka parquet postgres jdbc kinesis
# What `make prove` runs, by path; without it, everything.
PROVE ?=
# The tests start hundreds of processes; none compiles again what another one has compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all test-oldest test-all-oldest test-lowest prove clients prove-oldest prove-4.0 sim crash crash-oldest live check bench bench-check site docs release clean

help:
	@echo "make demo         run the main job on embedded Kinesis: faults, resharding, proof"
	@echo "make test         the quick tests of behaviour, in five minutes; Delta and Iceberg: make test-oldest"
	@echo "make test-all     these and what takes long: kills, clusters, examples, matrices of codecs and versions"
	@echo "make test-oldest  the quick Spark tests on $(SPARK_OLDEST), with Delta and Iceberg"
	@echo "make test-all-oldest  these and the long ones"
	@echo "make test-lowest  all tests on the lowest versions that pyproject.toml allows"
	@echo "make prove        the campaigns: simulated failures, planted bugs, kills at every step"
	@echo "make clients      other clients than ours on the embedded Kinesis: the AWS SDK for Java, KCL 3, Flink"
	@echo "make prove-oldest the campaign that needs $(SPARK_OLDEST): kills of jobs that write to Delta and Iceberg"
	@echo "make prove-4.0    the tests of streaming DataFrames on $(SPARK_4_0), and kills of one that writes to Delta"
	@echo "make sim          simulate failures, by seed: make sim SEEDS=20000 [FIRST=...] [ARGS=--json]"
	@echo "make crash        kill Spark jobs at every step, one for each sink: make crash ROUNDS=30 [SINKS=kafka] [ARGS=--json]"
	@echo "make crash-oldest the same for Delta and Iceberg, which need $(SPARK_OLDEST)"
	@echo "make live         the conformance tests against a stream of yours at AWS: make live STREAM=..."
	@echo "make check        ruff, formatting, mypy, spelling and style, import rules, public names"
	@echo "make bench        every benchmark on Kinesis and Kafka, each against its peer, in 20 minutes"
	@echo "make bench-check  the cost of pinned work against the stored one; more than 10 % fails it"
	@echo "make site         the documentation as a site, in site/, or one of its versions: [SITE_VERSION=0.2]"
	@echo "make docs         the same, and every example of its pages"
	@echo "make release      build wheel and sdist, and try them in empty environments: [PYTHONS='python3.11 ...']"
	@echo "make clean        remove environments and caches"

demo: $(VENV)/ready java
	$(BIN)/fanout demo

test: $(VENV)/ready java kafka s3a h2 spark-classes
	$(BIN)/python -m pytest $(PARALLEL) $(FEW_EXAMPLES) -m 'not prove and not long'

test-all: $(VENV)/ready java kafka s3a h2 spark-classes
	$(BIN)/python -m pytest $(PARALLEL) -m 'not prove'

test-oldest: $(OLDEST)/ready java kafka-oldest spark-classes-oldest lakehouse-oldest
	$(OLDEST)/bin/python -m pytest $(PARALLEL) $(FEW_EXAMPLES) -m 'spark and not prove and not long'

test-all-oldest: $(OLDEST)/ready java kafka-oldest spark-classes-oldest lakehouse-oldest
	$(OLDEST)/bin/python -m pytest $(PARALLEL) -m 'spark and not prove'

test-lowest: $(LOWEST)/ready java
	$(if $(FANOUT_REQUIRE_KAFKA),,-)$(LOWEST)/bin/python -m fanout.testing.kafka.jars
	$(LOWEST)/bin/python -m fanout.testing.spark.class_archive
	$(LOWEST)/bin/python -m pytest $(PARALLEL) -m 'not prove'

prove: $(VENV)/ready java kafka s3a s3mock iceberg-rest h2 kinesis-sdk-java kcl flink spark-classes
	$(BIN)/python -m pytest $(PARALLEL) -m prove $(PROVE)
	$(if $(PROVE),,$(MAKE) test-lowest)

clients: $(VENV)/ready java kinesis-sdk-java kcl flink
	$(BIN)/python -m pytest tests/clients

# Delta and Iceberg have no jars for the newest pyspark.
prove-oldest: $(OLDEST)/ready java spark-classes-oldest lakehouse-oldest
	$(OLDEST)/bin/python -m pytest -m prove tests/examples/test_kinesis_to_delta.py \
	  tests/examples/test_kinesis_to_iceberg.py tests/spark/sinks/tables/test_killed.py tests/spark/sinks/tables/test_lakehouse_values.py \
	  tests/provers/tests/crash/test_sinks.py -k 'delta or iceberg or test_killed'

prove-4.0: $(FIRST_4)/ready java
	$(if $(FANOUT_REQUIRE_KAFKA),,-)$(FIRST_4)/bin/python -m fanout.testing.kafka.jars
	$(FIRST_4)/bin/python -m pytest tests/spark/dataframe

sim: $(VENV)/ready
	$(BIN)/python -m tests.provers sim run --seeds $(SEEDS) --first $(FIRST) $(ARGS)

# In the environment ENV.
CRASH = for sink in $(SINKS); do $(ENV)/bin/python -m tests.provers crash --sink $$sink --rounds $(ROUNDS) $(ARGS) || exit; done

crash: ENV := $(VENV)
crash: $(VENV)/ready java h2 spark-classes
	$(CRASH)

crash-oldest: ENV := $(OLDEST)
crash-oldest: SINKS := delta iceberg
crash-oldest: $(OLDEST)/ready java spark-classes-oldest lakehouse-oldest
	$(CRASH)

# The longest test waits for the end of a subscription: five minutes.
live: stream $(VENV)/ready
	$(BIN)/python -m pytest tests/conformance -v --timeout 420 \
	  --live-stream '$(STREAM)' $(if $(CONSUMER_PREFIX),--consumer-prefix '$(CONSUMER_PREFIX)') \
	  $(if $(AUTOMATIC),--automatic-stream '$(AUTOMATIC)') \
	  $(if $(QUEUE),--live-queue '$(QUEUE)')

check: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/codespell fanout tests benchmarks docs *.md
	$(BIN)/python -m pytest tests/test_imports.py tests/test_public_interface.py tests/docs/test_style.py

# The peers of consume are KCL and Flink; Spark downloads the jars of its Kafka source and sink. What
# runs after 19 minutes is over in one more.
bench: $(VENV)/ready java kafka kcl flink
	$(BIN)/python -m benchmarks --source all --minutes 19

# It counts instructions where valgrind is installed, and processor time elsewhere.
bench-check: $(VENV)/ready
	$(BIN)/python -m benchmarks check $(ARGS)

# Zensical builds it; tests/docs has the checks that it has not.
site: $(VENV)/ready
	$(BIN)/python -m tests.docs.site $(SITE_VERSION)
	$(BIN)/python -m pytest tests/docs/test_blocks.py tests/docs/test_links.py tests/docs/test_llms.py tests/docs/test_pictures.py

# Delta and Iceberg have no jars for the newest pyspark; their pages are skipped there.
docs: site java kafka spark-classes $(OLDEST)/ready spark-classes-oldest lakehouse-oldest
	$(BIN)/python -m pytest $(PARALLEL) tests/docs $(shell $(BIN)/python -m tests.docs.examples)
	$(OLDEST)/bin/python -m pytest tests/spark/sinks/tables/test_pages.py

release: $(RELEASE)/ready
	$(RELEASE)/bin/python -m tests.packaging.release $(PYTHONS)

clean:
	rm -rf site dist .cache docs/cli.md $(VENV) $(OLDEST) $(LOWEST) $(FIRST_4) $(RELEASE) .mypy_cache .ruff_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: stream python java kafka kafka-oldest lakehouse-oldest s3a h2 s3mock iceberg-rest kinesis-sdk-java kcl flink spark-classes spark-classes-oldest
stream:
	@[ -n '$(STREAM)' ] || { \
	  echo "name a stream of yours: make live STREAM=name-or-arn [CONSUMER_PREFIX=...] [AUTOMATIC=name-or-arn], with your AWS credentials and region" >&2; \
	  exit 1; }

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "fanout needs Python 3.11 or newer as '$(PYTHON)'; name another one: make PYTHON=python3.12" >&2; \
	  exit 1; }

# Spark takes JAVA_HOME before the PATH, and so does this check.
java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	[ "$${version:-0}" -ge 17 ] || { \
	  echo "fanout needs Java 17 or newer for Spark (found: $${version:-none}); install one and set JAVA_HOME" >&2; \
	  exit 1; }

# Tests that need Kafka are skipped where it cannot be downloaded, unless FANOUT_REQUIRE_KAFKA is set.
kafka: $(VENV)/ready java
	$(if $(FANOUT_REQUIRE_KAFKA),,-)$(BIN)/python -m fanout.testing.kafka.jars

# Delta and Iceberg.
lakehouse-oldest: $(OLDEST)/ready java
	$(if $(FANOUT_REQUIRE_KAFKA),,-)@$(OLDEST)/bin/python -m tests.jars.fetch delta iceberg

kafka-oldest: $(OLDEST)/ready java
	$(if $(FANOUT_REQUIRE_KAFKA),,-)$(OLDEST)/bin/python -m fanout.testing.kafka.jars

# So are the tests that need Hadoop's s3a: 13 MB.
s3a: $(VENV)/ready java
	$(if $(FANOUT_REQUIRE_KAFKA),,-)@$(BIN)/python -m tests.jars.fetch s3a

# And those of H2, a database: 3 MB.
h2: $(VENV)/ready java
	$(if $(FANOUT_REQUIRE_KAFKA),,-)@$(BIN)/python -m tests.jars.fetch h2

# And those on a second server of S3: 63 MB.
s3mock: $(VENV)/ready java
	$(if $(FANOUT_REQUIRE_KAFKA),,-)@$(BIN)/python -m tests.jars.fetch s3mock

# And those of clients of Kinesis in Java, 12, 29 and 124 MB, and of Iceberg's REST catalog, 18 MB.
kinesis-sdk-java kcl flink iceberg-rest: $(VENV)/ready java
	$(if $(FANOUT_REQUIRE_KAFKA),,-)@$(BIN)/python -m tests.jars.fetch $@

# Dozens of JVMs are started for Spark; with this each takes half of the work.
spark-classes: $(VENV)/ready java
	@$(BIN)/python -m fanout.testing.spark.class_archive

spark-classes-oldest: $(OLDEST)/ready java
	@$(OLDEST)/bin/python -m fanout.testing.spark.class_archive

$(VENV)/ready: pyproject.toml constraints.txt | python
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev --group docs --group connect \
	  --editable '$(FANOUT)'
	touch $@

$(RELEASE)/ready: pyproject.toml constraints.txt | python
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --upgrade --constraint constraints.txt pip
	$(RELEASE)/bin/pip install --quiet --constraint constraints.txt --group release
	touch $@

# pip has no such resolution. Of what the dependencies need themselves, it takes the newest.
$(LOWEST)/ready: pyproject.toml constraints.txt | python
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --constraint constraints.txt uv
	$(LOWEST)/bin/uv pip compile --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	  --all-extras --annotation-style line --output-file $(LOWEST)/all.txt pyproject.toml
	grep fanout-streams $(LOWEST)/all.txt > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python \
	  --constraint $(LOWEST)/constraints.txt --group dev --editable '$(FANOUT)'
	touch $@

$(OLDEST)/ready: SPARK := $(SPARK_OLDEST)
# transformWithState needs what Spark Connect needs.
$(FIRST_4)/ready: SPARK := $(SPARK_4_0) --group connect
$(OLDEST)/ready $(FIRST_4)/ready: pyproject.toml constraints.txt | python
	$(PYTHON) -m venv $(@D)
	grep -v -E '^(pyspark|py4j)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/pip install --quiet --upgrade --constraint constraints.txt pip
	$(@D)/bin/pip install --quiet --constraint $(@D)/constraints.txt --group dev \
	  --editable '$(FANOUT)' $(SPARK)
	touch $@

# Needs Python 3.11 or newer and make; every target sets up the rest by itself.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS ?= test,bench
# Only folders that hold Python: mypy refuses an empty one.
CODE := $(sort $(dir $(wildcard $(addsuffix /*.py,leveret pyspark_leveret simulation benchmarks faults tests))))
NODE_PACKAGES := amqplib mqtt stompit @stomp/stompjs ws
NODE_CLIENTS := node_modules/.amqplib-mqtt-stomp
CORES := $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8))')
# Tests of clusters mostly wait: with three processes more than there are cores, these are hardly idle. Others compute.
PROCESSES := $(shell echo $$(($(CORES) + 3)))
PURE_PROCESSES := $(shell echo $$(($(CORES) + 1)))

# Bytecode is kept even where the environment asks for none: without it each node that a test starts, and each process
# that runs tests, compiles everything it imports, which takes longer than all else it does to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs references lock versions dist deb install run test check lint types pure pytest node-clients debian-clients chromium java bench bench-spark demo long faults soak soak-spark fuzz compare screenshots clean

install: $(STAMP)

# editable_mode=compat is a plain path entry; setuptools' other way, an import hook, costs every start of a node 10 ms.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Leveret needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
	    --editable '.[$(EXTRAS)]'
	@touch $@

run: $(STAMP)
	$(PY) -m leveret cluster start --data data/cluster

# mypy runs beside the tests, which leave it room where they wait.
test: lint
	@$(MAKE) --no-print-directory --jobs=2 types pytest

# What can be had in a few minutes: all but tests/system, whose tests start nodes, clients, browsers and Spark.
check: lint
	@$(MAKE) --no-print-directory --jobs=2 types pure

pure: $(STAMP)
	$(PY) -m pytest -r fEs --numprocesses $(PURE_PROCESSES) --dist worksteal tests/style tests/unit tests/simulation

lint: $(STAMP)
	$(PY) -m ruff check $(CODE)

types: $(STAMP)
	$(PY) -m mypy $(CODE)

# Each process begins with a part of the tests, the longest first (tests/support/processes/order.py), and takes over what
# others have not come to when it is done: the tests of a folder mostly stay together and share what they have started.
# `$(PY) -m pytest FILE ...` alone runs in one, where a debugger works.
pytest: $(STAMP) node-clients debian-clients chromium java
	$(PY) -m pytest -r fEs --numprocesses $(PROCESSES) --dist worksteal

# Clients in Node, for tests/system/clients/node, tests/system/mqtt/node and tests/system/stomp/node. Those tests are
# skipped where they are missing, and say so.
node-clients:
	@if [ -f $(NODE_CLIENTS) ]; then :; \
	elif ! command -v npm >/dev/null || ! command -v node >/dev/null; then \
	    echo "node-clients: no npm or node here, so the tests with $(NODE_PACKAGES) are skipped"; \
	elif npm install --no-save --no-audit --no-fund --no-package-lock --silent --prefix . $(NODE_PACKAGES); then \
	    touch $(NODE_CLIENTS); \
	else \
	    echo "node-clients: npm could not install $(NODE_PACKAGES), so the tests with them are skipped"; \
	fi

# Clients in C, Go and Java, those of Mosquitto, and the specification that txAMQP reads, as Debian has them. The tests
# with those that are missing are skipped, and say so.
DEBIAN_CLIENTS := amqp-tools amqp-specs golang-go golang-github-rabbitmq-amqp091-go-dev librabbitmq-client-java \
    libslf4j-java mosquitto-clients
debian-clients:
	@if dpkg --status $(DEBIAN_CLIENTS) >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    { apt-get install --yes --quiet --no-install-recommends $(DEBIAN_CLIENTS) || \
	      { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends $(DEBIAN_CLIENTS); }; } >/dev/null 2>&1; then :; \
	else \
	    echo "debian-clients: not all of $(DEBIAN_CLIENTS) are here, so the tests with those that are missing are skipped"; \
	fi

# The browser of tests/system/page. Those tests are skipped where there is none, and say so.
chromium:
	@if [ -n "$$LEVERET_CHROMIUM" ] || command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    { apt-get install --yes --quiet --no-install-recommends chromium || \
	      { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends chromium; }; } >/dev/null 2>&1; then :; \
	else \
	    echo "chromium: there is none here, so the tests of the page in a browser are skipped"; \
	fi

# The pictures of docs/page.md: of the real page, in a real browser, with a cluster of three behind it.
screenshots: $(STAMP)
	$(PY) -m tests.system.page.pictures

# Java 17 or newer, for Spark. It is installed where that can be done without asking; else the tests with Spark are
# skipped, and say so.
java:
	@JAVA="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version() { "$$JAVA" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -1; }; \
	if [ "$$(version)" -ge 17 ] 2>/dev/null; then exit 0; fi; \
	echo "java: Spark needs Java 17 or newer, and $${JAVA_HOME:-the path} has $$(v=$$(version); echo $${v:-none})"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "java: installing openjdk-17-jre-headless"; \
	    { apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless; } \
	        >/dev/null 2>&1 || echo "java: it could not be installed, so the tests with Spark are skipped"; \
	else \
	    echo "java: install it (apt-get install openjdk-17-jre-headless, brew install openjdk@17); until then the tests with Spark are skipped"; \
	fi

# The tests' core with the lowest and with the newest versions of the dependencies, each in an environment of its own.
# SETS=spark tests what the Spark connector does with each version of Spark.
versions:
	$(PYTHON) packaging/versions.py $(SETS)

# docs/reference, made from the code. `make references` after a new setting, command, request or metric.
references: $(STAMP)
	$(PY) -m tests.support.references

# Wheel and source distribution in dist/, each installed in a fresh environment and tried with every Python that is here.
dist: $(STAMP)
	$(PY) packaging/dist.py

# A package for Debian and Ubuntu in dist/, for this machine's Python. dpkg --install starts the service.
deb: $(STAMP)
	$(PY) packaging/debian/build.py

# A static site of the pages in docs/, in build/site. Broken links are errors.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "docs: build/site/index.html"

# The versions and hashes that the image is built from.
lock:
	$(PYTHON) packaging/lock.py

bench: $(STAMP)
	$(PY) -m benchmarks
	$(PY) -m benchmarks.shovel

# A cluster, load, a node killed, and an audit that says whether anything was lost. Needs Java, for Spark.
demo: $(STAMP)
	@command -v java >/dev/null || [ -n "$$JAVA_HOME" ] || { echo "demo: Spark needs Java 17 or newer, and there is none" >&2; exit 1; }
	$(PY) -m pyspark_leveret.jobs.demo

# Spark reads queues and publishes rows; Parquet beside. ROWS="10000 1000000" for other sizes.
bench-spark: $(STAMP) java
	$(PY) -m benchmarks.spark $(if $(ROWS),--sizes $(ROWS))

# Tests that take too long for every change: all deliberate bugs, more seeds, the audit, Spark's own clusters.
long: $(STAMP) java
	$(PY) -m pytest -r fEs -m long --numprocesses $(PROCESSES) --dist worksteal

# Faults of real clusters, each for a minute, in about an hour; needs root, for namespaces and mounts. BROKER=rabbitmq
# for RabbitMQ.
faults: $(STAMP)
	$(PY) -m faults --all $(if $(BROKER),--broker $(BROKER)) $(if $(SEED),--seed $(SEED))

MINUTES ?= 10
soak: $(STAMP) long
	$(PY) -m tests.system.soak --minutes $(MINUTES)

# The tests of the Spark connector in their long form: drivers killed at each step of each kind of query, a standalone
# cluster and Spark Connect each by itself.
soak-spark: $(STAMP) java
	LEVERET_SPARK_LONG=1 $(PY) -m pytest -m spark tests/system/spark/test_failures.py tests/system/spark/test_elsewhere.py

fuzz: $(STAMP)
	$(PY) -m tests.system.fuzz
	$(PY) -m tests.system.attacks

# The same conversations with RabbitMQ (installed if it is missing and we are root) and with Leveret. RECORD=1 keeps
# RabbitMQ's answers for the tests; TOPICS="ttl qos" asks for less.
compare: $(STAMP)
	$(PY) -m tests.system.compare $(if $(RECORD),--record) $(TOPICS)

clean:
	rm -rf $(VENV) node_modules build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Needs Python 3.11 or newer and make; every target sets up the rest by itself.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS ?= test,bench
# Only folders that hold Python: mypy refuses an empty one.
CODE := $(sort $(dir $(wildcard $(addsuffix /*.py,leveret pyspark_leveret simulation benchmarks tests))))
NODE_CLIENTS := node_modules/.amqplib

.PHONY: install run test lint types pytest node-clients bench soak fuzz compare clean

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

test: lint types pytest

lint: $(STAMP)
	$(PY) -m ruff check $(CODE)

types: $(STAMP)
	$(PY) -m mypy $(CODE)

# In as many processes as there are cores. Each begins with a part of the files in their order, and takes over what
# others have not come to when it is done: the tests of a file mostly stay together and share what they have started.
# `$(PY) -m pytest FILE ...` alone runs in one, where a debugger works.
pytest: $(STAMP) node-clients
	$(PY) -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# amqplib, for tests/clients/node. Those tests are skipped where it is missing, and say so.
node-clients:
	@if [ -f $(NODE_CLIENTS) ]; then :; \
	elif ! command -v npm >/dev/null || ! command -v node >/dev/null; then \
	    echo "node-clients: no npm or node here, so the tests with amqplib are skipped"; \
	elif npm install --no-save --no-audit --no-fund --no-package-lock --silent --prefix . amqplib; then \
	    touch $(NODE_CLIENTS); \
	else \
	    echo "node-clients: npm could not install amqplib, so the tests with it are skipped"; \
	fi

bench: $(STAMP)
	$(PY) -m benchmarks

MINUTES ?= 10
soak: $(STAMP)
	$(PY) -m tests.soak --minutes $(MINUTES)

fuzz: $(STAMP)
	$(PY) -m tests.fuzz

# The same conversations with RabbitMQ (installed if it is missing and we are root) and with Leveret. RECORD=1 keeps
# RabbitMQ's answers for the tests; TOPICS="ttl qos" asks for less.
compare: $(STAMP)
	$(PY) -m tests.compare $(if $(RECORD),--record) $(TOPICS)

clean:
	rm -rf $(VENV) node_modules build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

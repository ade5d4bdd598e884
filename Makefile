# make demo: see it run. make test: the whole suite. The rest is for contributors: CONTRIBUTING.md.
# It needs Python 3.11+ with the venv module; make PYTHON=... uses another interpreter.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip -qq --disable-pip-version-check
# What the demo site needs of the packages.
EXTRAS := postgres,api,client
COMBOS ?=

.DELETE_ON_ERROR:
.PHONY: demo test rest check scale mutants matrix wheel bench celery browser fuzz screenshots drawing \
	format clean

# The demo site on http://localhost:8000; Ctrl-C stops it. PORT and DATABASE_URL may be set.
# ENGINE=celery runs its tasks in Celery workers, over a broker of files, without a server.
# SERVICES=2 runs a lease service and a task service, each with a database of its own, at two ports;
# LEASES_DATABASE_URL and TASKS_DATABASE_URL may be set.
ENGINE := $(or $(ENGINE),leasing)
unexport SERVICES
demo: $(VENV)/demo.stamp $(if $(filter celery,$(ENGINE)),$(VENV)/celery.stamp)
	@$(RUN) manage.py demo --engine $(ENGINE) $(if $(SERVICES),--services $(SERVICES))

# The suite on SQLite and PostgreSQL, and on the wheel. PYTEST_ADDOPTS="-k name" selects tests.
test: $(VENV)/test.stamp
	@$(RUN) -m tests.suite

# On PostgreSQL the tests that `make test` runs on SQLite only: marked `once`, or in a folder of ONCE
# in tests/plugin.py. And those that it leaves out: marked `rest`, in a folder of REST, or in need of
# a broker.
rest: $(VENV)/test.stamp
	@$(RUN) -m tests.suite rest

# Style, types, layers, mutants that can be made, migrations, Django's own checks.
check: export DATABASE_URL = sqlite://:memory:
check: $(VENV)/dev.stamp
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check
	@$(RUN) -m mypy
	@$(VENV)/bin/lint-imports --no-logo
	@$(RUN) -m tests.house
	@$(RUN) -m tests.mutants --list
	@$(RUN) manage.py makemigrations --check --dry-run
	@$(RUN) manage.py check --fail-level WARNING
	@echo "check: style, types, layers, migrations and system checks are in order"

# Writes what both packages weigh, and what their verbs walk through, to the table that `make check`
# and the tests hold them to: tests/scale.json. A commit that raises a figure says why.
scale: $(VENV)/dev.stamp
	@$(RUN) -m tests.house --write

# Changes each condition of the verbs in turn; a test must fail. SHORT=1 tries as many as fit in
# three minutes: first those of which no test is noted, then others in an order by SEED=7. NEW=1
# tries the former alone, ONLY=once selects by name, and KEEP=1 notes the tests that failed in the
# table of mutants and tests, tests/mutants/killers.json.
mutants: $(VENV)/test.stamp
	@$(RUN) -m tests.mutants $(if $(SHORT),--minutes 3) $(if $(SEED),--seed $(SEED)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(NEW),--new) $(if $(KEEP),--keep)

# The suite under each pair of Python and Django; COMBOS="3.12/6.1" selects some. SHORT=1 runs what
# `make test` does instead of everything on both databases.
matrix:
	@$(PYTHON) -m tests.suite matrix $(if $(SHORT),short) $(COMBOS)

# The wheel in dist/, and the tests that install it.
wheel: $(VENV)/test.stamp
	@$(PIP) wheel --no-deps --wheel-dir dist .
	@$(RUN) -m tests.suite wheel

# Speed compared with plain SQL: docs/performance.md. SHORT=1 takes minutes, FULL=1 an hour;
# ONLY="drain leases" selects workloads, PEERS="pgqueuer huey-redis" adds other queues;
# REPORT_ONLY=1 does not fail if a target is missed; COMBOS="3.13/6.1" is another Python and Django.
SIZE := $(if $(SHORT),short,$(if $(FULL),full,default))
bench: $(VENV)/test.stamp
	@$(RUN) -m tests.benchmarks --size $(SIZE) --only $(ONLY) --peers $(PEERS) \
		--combos $(COMBOS) $(if $(REPORT_ONLY),--report-only)

# 10,000 tasks through Celery on Redis and on RabbitMQ (Debian: redis-server, rabbitmq-server), with
# restarts and kills. TASKS=500 for fewer, BROKER=redis for one.
celery: $(VENV)/test.stamp
	@$(RUN) -m tests.celery_soak $(if $(TASKS),--tasks $(TASKS)) $(if $(BROKER),--broker $(BROKER))

# 30 checks of the pages in a browser, on PostgreSQL. CHROMIUM names the browser, and
# PYTEST_ADDOPTS="-k test_07" selects a check.
browser: $(VENV)/browser.stamp
	@$(RUN) -m tests.browser

# The HTTP API called with what schemathesis makes from its document, and with known evils, by each
# kind of principal. SHORT=1 takes two minutes; SEED=7 repeats a run, DB=postgresql is another
# database, ONLY="stranger" selects principals by name.
fuzz: $(VENV)/fuzz.stamp
	@$(RUN) -m tests.fuzz $(if $(SHORT),--short) $(if $(SEED),--seed $(SEED)) \
		$(if $(DB),--db $(DB)) $(if $(ONLY),--only "$(ONLY)")

# The pictures of docs/dashboard.md, taken from the demo. CHROMIUM names the browser.
screenshots: $(VENV)/browser.stamp
	@$(RUN) -m tests.browser.screenshots

# The models of both apps, for docs/architecture.md. It needs dot (Debian: graphviz).
drawing: export DATABASE_URL = sqlite://:memory:
drawing: $(VENV)/demo.stamp
	@$(RUN) manage.py graph_models --dot leasing leasing_tasks --disable-abstract-fields \
		--hide-edge-labels --theme django2018 >models.dot
	@dot -Tsvg -Gbgcolor=white -o docs/images/models.svg models.dot
	@rm models.dot
	@echo "drawing: docs/images/models.svg"

format: $(VENV)/dev.stamp
	@$(RUN) -m ruff check --fix
	@$(RUN) -m ruff format

clean:
	rm -rf $(VENV) .matrix dist build

$(VENV)/venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer, please")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/demo.stamp: $(VENV)/venv.stamp pyproject.toml
	@echo "installing into $(VENV) ..."
	@$(PIP) install --editable '.[$(EXTRAS)]' --group demo
	@touch $@

$(VENV)/celery.stamp: $(VENV)/demo.stamp
	@$(PIP) install --editable '.[$(EXTRAS),celery]' --group demo
	@touch $@

# What the demo needs, too: one call of pip takes less time than two.
$(VENV)/test.stamp: $(VENV)/venv.stamp pyproject.toml
	@echo "installing into $(VENV) ..."
	@$(PIP) install --editable '.[$(EXTRAS)]' --group test
	@touch $@ $(VENV)/demo.stamp

$(VENV)/browser.stamp: $(VENV)/test.stamp
	@$(PIP) install --group browser
	@touch $@

$(VENV)/fuzz.stamp: $(VENV)/test.stamp
	@$(PIP) install --group fuzz
	@touch $@

$(VENV)/dev.stamp: $(VENV)/test.stamp
	@$(PIP) install --group dev
	@touch $@

# make demo: see it run. make test: the suite. The rest is for contributors: CONTRIBUTING.md.
# It needs Python 3.11+ with the venv module; make PYTHON=... uses another interpreter.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip -qq --disable-pip-version-check
# What the demo site needs of the packages.
EXTRAS := postgres,api,client
# Three keep two cores busy beside the server of the database. One that hangs has said where, and is
# not replaced.
PYTEST := $(RUN) -m pytest --numprocesses 3 --dist worksteal --max-worker-restart 0
# What SQLite, the database of the demo, runs beside PostgreSQL: what is SQL of its own, the tables,
# each route and each page once, the demo.
SQL := $(addprefix tests/,leasing/querysets leasing/contract leasing/db leasing/test_model.py \
	leasing/test_saving.py leasing/test_constraints.py leasing/test_functions.py \
	leasing/test_prune.py leasing/test_once.py leasing/api/test_routes.py tasks/querysets \
	tasks/maintenance tasks/api/test_routes.py test_migrations.py test_every_page.py test_demo.py)
# What one process has compiled is there for the next: processes of the tests would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: demo test slow test-all check docs scale surface mutants matrix wheel bench chaos browser \
	fuzz incidents screenshots drawing format clean

# The demo site on http://localhost:8000; Ctrl-C stops it. PORT and DATABASE_URL may be set.
# ENGINE=celery runs its tasks in Celery workers, over a broker of files, without a server.
# SERVICES=2 runs a lease service and a task service, each with a database of its own, at two ports;
# LEASES_DATABASE_URL and TASKS_DATABASE_URL may be set.
ENGINE := $(or $(ENGINE),leasing)
unexport SERVICES
demo: $(VENV)/demo.stamp $(if $(filter celery,$(ENGINE)),$(VENV)/celery.stamp)
	@$(RUN) manage.py demo --engine $(ENGINE) $(if $(SERVICES),--services $(SERVICES))

# The suite: on PostgreSQL all that is not marked `slow`, and then on SQLite what touches SQL. The demo
# runs on SQLite alone. PYTEST_ADDOPTS="-k name" selects tests; a run of which it selects none
# (5) is no failure.
define suite
	@failed=0; \
	$(PYTEST) --db postgresql -m $(1) --ignore tests/test_demo.py || [ $$? -eq 5 ] || failed=1; \
	$(PYTEST) --db sqlite -m $(1) $(SQL) || [ $$? -eq 5 ] || failed=1; \
	exit $$failed
endef
test: $(VENV)/test.stamp
	$(call suite,"not slow")

# What `make test` leaves out: races, kills, brokers, the demo, the wheel, deployments, what is dear.
slow: $(VENV)/test.stamp
	$(call suite,slow)

test-all: test slow

# Style, types, layers, the site of the documentation, mutants that can be made, migrations,
# Django's own checks.
check: export DATABASE_URL = sqlite://:memory:
check: $(VENV)/dev.stamp docs
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

# Writes what users see (pages, commands, the log, metrics, signals) to the list that a test compares:
# tests/surface/surface.txt.
surface: $(VENV)/test.stamp
	@$(RUN) -m tests.surface

# Changes each condition of the verbs in turn; a test must fail. SHORT=1 tries as many as fit in
# two minutes: first those of which no test is noted, then others in an order by SEED=7. NEW=1
# tries the former alone, ONLY=once selects by name, and KEEP=1 notes the tests that failed in the
# table of mutants and tests, tests/mutants/killers.json.
mutants: $(VENV)/test.stamp
	@$(RUN) -m tests.mutants $(if $(SHORT),--minutes 2) $(if $(SEED),--seed $(SEED)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(NEW),--new) $(if $(KEEP),--keep)

# Everything on both databases under each pair of Python and Django; COMBOS="3.12/6.1" selects some.
# SHORT=1 leaves out what is slow. Interpreters are found on PATH, those of pyenv too.
matrix: export PYENV_VERSION := $(shell pyenv versions --bare 2>/dev/null | paste -s -d : -)
matrix: $(VENV)/dev.stamp
	@$(VENV)/bin/nox $(foreach pair,$(COMBOS),--session 'suite($(pair))') \
		$(if $(SHORT),-- -m 'not slow')

# The wheel in dist/, and the tests that install it.
wheel: $(VENV)/test.stamp
	@$(PIP) wheel --no-deps --wheel-dir dist .
	@$(RUN) -m pytest tests/test_packaging.py

# Speed compared with plain SQL: docs/performance.md. SHORT=1 takes minutes, FULL=1 an hour;
# ONLY="drain leases" selects workloads, PEERS="pgqueuer huey-redis" adds other queues;
# REPORT_ONLY=1 does not fail if a target is missed; RUN=.nox/suite-3-13-6-0/bin/python measures under
# another Python and Django, once `make matrix` has made that environment.
SIZE := $(if $(SHORT),short,$(if $(FULL),full,default))
bench: $(VENV)/test.stamp
	@$(RUN) -m tests.benchmarks --size $(SIZE) --only $(ONLY) --peers $(PEERS) \
		$(if $(REPORT_ONLY),--report-only)

# Faults into real processes, a history of all that they did, and a checker of it: docs/reliability.md.
# S=3600 is the seconds of all workloads together, SEED=7 repeats a plan of faults, FAULTS="kill cut"
# and ONLY="leases register" select by name, DB=sqlite is the other database. SABOTAGE=1 has the
# checker find what is wrong with copies that lack one condition each.
chaos: $(VENV)/test.stamp
	@$(RUN) -m $(if $(SABOTAGE),tests.chaos.sabotage,tests.chaos) $(if $(S),--seconds $(S)) $(if $(SEED),--seed $(SEED)) \
		$(if $(DB),--db $(DB)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(ONLY),--only $(ONLY))

# 30 checks of the pages in a browser, on PostgreSQL. CHROMIUM names the browser, and
# PYTEST_ADDOPTS="-k test_07" selects a check.
browser: $(VENV)/browser.stamp $(VENV)/docs.stamp
	@$(RUN) -m tests.browser

# Incidents in a site at work, on PostgreSQL: the overview must name the cause of each. SHOTS=folder
# takes pictures of it.
incidents: export SHOTS := $(SHOTS)
incidents: $(VENV)/$(if $(SHOTS),browser,test).stamp
	@$(PYTEST) --db postgresql tests/incidents

# The HTTP API called with what schemathesis makes from its document, by each
# kind of principal. SHORT=1 takes two minutes; SEED=7 repeats a run, DB=postgresql is another
# database, ONLY="stranger" selects principals by name.
fuzz: $(VENV)/fuzz.stamp
	@$(RUN) -m tests.fuzz $(if $(SHORT),--short) $(if $(SEED),--seed $(SEED)) \
		$(if $(DB),--db $(DB)) $(if $(ONLY),--only "$(ONLY)")

# The pictures of docs/dashboard.md, taken from the demo. CHROMIUM names the browser.
screenshots: $(VENV)/browser.stamp
	@$(RUN) -m tests.browser.screenshots

# The documentation as a site, in docs/_build/html. A warning of Sphinx is an error.
docs: $(VENV)/docs.stamp
	@$(RUN) -m sphinx -b dirhtml -nqWE --keep-going docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

# The drawings of the documentation: the models of both apps, and docs/diagrams, with colours for light
# and dark. They need dot (Debian: graphviz).
DIAGRAMS := $(patsubst docs/diagrams/%.dot,docs/images/%.svg,$(wildcard docs/diagrams/*.dot))
drawing: export DATABASE_URL = sqlite://:memory:
drawing: $(VENV)/demo.stamp $(DIAGRAMS)
	@$(RUN) manage.py graph_models --dot leasing leasing_tasks --disable-abstract-fields \
		--hide-edge-labels --theme django2018 >models.dot
	@dot -Tsvg -Gbgcolor=white -o docs/images/models.svg models.dot
	@rm models.dot
	@echo "drawing: docs/images/models.svg $(DIAGRAMS)"

docs/images/%.svg: docs/diagrams/%.dot docs/diagrams/style.svg
	@dot -Tsvg -Nfontname="DejaVu Sans" -Efontname="DejaVu Sans" -Nfontsize=13 -Efontsize=11 $< | \
		sed '/viewBox/r docs/diagrams/style.svg' >$@

format: $(VENV)/dev.stamp
	@$(RUN) -m ruff check --fix
	@$(RUN) -m ruff format

clean:
	rm -rf $(VENV) .nox dist build

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

$(VENV)/docs.stamp: $(VENV)/test.stamp
	@$(PIP) install --group docs
	@touch $@

$(VENV)/dev.stamp: $(VENV)/test.stamp
	@$(PIP) install --group dev
	@touch $@

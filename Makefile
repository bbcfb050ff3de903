# make setup | demo | pictures | test | test-unit | test-full | coverage | test-long | test-pages | simulate | fuzz-sql | check | bench | bench-NAME | soak | lock | audit | docs | release
# A fresh machine needs Python 3.11 or newer and the package registries; the rest is found or installed.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
WITH_JAVA = home=$$(scripts/find-java) && export JAVA_HOME="$$home" &&
SEEDS := 10000
BENCHES := log state big_state coordinator epoch turn evaluator continuous recovery kafka pubsub telemetry nexmark tables latency_suite

.PHONY: setup demo pictures test test-unit test-full coverage test-long test-pages simulate fuzz-sql check bench soak lock audit docs release format clean
.DEFAULT_GOAL := setup

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml scripts/setup
	scripts/setup $(VENV)
	@touch $@

demo: setup
	$(WITH_JAVA) $(VENV)/bin/epochal demo

# Within ten minutes on two cores; test-full runs what it leaves out, test-unit answers in two.
test: setup
	$(WITH_JAVA) $(PY) -m scripts.run_tests

test-full: setup
	$(WITH_JAVA) $(PY) -m scripts.run_tests --full

test-unit: setup
	$(PY) -m pytest -q -p no:cacheprovider -n 2 --dist loadfile -m "not long and not full" \
	  tests/unit tests/transcripts tests/test_*.py

coverage: setup
	$(WITH_JAVA) $(PY) -m scripts.run_tests --coverage

test-long: setup
	$(WITH_JAVA) $(PY) -m pytest --durations=15 -m long

# README and every tutorial as a reader runs them, block by block.
test-pages: setup
	$(WITH_JAVA) $(PY) -m pytest --durations=5 -m "not long" tests/integration/test_tutorials.py

simulate: setup
	$(PY) -m tests.simulation.engine_run --seeds $(SEEDS)

# Random expressions, plans, programs and files on Spark and here; FUZZ_SWITCHES="--only plans --first 7".
fuzz-sql: setup
	$(WITH_JAVA) $(PY) -m tests.fuzz_sql --seeds $(if $(filter file,$(origin SEEDS)),100,$(SEEDS)) $(FUZZ_SWITCHES)

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# BENCH_SWITCHES=--busy lets a suite start on a busy machine, --quick is a short trial.
# A suite that fails does not keep the others from running, nor the page from saying so.
bench: setup
	@failed=; for name in $(BENCHES); do $(MAKE) --no-print-directory bench-$$name || failed="$$failed $$name"; done; \
	  if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

bench-%: setup
	@$(WITH_JAVA) $(PY) -m benchmarks.$(subst -,_,$*) $(BENCH_SWITCHES); status=$$?; $(PY) -m benchmarks.report; exit $$status

# A day in production, compressed; the report is in artifacts/soak. SEED repeats a run's incidents,
# SOAK_SWITCHES=--busy lets it start on a busy machine, --gap=100 leaves a slow one time to recover.
MINUTES := 120
SEED := 1
soak: setup
	@$(WITH_JAVA) $(PY) -m benchmarks.soak --minutes $(MINUTES) --seed $(SEED) $(SOAK_SWITCHES); status=$$?; \
	  $(PY) -m benchmarks.report; exit $$status

# Takes the pictures in docs/pictures from real queries, a real browser and a real terminal.
pictures: setup
	$(WITH_JAVA) $(PY) -m scripts.picture_dashboard
	$(WITH_JAVA) $(PY) -m scripts.picture_demo

docs: setup
	$(PY) scripts/make_docs.py
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

lock: setup
	$(VENV)/bin/uv pip compile pyproject.toml --all-extras --group dev --universal --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --quiet --output-file requirements.lock

audit: setup
	$(PY) scripts/audit.py

# Builds and checks sdist and wheel, and prints the tag to set. Never tags or uploads.
release: setup
	scripts/release $(VENV)

format: setup
	$(VENV)/bin/ruff check --fix --quiet .
	$(VENV)/bin/ruff format --quiet .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .coverage

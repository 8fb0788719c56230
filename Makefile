# Everything runs in a virtual environment that is made on demand; no activation, no other step.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
export JAX_PLATFORMS ?= cpu

.PHONY: help demo test test-integration test-docs test-all coverage test-core test-versions test-thorough bench bench-panels benchmark-methods benchmark-auto reliability lint docs pictures notebooks clean

help:
	@echo "make demo           confidence sets for the S&P 500, learners side by side, a report"
	@echo "make test           the tests of the code: every learner, prior, score and theorem, and the examples in docstrings"
	@echo "make test-integration  the package with the world: files, commands, processes, clusters, other devices"
	@echo "make test-docs      what we tell users: README, pages, notebooks, experiments, tables of benchmarks"
	@echo "make test-all       the three of them"
	@echo "make coverage       the same, with the lines that no test runs"
	@echo "make test-core      the numerical core only, quickly"
	@echo "make test-versions  the same as test-core, and what other versions of packages may change: for another interpreter"
	@echo "make test-thorough  test-all with over 10,000 random examples (hours)"
	@echo "make bench          speed beside a compiled kernel and other packages (ten minutes)"
	@echo "make bench-panels   panels beside a plain replay: time, memory, workers (a quarter of an hour)"
	@echo "make benchmark-methods  every method on eighteen streams, for docs/methods.md (ten minutes)"
	@echo "make benchmark-auto     the automatic mixture beside the best discount, for docs/automatic.md (six minutes)"
	@echo "make reliability    kills, fuzzers and a billion scores (hours)"
	@echo "make lint           ruff and mypy"
	@echo "make docs           the documentation site, in docs/_build/html"
	@echo "make pictures       draw the pictures of README and docs anew (five minutes)"
	@echo "make notebooks      run the notebooks and keep their outputs (two minutes)"

# Versions under test are pinned for the interpreters that have a list; others resolve the lower bounds.
comma := ,
define install
	$(BIN)/python -m pip install -qq --disable-pip-version-check \
		$$(f=constraints/python$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt; \
		   test -f $$f && echo "--constraint $$f") \
		--editable ".[$(1)]"
endef

$(VENV)/.ready: pyproject.toml $(wildcard constraints/*.txt)
	@echo "Setting up $(VENV) (about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call install,test)
	@touch $@

$(VENV)/.docs-ready: $(VENV)/.ready
	@$(call install,test$(comma)docs)
	@touch $@

$(VENV)/.bench-ready: $(VENV)/.ready
	@$(call install,test$(comma)bench)
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/dpconformal demo

# Each worker takes whole files: their tests share compiled programs.
pytest := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test: $(VENV)/.ready
	$(pytest) --ignore tests/integration --ignore tests/docs

test-integration: $(VENV)/.ready
	$(pytest) tests/integration

test-docs: $(VENV)/.ready
	$(pytest) tests/docs

test-all: test test-integration test-docs

coverage: $(VENV)/.ready
	$(pytest) --cov --cov-fail-under=95

# With optimised programs, as users run them.
test-core: $(VENV)/.ready
	XLA_FLAGS= $(pytest) -m core tests

# What other versions of JAX, NumPyro and ArviZ may change beside the core: the Bayesian half, diagnostics, pages.
test-versions: test-core
	$(pytest) tests/dirichlet tests/diagnostics tests/docs/test_documents.py

test-thorough: $(VENV)/.ready
	HYPOTHESIS_PROFILE=thorough $(pytest) --hypothesis-show-statistics

bench: $(VENV)/.bench-ready
	$(BIN)/python tests/benchmarks/replay_speed.py
	$(BIN)/python tests/benchmarks/baselines.py
	$(BIN)/python tests/benchmarks/posteriors.py

# A quarter of an hour, and 10 GB of memory. What it printed is in docs/panels.md.
bench-panels: $(VENV)/.ready
	$(BIN)/python tests/benchmarks/panels.py

# Ten minutes. The text of docs/methods.md speaks of what it wrote: read that again, too.
benchmark-methods: $(VENV)/.ready
	$(BIN)/python tests/benchmarks/methods.py

# Six minutes. The text of docs/automatic.md speaks of what it wrote.
benchmark-auto: $(VENV)/.ready
	$(BIN)/python tests/benchmarks/automatic.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs-ready
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

pictures: $(VENV)/.ready
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/automatic_picture.py
	$(BIN)/python docs/bayesian_pictures.py
	$(BIN)/python docs/exchangeability_pictures.py
	$(BIN)/python docs/theory_pictures.py
	$(BIN)/python docs/screens.py

# Hours. What it printed is in docs/reliability.md.
reliability: $(VENV)/.ready
	$(BIN)/python tests/reliability/kill_checkpoints.py
	$(BIN)/python tests/reliability/kill_commands.py replay delayed compare experiment
	$(BIN)/python tests/reliability/kill_panel.py
	$(BIN)/python tests/reliability/billion.py
	cd tests && PYTHONPATH=. ../$(BIN)/python -m reliability.fuzz --count 1000000 --seconds 900

notebooks: $(VENV)/.ready
	$(BIN)/python notebooks/execute.py

clean:
	rm -rf .venv .venv-* docs/_build docs/api docs/notebooks results .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

# Every target but .venv needs only .venv, and make builds that from nothing.
# `make test PYTHON=python3.13` does the same in an environment of that Python's own.
PYTHON ?= python3
VENV := .venv$(patsubst %,-%,$(filter-out python3,$(notdir $(PYTHON))))
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
export TENSORNET_CALIBRATE ?= 1
export PYTHONDONTWRITEBYTECODE :=  # tests start many processes, and pytest rewrites each file once

.PHONY: study quick test test-oldest test-slow test-thorough fuzz fuzz-programs lint page docs release bench bench-model gpu format clean

study: $(VENV)/ready
	$(BIN)/tensornet study thesis --data digits

QUICK := tests/test_structure.py tests/test_errors.py tests/test_programs.py
quick: $(VENV)/ready  # at each save: structure, error texts, and some of the written programs
	$(BIN)/pytest -q -n 2 --dist worksteal -m "quick and not slow" $(QUICK)

test: $(VENV)/ready
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" tests

test-oldest:  # with the oldest versions that are declared; `make test-oldest OLDEST=path/to/python3.10`
	$(MAKE) test PYTHON=$(or $(OLDEST),python3.10) VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

test-slow: $(VENV)/ready  # what is left out by day
	$(BIN)/pytest -n 2 --dist worksteal -m "slow" tests

test-thorough: $(VENV)/ready  # all, and 1,000 new examples of each property: hours
	HYPOTHESIS_PROFILE=thorough $(BIN)/pytest tests

fuzz: $(VENV)/ready  # some minutes; `make fuzz SEED=1` makes other input
	$(BIN)/python -m tests.fuzz --seed $(or $(SEED),0)

fuzz-programs: $(VENV)/ready  # an hour: random programs against the oracle, by cause; `PROGRAMS=500` makes fewer
	$(BIN)/python -m tests.fuzz --programs $(or $(PROGRAMS),20000) --seed $(or $(SEED),0)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

page: $(VENV)/ready  # docs/language.md, of the records of the functions
	TENSORNET_CALIBRATE=0 $(BIN)/tensornet functions --page > docs/language.md

docs: $(VENV)/ready  # the site, in docs/_build: guides and gallery, which all run, results and reference
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[docs]"
	$(BIN)/pytest -q tests/test_readme.py -k "page_prints or every_backend"
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	$(BIN)/python docs/links.py docs/_build

# What it builds is tried with the newest dependencies, in a clean environment of each Python.
TRY := env -u PYTHONPATH TENSORNET_CALIBRATE=0 .venv-release/bin/python
release: $(VENV)/ready  # sdist and wheel in dist, tried on the oldest and the newest Python
	rm -rf dist build
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	for python in $(or $(OLDEST),python3.10) $(or $(NEWEST),python3.13); do \
		rm -rf .venv-release && $$python -m venv .venv-release || exit 1; \
		for file in dist/*.whl dist/*.tar.gz; do \
			$(TRY) -m pip uninstall --quiet --yes tensornet-einsum \
				&& $(TRY) -m pip install --quiet "$$file[torch]" scikit-learn \
				&& $(TRY) tests/pages.py docs/guides/start.md && $(TRY) -m tensornet --version || exit 1; \
		done; \
	done
	rm -rf .venv-release

bench-model: $(VENV)/ready  # expected against measured time
	$(BIN)/python -m benchmarks.model $(ARGS)

bench: $(VENV)/ready  # `make bench ARGS="--threads 1 --save"`; each suite alone: python -m benchmarks.attention --help
	$(BIN)/python -m benchmarks $(ARGS)

gpu: $(VENV)/ready  # what needs a CUDA device: the tests marked so, and the suites in every way of running
	$(BIN)/pytest -m gpu tests
	failed=0; for type in float32 bfloat16; do \
		$(BIN)/python -m benchmarks --device cuda:0 --dtype $$type --size large --work --save \
			--mode eager --mode graphs --mode compile $(ARGS) || failed=1; \
	done; exit $$failed

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv: $(VENV)/ready

# torch goes first and alone: a range in another package's needs would fetch a different build.
$(VENV)/ready: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==$(shell sed -n "s/^torch==\([0-9.]*\).*/\1/p" $(CONSTRAINTS))
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[study,dev]"
	touch $@

clean:
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

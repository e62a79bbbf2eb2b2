# Every target but .venv needs only .venv, and make builds that from nothing.
PYTHON ?= python3
BIN := .venv/bin
export TENSORNET_CALIBRATE ?= 1
export PYTHONDONTWRITEBYTECODE :=  # tests start many processes, and pytest rewrites each file once

.PHONY: study test test-slow fuzz fuzz-programs lint page bench bench-model gpu format clean

study: .venv/ready
	$(BIN)/tensornet study thesis --data digits

test: .venv/ready
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" tests

test-slow: .venv/ready
	HYPOTHESIS_PROFILE=thorough $(BIN)/pytest tests

fuzz: .venv/ready  # some minutes; `make fuzz SEED=1` makes other input
	$(BIN)/python -m tests.fuzz --seed $(or $(SEED),0)

fuzz-programs: .venv/ready  # an hour: random programs against the oracle, by cause; `PROGRAMS=500` makes fewer
	$(BIN)/python -m tests.fuzz --programs $(or $(PROGRAMS),20000) --seed $(or $(SEED),0)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

page: .venv/ready  # docs/language.md, of the records of the functions
	TENSORNET_CALIBRATE=0 $(BIN)/tensornet functions --page > docs/language.md

bench-model: .venv/ready  # expected against measured time
	$(BIN)/python -m benchmarks.model $(ARGS)

bench: .venv/ready  # `make bench ARGS="--threads 1 --save"`; each suite alone: python -m benchmarks.attention --help
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.tensor_swin

gpu: .venv/ready  # what needs a CUDA device: the tests marked so, and the suites in every way of running
	$(BIN)/pytest -m gpu tests
	failed=0; for type in float32 bfloat16; do \
		$(BIN)/python -m benchmarks --device cuda:0 --dtype $$type --size large --work --save \
			--mode eager --mode graphs --mode compile $(ARGS) || failed=1; \
	done; exit $$failed

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv: .venv/ready

# torch goes first and alone: a range in another package's needs would fetch a different build.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[study,dev]"
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

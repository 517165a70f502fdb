# Everything runs in a virtual environment of its own; an existing one is used as it is.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

# One thread a process: tests run side by side, and stages are timed as they will run.
export OMP_NUM_THREADS ?= 1

.PHONY: venv demo readme test test-quick lint bench bench-accuracy golden clean

venv: $(BIN)/autosplit

$(BIN)/autosplit: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# A GPT profiled, planned, exported and trained as two processes, compared with one.
demo: venv
	$(BIN)/python tools/demo.py

# Put a new transcript of the demo into README.md.
readme: venv
	$(BIN)/python tools/readme.py

# Everything that CI runs, those that take minutes included; test-quick leaves these out.
test: venv
	$(BIN)/python -m pytest -n auto -m "slow or not slow" --ignore tests/benchmarks

test-quick: venv
	$(BIN)/python -m pytest -n auto

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: venv
	$(BIN)/python -m pytest -p no:xdist -s -m "slow or not slow" tests/benchmarks

# What was predicted beside what happened, as tables; wants two cores with nothing else to do.
bench-accuracy: venv
	$(BIN)/python -m pytest -p no:xdist -q -s -W ignore -m "slow or not slow" tests/benchmarks/accuracy
	$(BIN)/python -W ignore -m tests.benchmarks.accuracy.large

# Write golden files anew from what the code emits now; read the diff before committing it.
golden: venv
	$(BIN)/python -m pytest -q --update-golden tests

clean:
	rm -rf demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis htmlcov .coverage
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +

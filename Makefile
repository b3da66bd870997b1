# `make demo` and `make test` work on a fresh machine: each creates the environment it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-gpu lint clean
demo: .venv/installed
	$(BIN)/paracond demo

test: .venv/developed lint
	$(BIN)/python -m pytest -n 2 --durations=8

test-gpu:  # where there is a CUDA device, with whatever python has torch for it
	PYTHONPATH=src:tests:$$PYTHONPATH $(PYTHON) -m pytest -m gpu tests

lint: .venv/developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

.venv/developed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@ .venv/installed

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

# `make demo`, `make test` and `make docs` work on a fresh machine: each creates the environment it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-gpu lint docs fuzz faults calibration clean
demo: .venv/installed
	$(BIN)/paracond demo

test: .venv/developed lint
	$(BIN)/python -m pytest -n 2 --durations=8

test-gpu:  # where there is a CUDA device, with whatever python has torch for it
	PYTHONPATH=src:tests:$$PYTHONPATH $(PYTHON) -m pytest -m gpu tests

# Seeded campaigns, about ten minutes each on an idle core. SEED=7 makes other trials; results/trust.json has the numbers.
SEED ?= 0
CAMPAIGN := OMP_NUM_THREADS=1 PYTHONPATH=campaigns $(BIN)/python campaigns
fuzz: .venv/developed
	$(CAMPAIGN)/fuzz_api.py --seed $(SEED)
	$(CAMPAIGN)/fuzz_cli.py --seed $(SEED)

faults: .venv/developed
	$(CAMPAIGN)/faults.py --seed $(SEED) damage kills writers full hostile

calibration: .venv/developed
	$(CAMPAIGN)/calibration.py --seed $(SEED)

lint: .venv/developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/docs  # the site is build/docs/index.html; a warning is an error
	rm -rf docs/api
	$(BIN)/python -m sphinx -E -W --keep-going -b html docs build/docs  # -E: a build that remembers pages hides warnings

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

.venv/developed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@ .venv/installed

.venv/docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@ .venv/installed

clean:
	rm -rf build docs/api docs/gallery .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

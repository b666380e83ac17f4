# `make tune` and `make test` set up what they need in .venv by themselves; each re-run is fast.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUDY := studies/tiny-cpu

.PHONY: tune test check docs setup clean

tune: $(VENV)/.installed
	$(BIN)/paratune tune examples/tiny-cpu.yaml --study $(STUDY)

test: check
	$(BIN)/python -m pytest -q -m "not gpu"

check: $(VENV)/.developer
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site in site/; read it with: python -m http.server --bind 127.0.0.1 --directory site
docs: $(VENV)/.developer
	$(BIN)/python -m tuner.cli.references docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch setuptools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.developer: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	# Its own dependencies would pull CUDA builds; the tests need only its configuration classes.
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt torchtitan spmd_types
	touch $@

clean:
	rm -rf $(VENV) site studies .mypy_cache .ruff_cache .pytest_cache .hypothesis

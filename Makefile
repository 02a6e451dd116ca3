# Everything on a fresh Linux or macOS machine with Python >= 3.10 and make: `make walk`, `make test`.
PYTHON ?= python3
VENV ?= .venv
# Installed first and by itself: left to pip's resolver, it would be a CUDA build of several gigabytes.
TORCH ?= torch==2.13.0
# Further arguments of `surefoot train` in `make walk`, such as TRAIN="--seed 2".
TRAIN ?=
PYTEST ?= -n auto

BIN := $(VENV)/bin

.PHONY: help walk test test-slow lint format docs bench bench-long clean

help:
	@echo "make walk       train the Unitree Go1 to walk, evaluate it, draw a film strip"
	@echo "make test       the default test suite"
	@echo "make test-slow  the learning runs, minutes each"
	@echo "make lint       ruff and basedpyright"
	@echo "make format     let ruff format the code"
	@echo "make docs       write docs/configuration.md anew"
	@echo "make bench      the benchmarks, but for the long one"
	@echo "make bench-long trainings from start to result, beside other trainers; hours"
	@echo "make clean      remove $(VENV) and caches"

walk: $(VENV)/.installed
	$(BIN)/surefoot train go1-walk $(TRAIN)
	$(BIN)/surefoot eval last
	$(BIN)/surefoot play last --film-strip walk.png
	@if $(BIN)/python -c "import imageio_ffmpeg" 2> /dev/null; \
	then $(BIN)/surefoot play last --video walk.mp4; \
	else echo "for a video: $(BIN)/pip install imageio-ffmpeg; $(BIN)/surefoot play last --video walk.mp4"; fi

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST)

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	$(BIN)/python -m surefoot.cli.configuration_page docs/configuration.md

# the others look at runs that were trained before
BENCHMARKS := startup gae collect update recurrent memory environment extensions rsl_rl_layer

bench: $(VENV)/.installed-bench
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done

bench-long: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/end_to_end.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis

$(VENV)/.torch:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10) and 'Surefoot needs Python >= 3.10; try: make PYTHON=python3.11')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

# rsl-rl-lib serves the parity tests; what it imports is in `dev`, and it is not to choose another torch.
$(VENV)/.installed-dev: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps rsl-rl-lib==5.5.1
	@touch $@ $(VENV)/.installed

# whom the benchmarks measure against
$(VENV)/.installed-bench: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet stable-baselines3==2.9.2 sb3-contrib==2.9.2 \
		skrl==2.1.1 torchrl==0.14.1 "tianshou==2.0.1; python_version >= '3.11'"
	@touch $@

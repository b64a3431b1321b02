# Every target sets up what it needs: a virtual environment in .venv with everything pinned.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := outputs/demo
OPTIONS ?=
CORES := $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")
# One more than cores: tests that start processes and wait for them leave two workers a third of two cores.
WORKERS ?= $(shell expr $(CORES) + 1)
SHARED := --dist loadfile --no-loadscope-reorder
UNIT_TESTS := --numprocesses $(CORES) $(SHARED) -m "not slow and not rare" --ignore tests/faults --ignore tests/launch
EVERYTHING := --quiet --editable ".[avatars,datasets,docs,export,faces,metrics,slurm,video,dev]" --constraint constraints.txt

# Compiled test modules are kept wherever this is set: making them anew takes each process of pytest ten seconds.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint unit quick check check-versions gpu docs

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/ready  ## Install everything into .venv.

# uv installs in one minute what takes pip seven; pip is for those whose package index only pip is configured for.
$(VENV)/ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV): a minute or two, most of it for PyTorch."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv --constraint constraints.txt
	$(BIN)/uv pip install --python $(BIN)/python $(EVERYTHING) || $(BIN)/python -m pip install $(EVERYTHING)
	@touch $@
	@echo "Ready. To have pggan and python on the PATH: source $(BIN)/activate"

demo: setup  ## Train on cartoon faces at 32x32 for five minutes, then draw a grid, an interpolation and a film.
	$(BIN)/python train.py experiment=demo run_dir=$(DEMO)
	$(BIN)/pggan sample run=$(DEMO) seeds=0-63 grid=8x8 zoom=4 out=$(DEMO)/grid.png
	$(BIN)/pggan interpolate run=$(DEMO) seeds=[3,14,15,92] frames=12 zoom=4 out=$(DEMO)/interpolation.png
	$(BIN)/pggan timelapse run=$(DEMO) out=$(DEMO)/growth.mp4
	@echo "Faces:       $(DEMO)/grid.png and $(DEMO)/interpolation.png"
	@echo "Growth:      $(DEMO)/growth.mp4"
	@echo "TensorBoard: $(BIN)/pggan monitor run=$(DEMO)"
	@echo "Your photos: $(BIN)/pggan train data.path=photos hours=2"

test: setup  ## Run all tests but the slow and rare ones.
	$(BIN)/python -m pytest --numprocesses $(WORKERS) $(SHARED) -m "not rare"

test-slow: setup  ## Run the slow and rare tests.
	$(BIN)/python -m pytest --numprocesses $(WORKERS) $(SHARED) -m rare

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest $(UNIT_TESTS)

# Side by side: mypy has one core, and all workers of pytest wait for one another at times.
quick: setup  ## Lint, types and unit tests: while working on a change.
	$(MAKE) --no-print-directory --jobs 2 lint unit

check-versions: setup  ## Unit tests with the lowest and the newest versions declared, on every Python from 3.11 to 3.14.
	$(BIN)/nox -- $(UNIT_TESTS)

check: lint test  ## Lint, types and all tests: what has to pass before a change lands.

docs: setup  ## Build the documentation as a site, in site/.
	$(BIN)/python -m scripts.site_pages build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is the folder site/. To read and search it, serve it, and open http://127.0.0.1:8000:"
	@echo "$(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

gpu:  ## Measure on a GPU what only a GPU can show, in nine minutes; with PYTHON=python3 if PyTorch is installed there.
	@if reason=$$($(PYTHON) -c "import benchmarks.first_gpu, pggan.run.train" 2>&1); then \
		$(PYTHON) -m benchmarks.first_gpu $(OPTIONS); \
	else \
		echo "$$reason" | tail -n 1 && $(MAKE) setup && $(BIN)/python -m benchmarks.first_gpu $(OPTIONS); \
	fi

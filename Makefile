# make sweep and make test do everything from a fresh clone; make help lists the rest.

PYTHON ?= python3
SWEEP ?= quick
VENV := .venv
BIN := $(VENV)/bin
PROJECTS := pyproject.toml setup.py kernels/pyproject.toml
NAME = $(basename $(notdir $(SWEEP)))

# Container images like to set this: every process would then compile PyTorch's modules anew, three seconds each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help sweep test test-all lint format venv clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  SWEEP=name runs another sweep than quick; PYTHON=path makes the environment with another Python"

sweep: $(VENV)/.installed ## run the quick sweep and render its report
	@# Exit code 1 says that a kernel is wrong, crashed or did not compile: the report shows which, and make fails then.
	@$(BIN)/glabench sweep $(SWEEP); code=$$?; [ $$code -le 1 ] || exit $$code; \
	$(BIN)/glabench report results/local/$(NAME)-*.jsonl --out reports/local/$(NAME) && exit $$code

test: $(VENV)/.installed-dev ## run the tests on every core
	$(BIN)/pytest --numprocesses auto --dist worksteal

test-all: $(VENV)/.installed-dev ## run besides what make test leaves out where there is no GPU
	$(BIN)/pytest --numprocesses auto --dist worksteal --exhaustive

lint: $(VENV)/.installed-dev ## check style, types and files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	SKIP=ruff,ruff-format,mypy $(BIN)/pre-commit run --all-files

format: $(VENV)/.installed-dev ## put the code into its one format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

venv: $(VENV)/.installed-dev ## make .venv with the development tools

clean: ## remove the environment, caches and builds; results and reports stay
	rm -rf $(VENV) build dist *.egg-info kernels/build kernels/dist kernels/*.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: glabench needs Python 3.11 or newer, and '$(PYTHON)' is none; name one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@# The pip that comes with Python 3.11 takes three times as long to find what to install.
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --upgrade pip

# The stamps make pip run again only when what it reads has changed. Without --no-compile it spends more than half of its
# time on bytecode of modules that nobody imports; Python makes that of the others as it imports them.
$(VENV)/.installed: $(PROJECTS) constraints.txt | $(BIN)/python
	$(BIN)/pip install --no-compile --constraint constraints.txt --editable ./kernels --editable .
	@touch $@

$(VENV)/.installed-dev: $(PROJECTS) constraints.txt | $(BIN)/python
	$(BIN)/pip install --no-compile --constraint constraints.txt --editable ./kernels --editable '.[dev]'
	@touch $@ $(VENV)/.installed

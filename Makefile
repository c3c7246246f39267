# make demo    sets up and climbs the built-in workload on the best device there is
# make test    sets up, lints, type-checks and runs the tests
# Both work in a fresh clone, in any order.
# make dist    builds the wheel and the sdist of the last commit into dist/, the same bytes each time, and has twine check them
# make test-torch VERSION=2.6.0    runs the tests with that torch, in an environment of its own (.venv-torch-2.6.0)
#     Others: PYTHON=python3.12 chooses the interpreter, TESTS="tests/ladder -x" what is run and how.

VENV ?= .venv
# Without a GPU one sequence a step. Override: make demo SIZE=medium
SIZE ?= $(shell $(VENV)/bin/python -c 'import torch; print("small" if torch.cuda.is_available() else "tiny --batch-size 1")' 2>/dev/null || echo tiny --batch-size 1)
BUDGET ?= 120
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
# Hundreds of processes run Rung and its tests: what the first of them compiles the others read.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-torch lint schemas reference docs dist clean

demo: $(READY)
	@set -- $(VENV)/bin/rung climb tiny-transformer --size $(SIZE) --budget $(BUDGET); echo "$$@"; "$$@" || { code=$$?; \
		[ $$code != 2 ] || echo "On a slow or busy machine: make demo BUDGET=300" >&2; exit $$code; }
	@echo "rung is in $(VENV)/bin. Your own model: $(VENV)/bin/rung climb model.py:make (README.md says how)"

test: lint
	$(VENV)/bin/python -m pytest -n 3 --dist worksteal

TESTS ?= -n 2 --dist worksteal
test-torch:
	@test -n "$(VERSION)" || { echo "usage: make test-torch VERSION=2.6.0 [PYTHON=python3.12] [TESTS=tests/ladder]" >&2; exit 2; }
	tools/test-torch $(VERSION) $(TESTS)

# Writes docs/schemas/ anew, after a change of src/rung/records.
schemas: $(READY)
	$(VENV)/bin/python -m rung.records.schemas docs/schemas

# Writes the pages of docs/reference/ that are made from the code (tools/reference) anew.
reference: $(READY)
	PYTHONPATH=tools $(VENV)/bin/python -m reference docs/reference

# The pages of docs/ with the Python API, as HTML in build/docs. A broken link or docstring ends it.
docs: $(READY)
	$(VENV)/bin/python -m pip install -q -e '.[docs]'
	$(VENV)/bin/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

# Wheel and sdist of the last commit. Nothing is uploaded.
dist: $(READY)
	rm -rf dist
	$(VENV)/bin/python -m pip install -q -e '.[release]'
	$(VENV)/bin/python tools/dist.py
	$(VENV)/bin/python -m twine check --strict dist/*

lint: $(TOOLS)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(READY): pyproject.toml tools/setup
	VENV=$(VENV) tools/setup
	@touch $@

# What the tests need, and with it all that the demo needs.
$(TOOLS): pyproject.toml tools/setup
	VENV=$(VENV) tools/setup dev
	@touch $(READY) $@

clean:
	rm -rf $(VENV) .venv-boot .venv-torch-* .mypy_cache .ruff_cache .pytest_cache build dist src/*.egg-info

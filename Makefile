# Everything a person or a machine runs. Needs Python 3.11 or newer and make; the rest is installed into .venv.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
SPREAD := --numprocesses=auto --dist=worksteal # the tests take very different times

.PHONY: help demo test cover check docs bench nightly torture clean

help: ## List what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.installed ## Watch a team of agents answer a question about the standard library's source
	@$(BIN)/repertory demo $(ARGS)

test: $(VENV)/.installed-test ## Run the tests, on trio and asyncio, one process a core; ARGS="-n0 -x" in one, to the first that fails
	$(BIN)/pytest $(SPREAD) $(ARGS)

cover: $(VENV)/.installed-test ## Run them with branch coverage, which costs half as much again, and hold it to its limit
	@rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest $(SPREAD) $(ARGS)
	@$(BIN)/coverage combine -q
	$(BIN)/coverage report

nightly: $(VENV)/.installed-test ## Run the long proofs as well
	$(BIN)/pytest -m "nightly or not nightly" --hypothesis-profile=new -o faulthandler_timeout=0 $(ARGS)

torture: $(VENV)/.installed-test ## Cut the power and kill, for a minute; ARGS="--profile full" for half an hour
	$(BIN)/repertory torture $(ARGS)

check: $(VENV)/.installed-check ## Lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.installed-docs ## Build the site into site/
	$(BIN)/zensical build --strict --clean

bench: $(VENV)/.installed-test ## Measure what the documentation claims
	@missed=; for file in benchmarks/*.py; do \
		echo "== $$file"; $(BIN)/python $$file $(ARGS) || missed="$$missed $$file"; done; \
	test -z "$$missed" || { echo "failed, or kept not what they promise:$$missed" >&2; exit 1; }

clean: ## Remove what make created
	rm -rf $(VENV) site .cache .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "repertory needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group test
	@touch $@

$(VENV)/.installed-check: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --group check
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

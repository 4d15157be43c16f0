# `make serve` and `make test` are the two commands; both make .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: serve test fast check install clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make serve   install everything into .venv and serve the embedded model on 127.0.0.1:8080 (ARGS='--port 9000' passes options)"
	@echo "make test    install everything and run what must pass: ruff, mypy --strict, all tests"
	@echo "make fast    the model-free tests alone (seconds)"
	@echo "make check   ruff and mypy alone"
	@echo "make clean   remove .venv"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt install.sh
	PYTHON=$(PYTHON) VENV=$(VENV) bash install.sh
	@touch $@

serve: $(STAMP)
	$(BIN)/kvalet serve $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fast: $(STAMP)
	$(BIN)/pytest -m "not model and not e2e" $(ARGS)

test: check
	$(BIN)/pytest $(ARGS)

clean:
	rm -rf $(VENV)

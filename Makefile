# Every target makes what it needs: a fresh clone, Python >= 3.11 and make are enough.
PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test check test-vllm bench bench-proxy soak lock docs clean

run: $(VENV)/.installed
	@$(BIN)/python -m gateway demo --port $(PORT)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not vllm"

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q -m "not vllm and not process"

test-vllm: $(VENV)/.installed-dev .venv-vllm/.installed
	$(BIN)/python -m pytest -m vllm

bench: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench

bench-proxy: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench_proxy

MINUTES ?= 10
soak: $(VENV)/.installed-dev
	MINUTES=$(MINUTES) $(BIN)/python -m loadtest.soak

docs: $(VENV)/.installed-dev
	$(BIN)/python -m gateway options > docs/options.md
	$(BIN)/python -m tests.conformance.table > docs/http.md

lock: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --python-version 3.11 pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --python-version 3.11 pyproject.toml --group dev -o requirements-dev.lock

clean:
	rm -rf $(VENV) .venv-vllm .cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvgate needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

.venv-vllm/.installed: tests/vllm/install.sh
	PYTHON=$(PYTHON) bash tests/vllm/install.sh .venv-vllm
	@touch $@

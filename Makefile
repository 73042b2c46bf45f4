# make venv | demo | test | test-all | test-gpu | coverage | lint | format | docs | wheel | lock | clean
#
# PYTHON       the Python 3.11 that makes the virtual environment
# VENV         the virtual environment; targets install it when needed
# TORCH_INDEX  the index of torch's CPU build, used if pip's own indexes do not have it
# MARKS        which tests `make test` runs
# GPU_PYTHON   the Python of `make test-gpu`: the image's, or the one of docs/install.md, One GPU

SHELL := /bin/bash
# If it were set, each of some thousand processes would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
CONFIG ?= jobs/configs/demo.yaml
MARKS ?= not slow and not gpu
GPU_PYTHON ?= python3
UV := uv==0.13.8

BIN := $(VENV)/bin
# Parts of `make test`: each runs in its own process, next to the one for all other tests.
ON_RAY := $(wildcard tests/actors tests/api tests/chaos)
OF_COMMANDS := $(wildcard tests/cli tests/tune)
OF_AGENTS := $(wildcard tests/agents/expert tests/agents/llm tests/agents/test_*.py)
OF_ENGINES := $(wildcard tests/engines tests/estimate tests/report tests/security)
OF_TASKS := $(wildcard tests/tasks)
OF_SEARCHES := $(wildcard tests/agents/drafting tests/blackbox tests/contracts tests/coordinator tests/search)
APART := $(ON_RAY) $(OF_COMMANDS) $(OF_AGENTS) $(OF_ENGINES) $(OF_TASKS) $(OF_SEARCHES)
INSTALLED := $(VENV)/.installed
INSTALL_INPUTS := pyproject.toml $(addprefix requirements/,local.lock install.sh excludes.txt overrides.txt vllm_shim/pyproject.toml)

.PHONY: venv demo test test-all test-gpu coverage lint format docs wheel lock clean
venv: $(INSTALLED)

$(INSTALLED): $(INSTALL_INPUTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	TORCH_INDEX=$(TORCH_INDEX) requirements/install.sh $(VENV)
	$(BIN)/python -m pip --disable-pip-version-check -qq install --no-deps --no-build-isolation --editable .
	touch $@

# Ray clients need the mode when they join a running head; the head makes the token itself.
demo: export RAY_AUTH_MODE := token
# Threads per process; a model of 0.6 M parameters needs one.
demo: export LLMZERO_OMP_NUM_THREADS ?= $(if $(findstring smollm2_cpu,$(CONFIG)),$(shell nproc),1)
demo: export LLMZERO_FAILPOINTS := $(CURDIR)/build/failpoints
demo: $(INSTALLED) $(if $(findstring smollm2,$(CONFIG)),models/SmolLM2-135M-Instruct data/smollm2)
	$(BIN)/python -m jobs.prepare $(CONFIG)
	@mkdir -p build/failpoints && touch build/failpoints/checkpoint.saved
	@echo "One failure is provoked: the process of the engine is killed (SIGKILL) while it writes its first checkpoint."
	$(BIN)/python -m jobs.search $(CONFIG)
	@$(if $(filter jobs/configs/demo.yaml,$(CONFIG)),$(BIN)/python -m benchmarks.suite.scores --of random sum_alpha)

# Only for the presets smollm2_*.yaml: a pretrained model, and a task made from a CSV file.
models/SmolLM2-135M-Instruct: | $(INSTALLED)
	$(BIN)/python -m pip --disable-pip-version-check -qq install --no-deps "gguf>=0.19,<0.20"
	$(BIN)/python -m llmzero_ray.cli model smollm2 --out $@

data/smollm2: | $(INSTALLED)
	$(BIN)/python -m jobs.prepare smollm2

# Seven processes at once, because a process that waits for Ray, a disk, a sandbox or a deadline leaves a core idle.
# Each prints a summary line at its end; that of the tests on Ray comes last.
test: $(INSTALLED)
	@logs=$$(mktemp -d); trap 'rm -rf "$$logs"' EXIT; \
	part() { $(BIN)/python -m pytest -m "$(MARKS)" "$${@:2}" > "$$logs/$$1" 2>&1 || touch "$$logs/failed"; }; \
	part tasks $(OF_TASKS) & part commands $(OF_COMMANDS) & part ray $(ON_RAY) & part agents $(OF_AGENTS) & \
	part engines $(OF_ENGINES) & part searches $(OF_SEARCHES) & \
	$(BIN)/python -m pytest -m "$(MARKS)" tests $(patsubst %,--ignore=%,$(APART)) || \
	    touch "$$logs/failed"; \
	wait; cd "$$logs" && cat agents searches engines tasks commands ray && test ! -e failed

test-all: $(INSTALLED)
	$(BIN)/python -m pytest -m "not gpu"

# Does not use VENV, whose lock is for machines without a GPU. docs/gpu.md says what each test proves.
test-gpu: export LLMZERO_GPU_REPORT ?= build/gpu_report.jsonl
test-gpu:
	$(GPU_PYTHON) -m pytest -m gpu -s -v tests/gpu

coverage: $(INSTALLED)
	$(BIN)/python -m pytest -q tests/search --cov=llmzero_ray.search --cov-fail-under=100

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(INSTALLED)
	$(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html"

wheel: $(INSTALLED)
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation

# Resolves requirements/local.in and the versions for GPUs again. Locked versions are kept unless local.in or
# pyproject.toml forbids them; `make lock UPGRADE=--upgrade` takes the newest.
lock:
	test -x build/uv/bin/uv || { $(PYTHON) -m venv build/uv && build/uv/bin/python -m pip -qq install $(UV); }
	cd requirements && ../build/uv/bin/uv pip compile local.in --quiet --output-file local.lock --excludes excludes.txt \
	    --overrides overrides.txt \
	    --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	    --no-annotate --no-config --system-certs --custom-compile-command "make lock" $(UPGRADE)
	build/uv/bin/uv pip compile pyproject.toml $(addprefix --extra ,gpu tasks report llm dev) --quiet \
	    --constraint deploy/constraints.txt --output-file requirements/gpu.txt --python-version 3.12 \
	    --python-platform x86_64-manylinux_2_28 --no-annotate --no-config --system-certs \
	    --custom-compile-command "make lock" $(UPGRADE)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find . -name __pycache__ -not -path "*/.venv/*" -prune -exec rm -rf {} +

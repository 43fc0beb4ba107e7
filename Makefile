# From a bare machine with Python 3.11+ and a C++20 compiler:
#   make demo    set-up, then plain SGLang, SGLang's NGRAM and agentspec on the same text-to-SQL work
#   make test    set-up, then every check and test that needs no GPU
PYTHON ?= python3
# The CPU build where an index offers one under this name.
TORCH ?= torch==2.13.0
SGLANG ?= sglang==0.5.23
TORCHVISION ?= torchvision==0.28.0

VENV := .venv
BIN := $(VENV)/bin
# Run tools from the environment, never the source tree beside them.
PY := $(CURDIR)/$(BIN)/python -P
CACHE := .cache
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# What the compiled engine is made from.
NATIVE := $(wildcard agentspec/native/*.cc agentspec/native/*.h) agentspec/native/CMakeLists.txt pyproject.toml# The editable install learns the packages when it is made.
PACKAGES := $(wildcard */__init__.py */*/__init__.py)

OLD_SGLANG := 0.5.17

.PHONY: demo test setup links lint types native-test model clean help

help:
	@sed -n '1,3p' Makefile

demo: setup
	$(BIN)/agentspec demo

test: setup lint types native-test $(CACHE)/sglang-$(OLD_SGLANG)
	$(PY) -m pytest

setup: $(VENV)/.installed links

links:
	@for folder in store integrations workflows evals; do ln -sfn ../$$folder agentspec/$$folder; done

$(VENV)/.python:
	@echo "[1/4] creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "agentspec needs Python 3.11 or newer, got %d.%d: set PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# SGLang and torchvision come last and without their dependencies: theirs are several GB of CUDA packages; the extra
# `cpu` names the ones that a CPU needs.
$(VENV)/.dependencies: $(VENV)/.python pyproject.toml
	@echo "[2/4] installing torch and what SGLang needs on a CPU (a minute or two)"
	@$(PIP) install $(TORCH)
	@$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print("\n".join(p["dependencies"] + [r for e in ("cpu", "redis", "dev") for r in p["optional-dependencies"][e]]))' > $(VENV)/requirements.txt
	@$(PIP) install -r $(VENV)/requirements.txt
	@echo "[3/4] installing SGLang"
	@$(PIP) install --no-deps $(SGLANG) $(TORCHVISION)
	@touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(NATIVE) $(PACKAGES)
	@echo "[4/4] building agentspec"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

# The engine without Python, under AddressSanitizer and UndefinedBehaviorSanitizer.
native-test: setup
	@$(BIN)/cmake -S agentspec/native -B build/native -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DCMAKE_BUILD_TYPE=RelWithDebInfo -DAGENTSPEC_BUILD_PYTHON=OFF -DAGENTSPEC_BUILD_TESTS=ON -DAGENTSPEC_SANITIZE=ON > /dev/null
	@$(BIN)/cmake --build build/native
	$(BIN)/ctest --test-dir build/native --output-on-failure --timeout 300

# The older release whose interfaces the contract tests read; it is unpacked, never imported.
$(CACHE)/sglang-$(OLD_SGLANG): | $(VENV)/.dependencies
	@mkdir -p $(CACHE)
	@$(PIP) download --no-deps --dest $(CACHE) sglang==$(OLD_SGLANG)
	@$(BIN)/python -m zipfile -e $(CACHE)/sglang-$(OLD_SGLANG)-*.whl $@.part && mv $@.part $@

model: setup
	$(PY) -m agentspec.evals.train_tiny_sql --out evals/models/tiny-sql

clean:
	rm -rf $(VENV) $(CACHE) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

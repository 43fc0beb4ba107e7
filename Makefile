# From a bare machine with Python 3.11+ and a C++20 compiler:
#   make demo      set-up, then plain SGLang, SGLang's NGRAM and agentspec on the same text-to-SQL work
#   make test      set-up, then format, lint, types, unit tests, native tests and a few tests on servers: under 8 minutes on two cores
#   make test-all  every test that needs no GPU: also all servers, sanitizers, packaging, the report in a browser,
#                  Prometheus, another release of SGLang; as root it installs Chromium and Prometheus with apt-get
#   make rare      the tests that .ci/run leaves out until what they test changes; docs/contributing.md has more
#   make format    formats the Python and C++ sources
PYTHON ?= python3
# The CPU build where an index offers one under this name.
TORCH ?= torch==2.13.0
SGLANG ?= sglang==0.5.23
TORCHVISION ?= torchvision==0.28.0

VENV := .venv
BIN := $(VENV)/bin
# Run tools from the environment, never the source tree beside them.
PY := $(CURDIR)/$(BIN)/python -P
# INSTALL PYTHON ARGUMENTS: with uv where it is there, else with pip.
INSTALL := $(BIN)/python .ci/install.py
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := demo
include .ci/environments.mk

# More releases whose sources the contract tests read; users run them in SGLang's images.
NEEDS_other_release += $(addprefix $(CACHE)/sglang-,0.5.18 0.5.19 0.5.21 0.5.22)

# What the compiled engine is made from.
NATIVE := pyproject.toml $(shell find agentspec integrations -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)
# The editable install learns the packages when it is made.
PACKAGES := $(shell find agentspec store integrations workflows evals -name __init__.py)

# Processes that share the tests: most of their time they wait for a server that starts, on one core.
TEST_WORKERS ?= 2

# Tests that `make test` leaves to `make test-all`, by the markers of pyproject.toml. A marker, not a name, makes the choice.
REST := server or other_release or agents or frameworks or arctic or prometheus or packaging or deployment
QUICK := smoke or not (browser or real_model or $(REST))

# Those that `make test-all` skips: none, unless it is told.
SKIP ?=
PASSED := $(filter-out $(SKIP),$(RARE))

CCACHE := $(shell command -v ccache)
ifneq ($(CCACHE),)
export CMAKE_CXX_COMPILER_LAUNCHER := $(CCACHE)
endif

.PHONY: demo test test-all rare setup arctic router deployment agents openhands openhands-if-possible coding-agents frameworks \
	old-sglang links gpu-replica gpu-archives \
	format lint types native-test native-sanitizers chromium prometheus fuzz real-models clean help

help:
	@sed -n '1,/^PYTHON/p' Makefile | grep '^#'

demo: setup
	$(BIN)/agentspec demo

test: setup
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint types native-test
	$(PY) -m pytest -m "$(QUICK)" --durations=15 -n $(TEST_WORKERS) --dist loadgroup

# Two at a time: one compiles while another downloads. One session runs all tests but those in a browser, so that each
# server starts once; playwright's event loop would disturb other tests.
test-all: setup
	@$(MAKE) --no-print-directory -j2 --output-sync=line native-sanitizers lint types $(PASSED:%=needs-%)
	$(PY) -m pytest -m "not browser and not real_model$(SKIP:%= and not %)" --durations=25 -n $(TEST_WORKERS) --dist loadgroup
	$(if $(filter browser,$(PASSED)),$(PY) -m pytest -m browser)
	@$(PY) .ci/rare.py passed $(PASSED)

# Open models in .cache/models, 5 GB, and the tests that serve one of them: for every night rather than for every change.
real-models: setup
	$(PY) -m agentspec.evals.real_models 0.5b 1.5b
	$(PY) -m pytest -m real_model

# The tests of those of RARE whose files have changed, or of one of them: make rare-arctic. What passes is noted in
# .ci/passed.json, which belongs to the change.
rare: setup
	@$(MAKE) --no-print-directory setup $(addprefix rare-,$(shell $(PYTHON) .ci/rare.py due))

rare-%: setup needs-%
	$(PY) -m pytest -m $*
	@$(PY) .ci/rare.py passed $*

setup: $(VENV)/.installed links

links:
	@for folder in store integrations workflows evals; do ln -sfn ../$$folder agentspec/$$folder; done

$(VENV)/.python:
	@echo "[1/4] creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "agentspec needs Python 3.11 or newer, got %d.%d: set PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install uv || echo "uv cannot be installed here: pip does its work, and takes longer"
	@touch $@

# SGLang and torchvision come last and without their dependencies: theirs are several GB of CUDA packages; the extra
# `cpu` names the ones that a CPU needs.
$(VENV)/.dependencies: $(VENV)/.python pyproject.toml
	@echo "[2/4] installing torch and what SGLang needs on a CPU (a minute or two)"
	@$(INSTALL) $(BIN)/python $(TORCH)
	@$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print("\n".join(p["dependencies"] + [r for e in ("cpu", "redis", "encryption", "workflows", "dev") for r in p["optional-dependencies"][e]]))' > $(VENV)/requirements.txt
	@$(INSTALL) $(BIN)/python -r $(VENV)/requirements.txt
	@echo "[3/4] installing SGLang"
	@$(INSTALL) $(BIN)/python --no-deps $(SGLANG) $(TORCHVISION)
	@touch $@

# A distribution named agentspec, which ours is not, must not share the folder.
$(VENV)/.installed: $(VENV)/.dependencies $(NATIVE) $(PACKAGES)
	@echo "[4/4] building agentspec"
	@$(PIP) uninstall --yes agentspec 2> /dev/null
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(INSTALL) $(BIN)/python --no-build-isolation --no-deps -e .
	@touch $@

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.cc' '*.h' | xargs $(BIN)/clang-format -i

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	git ls-files '*.cc' '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

types: setup
	$(BIN)/mypy

# The native code without Python. native-sanitizers: all tests under AddressSanitizer and UndefinedBehaviorSanitizer, those
# with threads under ThreadSanitizer too.
native-test: build/native-plain.tested
native-sanitizers: build/native-address.tested build/native-thread.tested

# Never made, so that ctest always runs; ninja compiles what has changed.
build/native-%.tested: setup
	@$(BIN)/cmake -S agentspec/native -B build/native-$* -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DCMAKE_BUILD_TYPE=RelWithDebInfo -DAGENTSPEC_BUILD_PYTHON=OFF -DAGENTSPEC_BUILD_TESTS=ON \
		-DAGENTSPEC_SANITIZE=$(filter-out plain,$*) > /dev/null
	@$(BIN)/cmake --build build/native-$*
	@$(BIN)/ctest --test-dir build/native-$* --output-on-failure --timeout 300

# mini-swe-agent and OpenHands end to end, against plain SGLang and agentspec in turns: an hour or more on two cores.
coding-agents: $(AGENTS)/.installed $(OPENHANDS)/.installed setup
	$(PY) -m agentspec.evals.run.coding_agents

# Random bytes against the segment loader and the engine's operations; needs clang. FUZZ_SECONDS for each target.
FUZZ_SECONDS ?= 60
fuzz: setup
	@$(BIN)/cmake -S agentspec/native -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_CXX_COMPILER=clang++ \
		-DCMAKE_BUILD_TYPE=RelWithDebInfo -DAGENTSPEC_BUILD_PYTHON=OFF -DAGENTSPEC_BUILD_FUZZERS=ON -DAGENTSPEC_SANITIZE=address > /dev/null
	@$(BIN)/cmake --build build/fuzz
	@for target in segment_fuzz segment_build_fuzz engine_fuzz; do \
		mkdir -p build/fuzz/$$target.inputs && build/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 build/fuzz/$$target.inputs || exit 1; done

# An environment like that of a lent GPU host, 6 GB, without a GPU: what the host gets is built and tried in it.
# gpu-archives makes what the host gets: make gpu-archives TRACES=FOLDER CONFIGS=FOLDER
GPU_REPLICA := .venv-gpu-replica
gpu-replica: $(GPU_REPLICA)/.installed

$(GPU_REPLICA)/.installed: evals/gpu/replica/requirements.txt $(VENV)/.python
	@echo "installing a replica of the GPU host into $(GPU_REPLICA)"
	@for python in "$(PYTHON312)" python3.12 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.12*/bin/python; do \
		"$$python" -c 'import ssl, sys; sys.exit(sys.version_info[:2] != (3, 12))' 2> /dev/null || continue; \
		"$$python" -m venv --clear $(GPU_REPLICA) && \
		$(GPU_REPLICA)/bin/python -m pip --disable-pip-version-check --quiet install -r $< && touch $@ && exit 0; \
		exit 1; \
	done; \
	echo "the replica needs Python 3.12, and there is none in the PATH: make gpu-replica PYTHON312=/path/to/python3.12"; exit 1

gpu-archives: setup $(GPU_REPLICA)/.installed
	$(PY) -m agentspec.evals.gpu --prepare --traces "$(TRACES)" --configs "$(CONFIGS)" --replica $(GPU_REPLICA)/bin/python
	$(PY) -m agentspec.evals.gpu --check --replica $(GPU_REPLICA)/bin/python

clean:
	rm -rf $(VENV) $(AGENTS) $(OPENHANDS) $(FRAMEWORKS) $(DEPLOYMENT) $(OLD) $(CACHE) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

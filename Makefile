# From a bare machine with Python 3.11+ and a C++20 compiler:
#   make demo      set-up, then plain SGLang, SGLang's NGRAM and agentspec on the same text-to-SQL work
#   make test      set-up, then format, lint, types, unit tests, native tests and a few tests on servers: 5 minutes on two cores
#   make test-all  every test that needs no GPU: also all servers, sanitizers, packaging, the report in a browser,
#                  Prometheus, another release of SGLang; as root it installs Chromium and Prometheus with apt-get
#   make rare      the tests that .ci/run leaves out until what they test changes; docs/contributing.md has more
#   make format    formats the Python and C++ sources
PYTHON ?= python3
# The CPU build where an index offers one under this name.
TORCH ?= torch==2.13.0
SGLANG ?= sglang==0.5.23
TORCHVISION ?= torchvision==0.28.0
ARCTIC ?= arctic-inference==0.3.0

VENV := .venv
BIN := $(VENV)/bin
# Run tools from the environment, never the source tree beside them.
PY := $(CURDIR)/$(BIN)/python -P
AGENTS := .venv-agents
OPENHANDS := .venv-openhands
FRAMEWORKS := .venv-frameworks
OLD := .venv-old-sglang
CACHE := .cache
# INSTALL PYTHON ARGUMENTS: with uv where it is there, else with pip.
INSTALL := $(BIN)/python .ci/install.py
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Arguments of a Python that prints what an extra asks for.
requirements_of = -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"]))'

# What the compiled engine is made from.
NATIVE := pyproject.toml $(shell find agentspec integrations -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)
# The editable install learns the packages when it is made.
PACKAGES := $(shell find agentspec store integrations workflows evals -name __init__.py)

# The oldest release that agentspec supports, and the versions of these two packages that it names.
OLD_SGLANG := 0.5.17
OLD_PACKAGES := transformers==5.12.1 tokenizers==0.22.2
# Releases whose sources the contract tests read.
READ_SGLANG := $(OLD_SGLANG) 0.5.20
# Processes that share the tests: most of their time they wait for a server that starts, on one core.
TEST_WORKERS ?= 2

# Tests that `make test` leaves to `make test-all`, by the markers of pyproject.toml. A marker, not a name, makes the choice.
REST := server or other_release or agents or frameworks or arctic or prometheus or packaging
QUICK := smoke or not (browser or $(REST))

# Of these, the ones that .ci/run skips while what they test has not changed, and what each of them needs.
RARE := agents arctic browser frameworks other_release packaging prometheus
NEEDS_agents := $(AGENTS)/.installed openhands-if-possible
NEEDS_arctic := $(VENV)/.arctic
NEEDS_browser := chromium $(VENV)/.browser
NEEDS_frameworks := $(FRAMEWORKS)/.installed
NEEDS_other_release := old-sglang $(READ_SGLANG:%=$(CACHE)/sglang-%)
NEEDS_packaging :=
NEEDS_prometheus := prometheus
# Those that `make test-all` skips: none, unless it is told.
SKIP ?=
PASSED := $(filter-out $(SKIP),$(RARE))

CCACHE := $(shell command -v ccache)
ifneq ($(CCACHE),)
export CMAKE_CXX_COMPILER_LAUNCHER := $(CCACHE)
endif

.PHONY: demo test test-all rare setup arctic agents openhands openhands-if-possible coding-agents frameworks \
	old-sglang links \
	format lint types native-test native-sanitizers chromium prometheus fuzz model staged-model drafters acceptance clean help

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
	$(PY) -m pytest -m "not browser$(SKIP:%= and not %)" --durations=25 -n $(TEST_WORKERS) --dist loadgroup
	$(if $(filter browser,$(PASSED)),$(PY) -m pytest -m browser)
	@$(PY) .ci/rare.py passed $(PASSED)

# The tests of those of RARE whose files have changed, or of one of them: make rare-arctic. What passes is noted in
# .ci/passed.json, which belongs to the change.
rare: setup
	@$(MAKE) --no-print-directory setup $(addprefix rare-,$(shell $(PYTHON) .ci/rare.py due))

rare-%: setup needs-%
	$(PY) -m pytest -m $*
	@$(PY) .ci/rare.py passed $*

.SECONDEXPANSION:
needs-%: $$(NEEDS_$$*) ;

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

# The peer whose drafts evals put beside ours, built from its sources.
arctic: $(VENV)/.arctic

$(VENV)/.arctic: $(VENV)/.dependencies
	@echo "building ArcticInference"
	@$(BIN)/python $(call requirements_of,arctic) > $(VENV)/arctic.txt
	@$(INSTALL) $(BIN)/python -r $(VENV)/arctic.txt
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(INSTALL) $(BIN)/python --no-build-isolation --no-deps $(ARCTIC)
	@touch $@

# Coding agents in an environment of their own; workflows/swe runs them from there.
agents: $(AGENTS)/.installed

$(AGENTS)/.installed: pyproject.toml | $(VENV)/.python
	@echo "installing coding agents into $(AGENTS)"
	@$(PYTHON) -m venv --clear --without-pip $(AGENTS)
	@$(PYTHON) $(call requirements_of,swe) > $(AGENTS)/requirements.txt
	@$(INSTALL) $(AGENTS)/bin/python -r $(AGENTS)/requirements.txt
	@touch $@

# OpenHands wants a newer Python than this project does.
openhands: $(OPENHANDS)/.installed

$(OPENHANDS)/.installed: pyproject.toml | $(VENV)/.python
	@for python in "$(PYTHON312)" python3.13 python3.12 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[23]*/bin/python; do \
		"$$python" -c 'import ssl, sys; sys.exit(sys.version_info < (3, 12))' 2> /dev/null || continue; \
		echo "installing OpenHands into $(OPENHANDS)"; \
		"$$python" -m venv --clear --without-pip $(OPENHANDS) && \
		"$$python" $(call requirements_of,openhands) > $(OPENHANDS)/requirements.txt && \
		$(INSTALL) $(OPENHANDS)/bin/python -r $(OPENHANDS)/requirements.txt && \
		touch $@ && exit 0; \
		rm -rf $(OPENHANDS); exit 1; \
	done; \
	echo "OpenHands needs Python 3.12 or newer, and there is none in the PATH: make openhands PYTHON312=/path/to/python3.12"; exit 1

openhands-if-possible:
	@$(MAKE) --no-print-directory openhands || echo "the test that runs OpenHands is skipped"

# Agent frameworks whose recipes in docs/agents/frameworks.md the tests run. They want other releases of their clients than
# coding agents do.
frameworks: $(FRAMEWORKS)/.installed

$(FRAMEWORKS)/.installed: pyproject.toml | $(VENV)/.python
	@echo "installing agent frameworks into $(FRAMEWORKS)"
	@$(PYTHON) -m venv --clear --without-pip $(FRAMEWORKS)
	@$(PYTHON) $(call requirements_of,frameworks) > $(FRAMEWORKS)/requirements.txt
	@$(INSTALL) $(FRAMEWORKS)/bin/python -r $(FRAMEWORKS)/requirements.txt
	@touch $@

# The report's page is tested in a browser: Chromium from the system, its driver from the extra.
$(VENV)/.browser: $(VENV)/.dependencies
	@$(BIN)/python $(call requirements_of,browser) > $(VENV)/browser.txt
	@$(INSTALL) $(BIN)/python -r $(VENV)/browser.txt
	@touch $@

# Programs of the system that tests need: installed where that is allowed, else tests are skipped, or fail where CI is set.
# One at a time, because apt-get does not share its files.
chromium: NAMES := chromium chromium-browser google-chrome google-chrome-stable
prometheus: NAMES := prometheus
chromium prometheus:
	@for name in $(NAMES); do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "installing $@"; \
		exec 9< Makefile && flock 9 && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $@ > /dev/null && exit 0; \
	fi; \
	echo "there is no $@ in the PATH and it could not be installed: tests that need it are skipped, or fail where CI is set." \
		"Install it, for example with: sudo apt-get install $@"

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

# The releases whose interfaces the contract tests read: unpacked there, never imported.
$(CACHE)/sglang-%: | $(VENV)/.dependencies
	@mkdir -p $(CACHE)
	@$(PIP) download --no-deps --dest $(CACHE) sglang==$*
	@$(BIN)/python -m zipfile -e $(CACHE)/sglang-$*-*.whl $@.part && mv $@.part $@

# An environment in which servers of the oldest release start. It holds that release and the two packages that the
# newer one needs in other versions. Every other package, agentspec and its compiled engine included, comes from
# $(VENV): a .pth file adds that folder behind this one. So nothing large is downloaded or kept twice, and both
# environments run the same agentspec. Where a distribution is in both folders Python reads the metadata and the entry
# points of the first alone; agentspec is in one of them only.
old-sglang: $(OLD)/.installed

$(OLD)/.installed: $(VENV)/.python | $(VENV)/.installed $(CACHE)/sglang-$(OLD_SGLANG)
	@echo "installing SGLang $(OLD_SGLANG) into $(OLD)"
	@$(BIN)/python -m venv --clear --without-pip $(OLD)
	@$(INSTALL) $(OLD)/bin/python --no-deps $(CACHE)/sglang-$(OLD_SGLANG)-*.whl $(OLD_PACKAGES)
	@$(BIN)/python -c 'import sys, sysconfig; print(f"import site; site.addsitedir({sysconfig.get_path(sys.argv[1])!r})")' purelib \
		> "$$($(OLD)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
	@touch $@

model: setup
	$(PY) -m agentspec.evals.research.train_tiny_sql --out evals/models/tiny-sql
	@$(MAKE) --no-print-directory drafters
	@$(MAKE) --no-print-directory acceptance

# The small model of the staged agents: hours of training. It goes on from build/tiny-sql-staged if it was stopped.
staged-model: setup
	$(PY) -m agentspec.evals.research.train_tiny_sql_staged --work build/tiny-sql-staged --out evals/models/tiny-sql-staged

# What can draft for the model that is there.
drafters: setup
	$(PY) -m agentspec.evals.research.train_drafters --target evals/models/tiny-sql \
		--standalone evals/models/tiny-sql-draft --eagle3 evals/models/tiny-sql-eagle3

# What predicts which of the drafters' tokens will be accepted; all that were trained stay in build/acceptance-heads.
acceptance: setup
	$(PY) -m agentspec.evals.research.train_acceptance --target evals/models/tiny-sql \
		--standalone evals/models/tiny-sql-draft --eagle3 evals/models/tiny-sql-eagle3 --grid build/acceptance-heads

clean:
	rm -rf $(VENV) $(AGENTS) $(OPENHANDS) $(FRAMEWORKS) $(OLD) $(CACHE) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

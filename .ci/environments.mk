# What tests need beyond .venv, by the markers of pyproject.toml. When this file changes, all rare tests are due.
ARCTIC ?= arctic-inference==0.3.0
AGENTS := .venv-agents
OPENHANDS := .venv-openhands
FRAMEWORKS := .venv-frameworks
DEPLOYMENT := .venv-deployment
OLD := .venv-old-sglang
CACHE := .cache

# Arguments of a Python that prints what an extra asks for.
requirements_of = -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"]))'

# The oldest release that agentspec supports, and the versions of these two packages that it names.
OLD_SGLANG := 0.5.17
OLD_PACKAGES := transformers==5.12.1 tokenizers==0.22.2
# Releases whose sources the contract tests read.
READ_SGLANG := $(OLD_SGLANG) 0.5.20

# The markers whose tests .ci/run skips while what they test has not changed, and what each of them needs.
RARE := agents arctic browser deployment frameworks other_release packaging prometheus router
NEEDS_agents := $(AGENTS)/.installed openhands-if-possible
NEEDS_arctic := $(VENV)/.arctic
NEEDS_browser := chromium $(VENV)/.browser
NEEDS_deployment := deployment
NEEDS_frameworks := $(FRAMEWORKS)/.installed
NEEDS_other_release := old-sglang $(READ_SGLANG:%=$(CACHE)/sglang-%)
NEEDS_packaging :=
NEEDS_prometheus := prometheus
NEEDS_router := router

.SECONDEXPANSION:
needs-%: $$(NEEDS_$$*) ;

# The peer whose drafts evals put beside ours, built from its sources.
arctic: $(VENV)/.arctic

$(VENV)/.arctic: $(VENV)/.dependencies
	@echo "building ArcticInference"
	@$(BIN)/python $(call requirements_of,arctic) > $(VENV)/arctic.txt
	@$(INSTALL) $(BIN)/python -r $(VENV)/arctic.txt
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(INSTALL) $(BIN)/python --no-build-isolation --no-deps $(ARCTIC)
	@touch $@

# The router smg needs no more than servers do.
router: $(VENV)/.router

$(VENV)/.router: $(VENV)/.dependencies
	@echo "installing the router smg"
	@$(BIN)/python $(call requirements_of,router) > $(VENV)/router.txt
	@$(INSTALL) $(BIN)/python -r $(VENV)/router.txt
	@touch $@

# What checks the files of integrations/docker and integrations/kubernetes, in an environment of its own: schemas fill
# 200 MB.
deployment: $(DEPLOYMENT)/.installed

$(DEPLOYMENT)/.installed: pyproject.toml | $(VENV)/.python
	@echo "installing checks of deployments into $(DEPLOYMENT)"
	@$(PYTHON) -m venv --clear --without-pip $(DEPLOYMENT)
	@$(PYTHON) $(call requirements_of,deployment) > $(DEPLOYMENT)/requirements.txt
	@$(INSTALL) $(DEPLOYMENT)/bin/python -r $(DEPLOYMENT)/requirements.txt
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

# The releases whose interfaces the contract tests read: unpacked there, never imported. make keeps them.
.PRECIOUS: $(CACHE)/sglang-%
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

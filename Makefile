# The one task runner. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PYTEST := $(BIN)/pytest --tb=short
CLUSTER ?= demo

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}'

# ---------------------------------------------------------------- environment

.venv/.tools: requirements/bootstrap.txt
	@test -x $(BIN)/python || { echo "making .venv with $(PYTHON)"; $(PYTHON) -m venv .venv; }
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r $<
	@touch $@

.venv/.cli: requirements/cli.txt .venv/.tools
	@echo "installing what the command line needs"
	@$(BIN)/uv pip install -q --require-hashes -r $<
	@$(BIN)/uv pip install -q --no-deps --no-build-isolation -e .
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.cli
	@echo "installing what the tests need"
	@$(BIN)/uv pip install -q --require-hashes -r $<
	@touch $@

.PHONY: setup
setup: .venv/.dev ## Make .venv with everything that development needs

.PHONY: lock
lock: .venv/.dev ## Resolve the requirements anew (hashes, no index address)
	@hack/lock

# ---------------------------------------------------------------- the main job

.PHONY: demo
demo: .venv/.cli ## Run examples/support-triage here; a second process pauses and steers it
	@hack/demo

.PHONY: demo-cluster
demo-cluster: .venv/.dev ## The same on a real cluster: install by Helm, apply, pause, steer, finish, abort
	@hack/demo-cluster $(CLUSTER)

.PHONY: demo-desk
demo-desk: .venv/.cli ## A guarded agent with a model server and an MCP server (CLUSTER=name: on a cluster that is up)
	@hack/demo-desk $(if $(filter command line,$(origin CLUSTER)),$(CLUSTER))

.PHONY: cluster-up
cluster-up: .venv/.tools ## Start a real one-node cluster (CLUSTER=name)
	@hack/cluster/install-deps
	@hack/cluster/build node
	@hack/cluster/cluster up --level node --name $(CLUSTER)

.PHONY: cluster-down
cluster-down: ## Stop it and remove all of it
	@hack/cluster/cluster down --name $(CLUSTER)

.PHONY: images
images: .venv/.tools ## Build the operator and runner images
	@hack/images/build all

# ---------------------------------------------------------------- checks

.PHONY: test
test: ## Everything, real pods included; all levels, also where one fails
	@MAKE='$(MAKE)' hack/test

.PHONY: test-fast
test-fast: lint verify ## What needs no cluster and no patience
	@hack/cluster/install-deps redis
	@HYPOTHESIS_PROFILE=quick $(PYTEST) tests/unit tests/contract tests/golden -n 2 --dist loadfile -m "not slow"

.PHONY: lint
lint: .venv/.dev ## ruff, mypy, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python hack/check_functions.py
	@$(BIN)/python hack/check_spec.py

.PHONY: generate
generate: .venv/.dev ## Write CRDs, policies, chart copies and reference pages from the models
	@hack/generate

.PHONY: verify
verify: .venv/.dev ## Regenerate in a copy and compare
	@hack/generate --check

.PHONY: test-unit
test-unit: .venv/.dev ## Pure functions, ports, command line
	@hack/cluster/install-deps redis
	@$(PYTEST) tests/unit tests/contract tests/golden tests/faults tests/model -n 2 --dist loadfile

.PHONY: test-integration
test-integration: .venv/.dev ## On a real control plane
	@hack/cluster/install-deps
	@hack/cluster/build control-plane
	@$(PYTEST) tests/integration --timeout 300

.PHONY: test-e2e
test-e2e: .venv/.dev ## On a real node, installed by Helm (PILOTHOUSE_KUBECONFIG=… for your own cluster)
	@hack/cluster/install-deps
	@hack/cluster/build node
	@hack/images/build all >/dev/null
	@$(PYTEST) tests/e2e --timeout 600

.PHONY: chaos
chaos: .venv/.dev ## Kill everything at random: is anything lost or done twice? (LEVEL=plane|node KILLS=500 SEED=… ONLY=run)
	@hack/cluster/install-deps
	@hack/cluster/build $(if $(filter plane,$(LEVEL)),control-plane,node)
	@KILLS='$(KILLS)' SEED='$(SEED)' ONLY='$(ONLY)' hack/chaos $(or $(LEVEL),all)

.PHONY: faults
faults: .venv/.dev ## Stop the runner at each point between two facts (SEED=5 ONLY=resume AT="resume/x 12:kill,40:late")
	@PYTHONPATH=tests $(BIN)/python -m faults.campaign $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(AT)

.PHONY: model
model: .venv/.dev ## Check the protocol of fence, effects, approvals and abort far beyond make test (SECONDS_EACH=120)
	@cd tests && ../$(BIN)/python -m model --seconds $(or $(SECONDS_EACH),120)

.PHONY: test-approvals
test-approvals: .venv/.dev ## So many runs wait without a pod, then all end within a minute (RUNS=100)
	@hack/cluster/install-deps
	@hack/cluster/build node
	@RUNS=$(or $(RUNS),100) $(PYTEST) tests/e2e/test_approvals.py -s

.PHONY: mutate
mutate: .venv/.dev ## Change the engine's decisions one at a time: does a test notice? (MODULES="account batch")
	@$(BIN)/python hack/mutation/mutate.py $(MODULES)

# ---------------------------------------------------------------- figures

.PHONY: bench-start
bench-start: .venv/.dev ## Runner start to first model request, beside `import litellm`
	@hack/cluster/install-deps redis
	@$(BIN)/python hack/bench/start.py

.PHONY: bench-engine
bench-engine: .venv/.dev ## Engine overhead per turn beside LangGraph, pydantic-ai and openai-agents
	@hack/cluster/install-deps redis
	@$(BIN)/python hack/bench/engine.py

.PHONY: bench-recovery
bench-recovery: .venv/.dev ## From the death of a runner to the next turn, beside a pod's start (SAMPLES=36)
	@hack/cluster/install-deps
	@hack/cluster/build node
	@PYTHONPATH=tests $(BIN)/python hack/bench/recovery.py --samples $(or $(SAMPLES),36)

.PHONY: bench-control
bench-control: .venv/.dev ## Patch to landing, and what 1,000 watched runs cost the operator (PART=landing|watching)
	@hack/cluster/install-deps
	@hack/cluster/build control-plane
	@PYTHONPATH=tests $(BIN)/python hack/bench/control.py $(if $(PART),--part $(PART))

.PHONY: bench-streams
bench-streams: .venv/.dev ## What 2,000 idle viewers cost the operator API
	@hack/cluster/install-deps redis
	@PYTHONPATH=tests $(BIN)/python hack/bench/event_streams.py

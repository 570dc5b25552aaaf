# WavePP: `make serve` runs the server, `make test` the tests. Everything lives in .venv.

PYTHON ?= python3
# Pinned: without a GPU, newer releases would bring gigabytes of CUDA libraries along.
TORCH ?= torch==2.13.0
EXTRAS ?= dev

MODEL ?= demo
PP ?= 2
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/installed
FOLDERS := server engine cache admission scheduler models client simulator bench

.DEFAULT_GOAL := help
.PHONY: help install serve demo bench load simulate reproduce test check format clean

help:
	@echo "make serve    serve $(MODEL) on $(PP) stages at http://$(HOST):$(PORT) (MODEL= PP= PORT= ARGS=)"
	@echo "make demo     prefill a prompt, pull its state into a decode process, print the continuation"
	@echo "make test     all tests"
	@echo "make bench    prefill throughput beside transformers' own"
	@echo "make load     load on the server at $(HOST):$(PORT) (ARGS=\"--workload mixed --scale 64 -c 4\")"
	@echo "make simulate attack a simulated group with random orders of events (ARGS=\"--minutes 5\")"
	@echo "make reproduce  the paper's tables, simulated: docs/reproduction.md and its plots"
	@echo "make check    ruff and basedpyright"
	@echo "make install  the environment, in $(VENV) (the others do this by themselves)"

install: $(STAMP)

$(STAMP): pyproject.toml
	@echo "== creating $(VENV) =="
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --upgrade pip
	@echo "== installing $(TORCH) (the largest part) =="
	$(RUN)/python -m pip install "$(TORCH)"
	@echo "== installing wavepp =="
	$(RUN)/python -m pip install -e ".[$(EXTRAS)]"
	@# The type checker cannot follow an editable install, but it can follow links.
	@mkdir -p $(VENV)/src/wavepp
	@for folder in $(FOLDERS); do ln -sfn ../../../$$folder $(VENV)/src/wavepp/$$folder; done
	@touch $@

serve: $(STAMP)
	$(RUN)/wavepp serve $(MODEL) --pp $(PP) --host $(HOST) --port $(PORT) $(ARGS)

demo: $(STAMP)
	$(RUN)/python -m wavepp.server.demo --model $(MODEL) --pp $(PP) $(ARGS)

bench: $(STAMP)
	$(RUN)/python -m wavepp.bench.prefill --model $(MODEL) $(ARGS)

load: ARGS := $(or $(ARGS),--scale 64 -c 4)
load: $(STAMP)
	$(RUN)/wavepp bench --url http://$(HOST):$(PORT) $(ARGS)

simulate: ARGS := $(or $(ARGS),--minutes 5)
simulate: $(STAMP)
	$(RUN)/python -m wavepp.simulator.campaign $(ARGS)

reproduce: $(STAMP)
	$(RUN)/python -m wavepp.bench.reproduce $(ARGS)

test: $(STAMP)
	$(RUN)/python -m pytest $(ARGS)

check: $(STAMP)
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/basedpyright

format: $(STAMP)
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

clean:
	rm -rf $(VENV) *.egg-info build .pytest_cache .ruff_cache .hypothesis

# The same commands by hand and in CI. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kubetide
export CARGO_TARGET_DIR ?= $(CACHE)/target

# Arguments for `make demo`: make demo ARGS="--seed 7 --output json"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check servers bench torture clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## watch kubetide at work on a simulated cluster; needs only cargo and a C compiler (ARGS="…" for its options)
	@tests/env/prerequisites cargo cc
	@echo "building kubetide, quickly rather than for speed (cold: about 2 minutes on 2 cores, then seconds)"
	@cargo build --profile demo --no-default-features --package kubetide --bin kubetide
	@"$$CARGO_TARGET_DIR/demo/kubetide" demo $(ARGS)

test: ## everything: format, lints, unit, scripted and real-server tests, docs (cold: less than 30 minutes on 2 cores, warm 13)
	@tests/env/prerequisites cargo cc make perl python3 unshare
	@tests/run all

check: ## the quick half of test: format, lints, unit and scripted tests
	@tests/env/prerequisites cargo cc make perl python3 unshare
	@tests/run quick

servers: ## a real kube-apiserver, Kafka and nats-server on loopback to play with, until Ctrl-C
	@tests/env/prerequisites cargo cc
	@tests/env/get-servers >/dev/null
	@cargo build --package kubetide-test-env --bin playground
	@"$$CARGO_TARGET_DIR/debug/playground"

bench: ## the figures of docs/benchmarks.md, on this machine
	@tests/env/prerequisites cargo cc make perl
	@tests/env/get-servers >/dev/null
	@cargo bench --package kubetide --bench stages --bench store --bench end_to_end --bench sinks

torture: ## the tests of faults, kills, damage, outages and real servers with their full counts (about an hour and a half)
	@tests/env/prerequisites cargo cc make perl unshare
	@tests/run torture

clean: ## remove what this project has cached: builds and servers
	@echo "removing $(CACHE) (cargo's builds, the built servers); cargo's, Go's and Maven's own caches stay"
	@rm -rf "$(CACHE)"

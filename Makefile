# pg_lanes: build, install, demo, test. PG_CONFIG chooses the server (default: the newest installed one).
#
#   make build         the extension's library and SQL script
#   make install       puts them and the older versions' scripts where the server looks for them (root, or sudo -n);
#                      DESTDIR is honoured
#   make installcheck  golden SQL tests of the installed extension, and specs of several sessions
#   make test          installs what is missing, builds, and runs all tests
#   make soak          everything at once under load and faults for SOAK_MINUTES (20), then the long forms of the proofs of
#                      each part, about as long again; SOAK_PARTS (whole core log lanes projections) says which of these
#   make demo          installs what is missing, builds, and shows a week of flights in three projections
#   make demo-stop     ends the demo and keeps its data
#   make demo-clean    removes the demo
#   make bench         measures everything against its goals, in less than 30 minutes, and writes the figures into the project;
#                      BENCH_ARGUMENTS="--quick" is over in 3, "--only NAME" measures a part, "--list" tells the names
#   make bench-growth  measures what an event costs as the log, shards, lanes, projections and keys grow; GROWTH_EVENTS
#                      (default 10 million), BENCH_ARGUMENTS="--only growth/keys"
#   make fuzz          what is read from outside, each part for FUZZ_SECONDS (default 60); FUZZ_TARGETS="requests cursors" chooses
#   make lint          formatting, clippy, shell scripts
#   make check-sql     pgspot and plpgsql_check over the extension's SQL
#   make docs          writes docs/SQL.md from the installed extension

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: all build install installcheck test soak soak-whole soak-core soak-log soak-lanes soak-projections bench bench-growth fuzz demo demo-stop demo-clean lint setup check-sql docs

ifdef PG_CONFIG
export PG_CONFIG
endif
export DESTDIR

# Asked when a recipe runs, since `setup` may have to install the server first.
FOUND_PG_CONFIG = $(shell scripts/find_pg_config)
PG_MAJOR = $(shell $(FOUND_PG_CONFIG) --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
EXTENSION_FEATURES = --no-default-features --features pg$(PG_MAJOR)

CONTROL := pg_ext/pg_lanes.control
VERSION := $(shell sed -nE "s/^default_version = '(.*)'/\1/p" $(CONTROL))
TARGET := $(or $(CARGO_TARGET_DIR),target)
LIBRARY := $(TARGET)/release/libpg_lanes.so
SCRIPT := $(TARGET)/release/pg_lanes--$(VERSION).sql
# Earlier versions as they were, and the steps from each to the next (sql/README.md).
OLD_SCRIPTS := $(sort $(wildcard sql/frozen/*.sql) $(wildcard sql/upgrade/*.sql))

all: build

setup:
	scripts/setup

build: $(SCRIPT)
	PGRX_PG_CONFIG_PATH=$(FOUND_PG_CONFIG) cargo build -p pg_lanes --release $(EXTENSION_FEATURES)

# The parts in the order of their numbers. psql must not run it: that is what CREATE EXTENSION is for.
$(SCRIPT): $(sort $(wildcard sql/install/*.sql)) Makefile
	mkdir -p $(@D)
	{ echo '\echo Use "CREATE EXTENSION pg_lanes" to load this file. \quit'; \
	  for part in $(filter %.sql,$^); do echo; cat $$part; done; } > $@

install: build
	scripts/install $(LIBRARY) $(CONTROL) $(SCRIPT) $(OLD_SCRIPTS)

installcheck:
	scripts/installcheck

demo: setup
	cargo build --release -p ingestd
	$(MAKE) --no-print-directory install
	scripts/demo start

demo-stop:
	scripts/demo stop

demo-clean:
	scripts/demo clean

# The end-to-end tests come last, so that the run ends with cargo's own closing lines. The demo's test runs the program
# that cargo builds for the tests, to save a release build. Seeds are the same in every run: what is new is looked for by
# `make soak` and `make fuzz`.
test: setup
	scripts/demo sweep
	scripts/cluster sweep
	$(MAKE) --no-print-directory install
	$(MAKE) --no-print-directory installcheck
	INGESTD=$(abspath $(TARGET))/debug/ingestd PROPTEST_RNG_SEED=1 SHUTTLE_RANDOM_SEED=1 cargo test --workspace --exclude pg_lanes

SOAK_MINUTES ?= 20
SOAK_PARTS ?= whole core log lanes projections

# All seeds are fresh and printed; the variable that is printed with one (SOAK_SEED=…, LOG_SEED=…) repeats it.
soak: setup install
	cargo build -p ingestd
	for part in $(SOAK_PARTS); do $(MAKE) --no-print-directory soak-$$part; done

soak-whole:
	SOAK_MINUTES=$(SOAK_MINUTES) cargo test -p e2e --test soak -- --nocapture

CORE_CASES ?= $$((1000 * $(SOAK_MINUTES)))

soak-core:
	PROPTEST_CASES=$(CORE_CASES) cargo test -p lanes_core --release
	for round in $$(seq 10); do cargo test -p ingestd --lib budget_model; done

# The parts run only the tests whose length the rounds decide; a round of the log is ten kills of the daemon, too.
LOG_ROUNDS ?= $(SOAK_MINUTES)
LOG_FILE ?= $(abspath testdata/flights-week.ndjson.gz)
LOG_KILLS ?= $(SOAK_MINUTES)

# LOG_FILE names a .gz of events that is imported while the daemon is killed LOG_KILLS times.
soak-log:
	LOG_ROUNDS=$(LOG_ROUNDS) cargo test -p ingestd --test log_proofs -- --nocapture model power_cuts flipped
	LOG_ROUNDS=$$((10 * $(LOG_ROUNDS))) cargo test -p e2e --test log_crash -- --nocapture
	LOG_FILE=$(LOG_FILE) LOG_KILLS=$(LOG_KILLS) cargo test -p e2e --test log_kills -- --nocapture

LANE_ROUNDS ?= $(shell echo $$((5 * $(SOAK_MINUTES))))

soak-lanes:
	LANE_ROUNDS=$(LANE_ROUNDS) LANE_SEED=$${LANE_SEED:-$$RANDOM} cargo test -p e2e --test lane_chaos each_event -- --nocapture

PROJECTION_ROUNDS ?= $(shell echo $$((2 * $(SOAK_MINUTES))))
PHASE_ROUNDS ?= $(shell echo $$(($(SOAK_MINUTES) / 2 + 1)))

soak-projections:
	PROJECTION_ROUNDS=$(PROJECTION_ROUNDS) cargo test -p e2e --test folding -- --nocapture
	PHASE_ROUNDS=$(PHASE_ROUNDS) cargo test -p e2e --test phases -- --nocapture
	LANES_LONG_TESTS=1 cargo test -p e2e --test projections

bench bench-growth: setup install
	scripts/cluster sweep
	if [[ $@ = bench && ( "$(BENCH_ARGUMENTS)" != *--only* || "$(BENCH_ARGUMENTS)" = *peers* ) ]]; then scripts/setup_peers; fi
	cargo build --release -p ingestd -p bench
	$(TARGET)/release/bench $(if $(filter bench-growth,$@),--growth --events $(GROWTH_EVENTS)) $(BENCH_ARGUMENTS)

GROWTH_EVENTS ?= 10000000

FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= requests definitions cursors settings files
FUZZ_FOLDER := $(abspath $(TARGET))/fuzz

# A stable toolchain will do, since no sanitizer is asked for: the code is safe Rust, with debug assertions. What is found is
# a file in fuzz/artifacts; new inputs are kept in the target's folder and used again. `cargo install` does nothing if the
# tool is there. Temporary files are in memory where the machine has that, since syncs cost nothing there.
fuzz: setup
	cargo install --quiet --locked --version 0.13.2 --root $(FUZZ_FOLDER)/tool cargo-fuzz
	export TMPDIR=$$(mktemp -d -p "$$(if [[ -w /dev/shm ]]; then echo /dev/shm; else echo /tmp; fi)"); \
	trap 'rm -rf "$$TMPDIR"' EXIT; \
	for target in $(FUZZ_TARGETS); do \
	  mkdir -p $(FUZZ_FOLDER)/corpus/$$target; \
	  PATH=$(FUZZ_FOLDER)/tool/bin:$$PATH cargo fuzz run --fuzz-dir fuzz --sanitizer none --target-dir $(FUZZ_FOLDER) $$target \
	    $(FUZZ_FOLDER)/corpus/$$target fuzz/seeds/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=1024 -max_len=8192 -print_final_stats=1; \
	done

lint:
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	PGRX_PG_CONFIG_PATH=$(FOUND_PG_CONFIG) cargo clippy --workspace --all-targets -- -D warnings
	for script in scripts/* .ci/run; do bash -n $$script; done
	if command -v shellcheck > /dev/null; then shellcheck scripts/* .ci/run; fi

check-sql: install
	scripts/check_sql $(SCRIPT)

docs: install
	scripts/sql_reference > docs/SQL.md.tmp
	mv docs/SQL.md.tmp docs/SQL.md

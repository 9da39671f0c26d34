# Everything a person needs; `make help` lists it. The work is done by cargo and by the scripts in
# .ci and docker, so each can be run by hand.

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick check counts compare-bytes crash decoding brokers failover endtxn fuzz nightly lifecycle identity streams package image stack systemd shop ui-test picture bench bench-delivery bench-memory compare faults faults-table

CARGO ?= cargo
# How many tests run at a time; most wait for a server most of the time, so that a core serves two of them.
THREADS ?= $(shell expr 2 \* $$(nproc))
# What the suites left out, one line each; printed last.
SKIPPED := $(CURDIR)/.servers/skipped
# What the suites print; what failed is printed again, last but one.
TESTED := $(CURDIR)/.servers/tested
# Has cargo run each test program through a script that says how long it and its tests took.
TIMED := --config 'target."cfg(all())".runner = "$(CURDIR)/.ci/timed"'

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 15

setup: ## install what is missing: compilers, PostgreSQL, Java, jars of Kafka and Debezium, PostgreSQL 18
	@.ci/setup

demo: ## orders from a private Postgres to an embedded broker; ARGS="--count 20000 --output json"
	@.ci/setup demo >&2
	@$(CARGO) run --profile demo --locked --no-default-features --features zstd,demo --quiet --bin postrider -- demo $(ARGS)

test: setup ## everything, on real PostgreSQL and real Kafka, with 10,000 simulated histories
	@mkdir -p .servers && rm -f $(SKIPPED) $(TESTED)
	@status=0; begun=$$(date +%s); \
	POSTRIDER_SKIPPED=$(SKIPPED) RUST_TEST_THREADS=$(THREADS) .ci/logged $(TESTED) \
	$(CARGO) test --locked --no-fail-fast --features failpoints,mutants $(TIMED) || status=$$?; \
	POSTRIDER_SKIPPED=$(SKIPPED) .ci/logged $(TESTED) \
	$(CARGO) test --locked --manifest-path tests/drivers/Cargo.toml \
	--target-dir $(or $(CARGO_TARGET_DIR),target)/drivers $(TIMED) || status=$$?; \
	.ci/times $(TESTED) $$(($$(date +%s) - begun)); \
	if [ $$status != 0 ]; then .ci/failures $(TESTED); fi; \
	if [ -s $(SKIPPED) ]; then sort -u $(SKIPPED); else echo "nothing was skipped"; fi; \
	exit $$status

quick: ## what needs no server and takes less than a minute: unit and property tests, 1,000 simulated histories, mutants, the command line
	@$(CARGO) test --locked --quiet --features failpoints,mutants --lib --test cli --test tidy
	@POSTRIDER_SIM_SEEDS=1000 $(CARGO) test --locked --quiet --features failpoints,mutants --test core session::

check: ## format, lints, house rules, documentation, what a row costs the core, docker
	@.ci/setup
	@mkdir -p .servers && rm -f $(SKIPPED)
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path tests/drivers/Cargo.toml
	$(CARGO) clippy --locked --workspace --quiet -- --deny warnings
	$(CARGO) clippy --locked --workspace --all-targets --features faults,mutants --quiet -- --deny warnings
	$(CARGO) check --locked --no-default-features --features zstd,kafka-tls-vendored --quiet
	fuzz/check
	.ci/features
	.ci/crates
	.ci/deny
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --locked --workspace --no-deps --quiet
	$(CARGO) test --locked --quiet --test tidy
	POSTRIDER_SKIPPED=$(SKIPPED) $(MAKE) --no-print-directory counts
	POSTRIDER_SKIPPED=$(SKIPPED) docker/check
	@if [ -s $(SKIPPED) ]; then sort -u $(SKIPPED); fi

counts: ## instructions and allocations of a row in the core against benches/instructions/baseline.txt (part of check); UPDATE_BASELINE=1 records them
	@$(CARGO) run --locked --quiet --profile counts --package postrider-instructions

compare-bytes: ## Debezium and Postrider on the same tables, byte for byte; one line of JSON (part of test)
	@.ci/setup >&2
	@CI=true $(CARGO) test --locked --quiet --test long compare_bytes

faults: ## each row of the fault matrix, and its table in docs/evidence.md; ROWS="14 43" for some
	@.ci/setup >&2
	@$(CARGO) run --locked --quiet --example faults -- $(ROWS)

faults-table: ## the same table after a change of the register, running nothing
	@$(CARGO) run --locked --quiet --example faults -- --table

crash: ## two relays on one slot, disasters while rows flow, and an account of every row; MODE=exactly_once|at_least_once|poll CYCLES=100 KILL=any|relay|postgres|broker ROWS_PER_S=.. SEED=..
	@.ci/setup >&2
	@CI=true CRASH_MODE=$(MODE) CRASH_CYCLES=$(CYCLES) CRASH_KILL=$(KILL) CRASH_ROWS_PER_S=$(ROWS_PER_S) \
	CRASH_SEED=$(SEED) $(CARGO) test --locked --quiet --test long crash

decoding: ## random workloads on servers with little memory for decoding, streamed and in windows, against test_decoding; one line of JSON; ROUNDS=1000 SEED=..
	@.ci/setup >&2
	@CI=true ROUNDS=$(or $(ROUNDS),1000) SEED=$(SEED) $(CARGO) test --locked --quiet --test long decoding

brokers: ## brokers that lack what services document as missing, and real Apache Kafka of other versions; one line of JSON; VERSIONS="3.9.1 3.7.2" TESTS="delivery:: topics::"
	@.ci/setup >&2
	@TESTS="$(TESTS)" .ci/brokers $(VERSIONS)

failover: ## a primary and a standby that take turns, killed and promoted while rows flow, and an account of every row; PROMOTIONS=20 DELIVERY=exactly_once|at_least_once STANDBY=synchronous|asynchronous ROWS_PER_S=.. SEED=..
	@.ci/setup >&2
	@CI=true FAILOVER_PROMOTIONS=$(or $(PROMOTIONS),20) FAILOVER_DELIVERY=$(DELIVERY) FAILOVER_STANDBY=$(STANDBY) \
	FAILOVER_ROWS_PER_S=$(ROWS_PER_S) FAILOVER_SEED=$(SEED) $(CARGO) test --locked --quiet --test long failover

streams: ## many databases in one process, a stream for each, one of them stuck for a while, and an account of every row; STREAMS=50 SECONDS=30
	@.ci/setup >&2
	@CI=true STREAMS=$(or $(STREAMS),50) STREAMS_SECONDS=$(or $(SECONDS),30) $(CARGO) test --locked --quiet --test long streams

endtxn: ## the end of Kafka transactions delayed, dropped, doubled and cut off while rows flow; INJECTIONS=1000 ROWS_PER_S=.. SEED=..
	@.ci/setup >&2
	@CI=true CRASH_MODE=exactly_once CRASH_KILL=endtxn CRASH_CYCLES=$(INJECTIONS) \
	CRASH_ROWS_PER_S=$(ROWS_PER_S) CRASH_SEED=$(SEED) $(CARGO) test --locked --quiet --test long crash

fuzz: ## libFuzzer over every target, from the committed inputs, and executions of each; TIME=60 TARGETS="tuple import"
	@.ci/setup demo >&2
	@fuzz/run $(or $(TIME),60) $(TARGETS)

package: ## release archive, Debian package, bill of materials and checksums into target/package; PROFILE=demo is sooner built
	@.ci/setup demo >&2
	@PROFILE=$(or $(PROFILE),release) docker/package/build

image: package ## the same, and a container image made without an engine: an OCI layout for docker load, podman load, skopeo
	@docker/package/oci

nightly: ## what takes hours: disasters in both modes, 10,000 random workloads, the tests of the relay in every combination of modes, failovers, logins that change, 50 streams, other brokers, disturbed ends of transactions, the fault matrix, the Debian package under systemd, the Docker stack, a million simulated histories, fuzzing
	@$(MAKE) crash MODE=at_least_once CYCLES=500
	@$(MAKE) crash MODE=exactly_once CYCLES=500
	@$(MAKE) crash MODE=poll CYCLES=500
	@$(MAKE) decoding ROUNDS=10000
	@CI=true FULL=1 $(CARGO) test --locked --quiet --no-fail-fast --features failpoints,mutants --test relay
	@LOCKED_ROWS=70000 $(CARGO) test --locked --quiet --features failpoints,mutants --test relay -- g2_rows_of_other_keys
	@$(MAKE) failover
	@$(MAKE) identity FULL=1
	@$(MAKE) streams
	@$(MAKE) brokers VERSIONS="3.9.1 3.7.2"
	@$(MAKE) endtxn
	@$(MAKE) faults
	@$(MAKE) systemd FULL=1
	@$(MAKE) stack FULL=1
	@POSTRIDER_SIM_SEEDS=1000000 $(CARGO) test --locked --release --quiet --test core session::
	@$(MAKE) fuzz TIME=$(or $(TIME),600)

lifecycle: ## what happens around the stream, accounted for: a backfill and a repair that are killed, what replay sends, what verify finds, what prune deletes, rows that are polled; FULL=1 PARTS="backfill verify"
	@.ci/setup >&2
	@CI=true FULL=$(FULL) PARTS="$(PARTS)" $(CARGO) test --locked --quiet $(if $(filter 1,$(FULL)),--profile demo) --test long lifecycle

identity: ## logins that change under way: tokens of 20 s, a token endpoint that fails, passwords that are replaced; one line of JSON; FULL=1 PARTS="tokens outages passwords"
	@.ci/setup >&2
	@CI=true FULL=$(FULL) PARTS="$(PARTS)" $(CARGO) test --locked --quiet --test long identity

ui-test: ## the dashboard in headless Chromium, in seven states, three widths and two themes; screenshots in .servers/ui/screens (part of test)
	@.ci/setup >&2
	@CI=true $(CARGO) test --locked --quiet --features failpoints,mutants --test relay -- dashboard

picture: ## docs/demo.svg, recorded from the demo in a pseudo terminal, and docs/dashboard.png, a screenshot of its dashboard
	@.ci/setup demo >&2
	@tests/ui/fetch
	@command -v chromium > /dev/null || { echo "picture: chromium is not installed" >&2; exit 1; }
	@$(CARGO) build --profile demo --locked --no-default-features --features zstd,demo --quiet --bin postrider
	@tests/ui/terminal "postrider demo --count 3000 --rate 500 --kill-every 2s" \
	target/demo/postrider demo --count 3000 --rate 500 --kill-every 2s > docs/demo.svg.new
	@mv docs/demo.svg.new docs/demo.svg
	@node tests/ui/picture.mjs "$(CURDIR)/.servers/ui" "$$(command -v chromium)" docs/dashboard.png target/demo/postrider

stack: ## docker/compose.yaml in a Docker engine, containers killed and restarted, an account of every order; one line of JSON; FULL=1 builds the image from source
	@.ci/setup >&2
	@if [ "$(FULL)" != 1 ]; then $(CARGO) test --locked --quiet --no-run --features failpoints,mutants --test cli; fi
	@FULL=$(FULL) docker/stack/run

systemd: ## the Debian package under a booted systemd: started, drained, upgraded, killed by its watchdog, purged, while rows are inserted; one line of JSON; FULL=1
	@.ci/setup >&2
	@if [ "$(FULL)" != 1 ]; then $(CARGO) test --locked --quiet --no-run --features failpoints,mutants --test cli; fi
	@FULL=$(FULL) docker/package/systemd

shop: ## the whole shop and its servers under kill -9 with CHAOS=1, and an account of every order; ORDERS=2000 KILLS=60 SEED=..
	@.ci/setup >&2
	@CI=true SHOP_ORDERS=$(or $(ORDERS),2000) SHOP_CHAOS=$(or $(CHAOS),0) SHOP_KILLS=$(KILLS) SHOP_SEED=$(SEED) \
	$(CARGO) test --locked --quiet --test long shop_chaos

bench: ## the benchmarks, in release mode; ARGS are passed on
	@.ci/setup demo >&2
	$(CARGO) bench --locked $(ARGS)

bench-delivery: ## at-least-once against exactly-once on the embedded broker and on Kafka, as lines of JSON; ARGS="--pairs 5 --rows 1000000"
	@.ci/setup >&2
	@CI=true $(CARGO) bench --locked --quiet --bench delivery -- figures $(ARGS)

compare: ## Debezium, a polling publisher and pg_recvlogical beside Postrider on the same rows: speed, CPU, memory, latency, recovery; one line of JSON, and target/compare/report.md; QUICK=1 WORKLOADS="one_row bulk"
	@.ci/setup >&2
	@CI=true QUICK=$(QUICK) WORKLOADS="$(WORKLOADS)" $(CARGO) bench --locked --quiet --bench compare -- figures

bench-memory: ## the most memory that a transaction of 10,000,000 rows and an outage of 10 minutes take; ARGS="1000000 60"
	@.ci/setup >&2
	@CI=true $(CARGO) bench --locked --quiet --bench memory -- figures $(ARGS)

# The recipes people and CI run. Each sets up what it needs, or says in one line what is missing.

.DEFAULT_GOAL := help
.PHONY: help demo test sim mutations torture kill-test soak lint bench bench-chain bench-aerospike bench-kafka bench-all fuzz setup

TARGET ?= transaction
# What runs for long is compiled for it: ten minutes on two cores, once.
OPTIMISED := CARGO_PROFILE_DEV_OPT_LEVEL=1
TIME ?= 600

help: ## list these recipes
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile

demo: setup ## real blocks in, UTXO state out, a kill in between
	@[ -x "$${CARGO_TARGET_DIR:-target}/demo/utxo-store" ] || echo "demo: building first: 300 crates, three to four minutes on two cores, once"
	@cargo run --profile demo --locked -- demo

test: ## format, lints and all tests; ends with how many passed, failed and were skipped
	@scripts/setup.sh tests
	@scripts/test.sh

sim: setup ## histories with faults: SEEDS=n (FROM=n), SEED=n replays one, PLAN=file a printed plan
	@SEEDS="$(or $(SEEDS),2000)" $(if $(SEED),SEED="$(SEED)") $(if $(PLAN),SIM_PLAN="$(PLAN)") \
		cargo test --locked --test it sim::histories -- --nocapture

mutations: setup ## plants known faults and has the simulator find each: FAULTS=name,name SEEDS=n; many minutes
	@$(if $(FAULTS),FAULTS="$(FAULTS)") $(if $(SEEDS),SEEDS="$(SEEDS)") \
		cargo test --locked --test mutations -- --ignored --nocapture

torture: setup ## instances on Apache Kafka, killed, frozen and started at random: SECONDS=n RATE=n SEED=n STORE=fjall|aerospike PROTOCOL=classic|consumer
	@scripts/setup.sh tests
	@TORTURE_SECONDS="$(or $(SECONDS),900)" STORE="$(or $(STORE),fjall)" RATE="$(or $(RATE),400)" $(if $(SEED),SEED="$(SEED)") PROTOCOL="$(or $(PROTOCOL),classic)" \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::for_long -- --ignored --nocapture

kill-test: setup ## SIGKILL to instances on fjall and Aerospike, and to Aerospike itself, each judged: KILLS=200 RATE=n SEED=n KIND=fjall|aerospike|file|memory
	@scripts/setup.sh tests
	@KILLS="$(or $(KILLS),200)" RATE="$(or $(RATE),100)" $(if $(SEED),SEED="$(SEED)") $(if $(KIND),KIND="$(KIND)") \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::kills::for_long -- --ignored --nocapture

soak: setup ## the torture for hours, memory, files and threads flat: HOURS=n (or SECONDS=n) RATE=n SEED=n STORE=fjall|aerospike
	@scripts/setup.sh tests
	@SOAK_SECONDS="$(or $(SECONDS),$(shell echo $$(( $(or $(HOURS),1) * 3600 ))))" STORE="$(or $(STORE),fjall)" RATE="$(or $(RATE),50)" $(if $(SEED),SEED="$(SEED)") \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::soak::for_long -- --ignored --nocapture

lint: setup ## format and lints only
	@scripts/lint.sh

bench: setup ## micro and whole-pipeline benchmarks
	@cargo bench --locked --bench micro --bench macro

bench-chain: setup ## blocks, a reorg, contests, a cone and pruning on each engine, on Aerospike beside the raw client (`asd` in PATH)
	@cargo bench --locked --bench chain

bench-aerospike: setup ## the Aerospike engine against the raw client, and the pipeline on it, on a server of its own (`asd` in PATH)
	@cargo bench --locked --bench aerospike
	@cargo bench --locked --bench macro -- aerospike

bench-kafka: setup ## from a real Kafka of its own to the state, beside a bare loop and the log in memory; latencies; after SIGKILL
	@scripts/setup.sh tests
	@cargo bench --locked --bench kafka

bench-all: setup ## all benches in one run of some 25 minutes, with smaller sizes
	@scripts/setup.sh tests
	@scripts/bench-all.sh

fuzz: setup ## one fuzzer for a while: TARGET=event TIME=600, see fuzz/README.md
	@scripts/fuzz.sh $(TARGET) $(TIME)

setup:
	@scripts/setup.sh

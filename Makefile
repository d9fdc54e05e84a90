# The recipes that people and CI run. Each recipe installs its tools, or names a missing tool in one line.

.DEFAULT_GOAL := help
.PHONY: help demo test sim mutations torture rolling-upgrade kill-test kill-test-api kill-test-vault kill-test-snapshot lost-brokers node-deaths soak lint fuzz setup pictures
.PHONY: release stack msrv
.PHONY: bench bench-chain bench-aerospike bench-kafka bench-api bench-scale bench-sql bench-vault bench-snapshot bench-all

TARGET ?= transaction
# Recipes that run for long compile with optimisation: ten minutes on two cores, once.
OPTIMISED := CARGO_PROFILE_DEV_OPT_LEVEL=1
TIME ?= 600

help: ## lists the recipes
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile

demo: setup ## reads real blocks, kills a process, compares with a rebuild: KEEP=1 leaves an instance; SCENARIO=wallets
	@[ -x "$${CARGO_TARGET_DIR:-target}/demo/utxo-store" ] || \
		echo "demo: compiling 300 crates first: three to four minutes on two cores, once"
	@cargo run --profile demo --locked --no-default-features $(if $(SCENARIO),--features vault) -- \
		demo $(if $(SCENARIO),--scenario $(SCENARIO),$(if $(KEEP),--contended)) $(if $(KEEP),--keep)

# The servers of docker-compose.yml without containers. The program is that of `make demo`.
stack: setup ## starts Kafka, Aerospike (if `asd` is in PATH), instances, Prometheus: STORE=fjall SECONDS=n PORTS=n KEEP=1
	@scripts/setup.sh tests
	@cargo build --profile demo --locked --no-default-features
	@scripts/stack.sh --program "$${CARGO_TARGET_DIR:-target}/demo/utxo-store" $(if $(STORE),--store $(STORE)) \
		$(if $(SECONDS),--for $(SECONDS)) $(if $(PORTS),--ports $(PORTS)) $(if $(KEEP),--keep)

test: ## checks format and lints, runs all tests; the last line counts passed, failed and skipped tests
	@scripts/setup.sh tests
	@scripts/test.sh

sim: setup ## simulates histories with faults: SEEDS=n (FROM=n); SEED=n replays one, PLAN=file a printed plan
	@SEEDS="$(or $(SEEDS),2000)" $(if $(SEED),SEED="$(SEED)") $(if $(PLAN),SIM_PLAN="$(PLAN)") \
		cargo test --locked --test it sim::histories -- --nocapture

mutations: setup ## plants known faults, each of which the simulator must find: FAULTS=name,name SEEDS=n; half an hour
	@$(if $(FAULTS),FAULTS="$(FAULTS)") $(if $(SEEDS),SEEDS="$(SEEDS)") \
		cargo test --locked --test mutations -- --ignored --nocapture

# STORE=fjall|aerospike, PROTOCOL=classic|consumer, BROKERS=1|3; NODES=1|3 of Aerospike.
torture: setup ## kills, freezes and starts instances and brokers: SECONDS=n RATE=n SEED=n STORE=… PROTOCOL=… BROKERS=3
	@scripts/setup.sh tests
	@TORTURE_SECONDS="$(or $(SECONDS),900)" STORE="$(or $(STORE),fjall)" RATE="$(or $(RATE),400)" \
		$(if $(SEED),SEED="$(SEED)") PROTOCOL="$(or $(PROTOCOL),classic)" BROKERS="$(or $(BROKERS),1)" \
		NODES="$(or $(NODES),1)" \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::a_long_torture -- --ignored --nocapture

# FROM is the program of an earlier version, with the features of `scripts/features.sh`.
rolling-upgrade: setup ## replaces three instances of an earlier program under load: FROM=path SECONDS=n RATE=n SEED=n
	@scripts/setup.sh tests
	@TORTURE_SECONDS="$(or $(SECONDS),120)" RATE="$(or $(RATE),200)" $(if $(SEED),SEED="$(SEED)") \
		$(if $(FROM),FROM="$(abspath $(FROM))") \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::upgrade::a_long -- \
		--ignored --nocapture

# KIND names the killed process: an instance on `fjall` or `aerospike`, the Aerospike server with records in a `file` or
# in `memory`, or instances, brokers and nodes of a `cluster`.
kill-test: setup ## kills instances and the Aerospike server under load, then verifies: KILLS=200 RATE=n SEED=n KIND=…
	@scripts/setup.sh tests
	@KILLS="$(or $(KILLS),200)" RATE="$(or $(RATE),100)" $(if $(SEED),SEED="$(SEED)") $(if $(KIND),KIND="$(KIND)") \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::kills::a_long_kill_test -- \
		--ignored --nocapture

lost-brokers: setup ## loses leaders, brokers, coordinators and a disk of three brokers, and judges the store after each
	@scripts/setup.sh tests
	@$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::lost_brokers -- --ignored --nocapture

# Three nodes with two copies, three brokers (BROKERS=n); a dead node comes back empty.
node-deaths: setup ## measures the time from the death of a node to the first commit and to full speed: DEATHS=20 RATE=n
	@scripts/setup.sh tests
	@DEATHS="$(or $(DEATHS),20)" RATE="$(or $(RATE),100)" $(if $(SEED),SEED="$(SEED)") BROKERS="$(or $(BROKERS),3)" \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::node_deaths -- --ignored --nocapture

kill-test-api: setup ## kills `run`, `serve` and the Aerospike server while the API is used: KILLS=100 SEED=n
	@scripts/setup.sh tests
	@KILLS="$(or $(KILLS),100)" $(if $(SEED),SEED="$(SEED)") \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::api_kills::a_long_kill_test -- \
		--ignored --nocapture

# Wallets select, release and pay meanwhile: on SQLite beside fjall, and on PostgreSQL over Aerospike.
kill-test-vault: setup ## kills `vault run` under the load of wallets: KILLS=200 SEED=n
	@scripts/setup.sh tests
	@KILLS="$(or $(KILLS),200)" $(if $(SEED),SEED="$(SEED)") \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::vault_kills::a_long -- \
		--ignored --nocapture

# A live store on Aerospike, restored into fjall, PostgreSQL and Aerospike.
kill-test-snapshot: setup ## kills `snapshot create`, `snapshot restore` and instances under load: KILLS=50 RATE=n SEED=n
	@scripts/setup.sh tests
	@KILLS="$(or $(KILLS),50)" RATE="$(or $(RATE),100)" $(if $(SEED),SEED="$(SEED)") \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::snapshot_kills::a_long -- \
		--ignored --nocapture

# SECONDS=n instead of HOURS=n; STORE=fjall|aerospike.
soak: setup ## runs the torture for hours; memory, files and threads must stay flat: HOURS=n RATE=n SEED=n STORE=…
	@scripts/setup.sh tests
	@SOAK_SECONDS="$(or $(SECONDS),$(shell echo $$(( $(or $(HOURS),1) * 3600 ))))" STORE="$(or $(STORE),fjall)" \
		RATE="$(or $(RATE),50)" $(if $(SEED),SEED="$(SEED)") \
		$(OPTIMISED) cargo test --locked $$(scripts/features.sh) --test it torture::soak::a_long_soak -- --ignored --nocapture

# The pictures of docs/operating/ask.md, on the store of the demo.
pictures: setup ## takes the pictures of the page in docs/pictures again: needs Chromium
	@scripts/setup.sh tests
	@cargo test --locked --test it page::take_the_pictures -- --ignored --nocapture

lint: setup ## checks format, lints and house rules only
	@scripts/lint.sh

bench: setup ## runs the micro benches and the benches of the whole pipeline
	@cargo bench --locked --bench micro --bench macro

# Aerospike needs `asd` in PATH.
bench-chain: setup ## blocks, a reorg, contests, descendants, pruning: on each engine, and by Aerospike's raw client
	@cargo bench --locked --bench chain

# Starts its own server, which needs `asd` in PATH.
bench-aerospike: setup ## compares the Aerospike engine with the raw client, and runs the pipeline on Aerospike
	@cargo bench --locked --bench aerospike
	@cargo bench --locked --bench macro -- aerospike

# Starts its own broker. Latencies from produce to state, and the time after a SIGKILL, are measured, too.
bench-kafka: setup ## compares the way from Kafka to the state with a bare consumer loop and with a log in memory
	@scripts/setup.sh tests
	@cargo bench --locked --bench kafka

# Starts its own broker and, with `asd` in PATH, its own Aerospike server; without `asd` nothing is measured.
bench-api: setup ## measures batches, single outputs, outcomes, memory of long answers and streams, a large transaction
	@scripts/setup.sh tests
	@cargo bench --locked --bench api

# Starts its own broker and, with `asd` in PATH, its own Aerospike server.
bench-scale: setup ## measures one to eight instances on one topic and changes of the group; simulates more machines
	@scripts/setup.sh tests
	@cargo bench --locked --bench scale

# PostgreSQL is Debian's; without the package SQLite alone is measured.
bench-sql: setup ## compares the SQL engines with programs by hand, and runs the pipeline on them
	@scripts/setup.sh tests
	@cargo bench --locked --features sql --bench sql
	@cargo bench --locked --features sql --bench macro -- sqlite postgres

# PostgreSQL is Debian's; without the package SQLite alone is measured.
bench-vault: setup ## measures selections, an owner whose outputs many take, and the CPU of following the log
	@scripts/setup.sh tests
	@cargo bench --locked --features vault --bench vault

bench-snapshot: setup ## measures imports, snapshots and restores on each engine, and the ingest beside a creation
	@scripts/setup.sh tests
	@cargo bench --locked --features sql --bench snapshot

bench-all: setup ## runs all benches with smaller sizes, some 30 minutes
	@scripts/setup.sh tests
	@scripts/bench-all.sh

release: setup ## makes the archive of a release in dist/: program, completions, man pages, SBOM, checksums
	@scripts/release.sh

msrv: setup ## checks the program with the oldest supported Rust (rust-version in Cargo.toml), by rustup
	@scripts/msrv.sh

fuzz: setup ## runs one fuzz target for TIME seconds: TARGET=event TIME=600, see fuzz/README.md
	@scripts/fuzz.sh $(TARGET) $(TIME)

setup:
	@scripts/setup.sh

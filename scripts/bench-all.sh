#!/usr/bin/env bash
# Runs all benches, with sizes that take two cores some 30 minutes. Variables of the environment override the sizes.
# A missing server is named, and the benches on that server are skipped.
set -uo pipefail
failed=0

# default VARIABLE VALUE: sets the variable unless the environment has a value.
default() { export "$1=${!1:-$2}"; }
default MACRO_TRANSACTIONS 300000
default MACRO_FJALL_TRANSACTIONS 150000
default MACRO_AEROSPIKE_TRANSACTIONS 100000
default MACRO_BACKLOG_SECONDS 30
default CHAIN_LISTED 100000
default CHAIN_OBJECT 200000
default CHAIN_CONTESTS 5000
default CHAIN_CONE 100000
default CHAIN_PRUNED 100000
default CHAIN_INCOMING 50000
default KAFKA_TRANSACTIONS 500000
default KAFKA_FAR_TRANSACTIONS 400000
default KAFKA_LATENCY_SECONDS 15
default KAFKA_KILLS 3
default API_OUTPUTS 100000
default API_ROUNDS 2
default API_SINGLE_SECONDS 10
default API_TRANSACTIONS 200000
default API_LARGE_OUTPUTS 200000

# bench NAME [CASE...]: runs one bench and prints its duration.
bench() {
    local name=$1 begun=$SECONDS
    shift
    printf '\n=== %s %s\n\n' "$name" "$*"
    cargo bench --quiet --locked --bench "$name" -- "$@" || { failed=1; echo "bench-all: $name failed" >&2; }
    echo "($((SECONDS - begun)) s)"
}

# All benches are built first: a build beside a bench would distort the figures.
cargo bench --quiet --locked --no-run || exit 1
date -u '+%F %R UTC'
git describe --always --dirty 2>/dev/null
rustc --version
echo "Linux $(uname -r), $(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)," \
    "load $(cut -d' ' -f1-3 /proc/loadavg)"

bench micro --quick
bench macro
if command -v asd >/dev/null; then
    bench macro aerospike
    bench chain
    # The widest case is left out: its spends alone take ten minutes.
    bench aerospike create spend set-mined get wide-45000
    bench api
else
    echo "bench-all: \`asd\` is not in PATH: benches on Aerospike are skipped" >&2
    bench chain /memory /fjall
fi
bench kafka
exit $failed

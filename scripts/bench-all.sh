#!/usr/bin/env bash
# All benches in one run, with sizes that two cores are done with in some 25 minutes; what the environment says goes before.
# Servers that are missing are named, and what needs them is passed over.
set -uo pipefail
failed=0

default() { export "$1=${!1:-$2}"; } # default VARIABLE VALUE
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

bench() { # bench NAME [WORD...]: one of them, and how long it took
    local name=$1 begun=$SECONDS
    shift
    printf '\n=== %s %s\n\n' "$name" "$*"
    cargo bench --quiet --locked --bench "$name" -- "$@" || { failed=1; echo "bench-all: $name failed" >&2; }
    echo "($((SECONDS - begun)) s)"
}

# Nothing is built while something is measured.
cargo bench --quiet --locked --no-run || exit 1
date -u '+%F %R UTC'
git describe --always --dirty 2>/dev/null
rustc --version
echo "Linux $(uname -r), $(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1-3 /proc/loadavg)"

bench micro --quick
bench macro
if command -v asd >/dev/null; then
    bench macro aerospike
    bench chain
    # But for the widest: its spends alone take ten minutes.
    bench aerospike create spend set-mined get wide-45000
else
    echo "bench-all: no \`asd\` in PATH: nothing on Aerospike" >&2
    bench chain /memory /fjall
fi
bench kafka
exit $failed

#!/usr/bin/env bash
# fuzz.sh TARGET SECONDS: runs one fuzz target for that time. See fuzz/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1 seconds=$2

missing() { echo "fuzz: missing: $1" >&2; exit 1; }
cargo fuzz --version >/dev/null 2>&1 || missing "cargo-fuzz (cargo install cargo-fuzz)"
cargo +nightly --version >/dev/null 2>&1 || missing "a nightly toolchain (rustup toolchain install nightly)"
[ -f "fuzz/fuzz_targets/$target.rs" ] || missing "target $target; the targets are: $(ls fuzz/seeds | tr '\n' ' ')"

directories=("fuzz/corpus/$target" "fuzz/seeds/$target")
mkdir -p "${directories[0]}"
if [ -d "fuzz/regressions/$target" ]; then directories+=("fuzz/regressions/$target"); fi
words=()
if [ -f "fuzz/$target.dict" ]; then words=("-dict=fuzz/$target.dict"); fi

# No AddressSanitizer: librdkafka's ./configure cannot link a zstd that is built with the sanitizer. The targets count
# their memory themselves; the limit of the resident memory finds leaks from run to run.
exec cargo +nightly fuzz run --sanitizer none "$target" "${directories[@]}" -- \
    -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=256 -print_final_stats=1 "${words[@]}"

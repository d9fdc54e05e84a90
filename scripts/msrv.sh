#!/usr/bin/env bash
# Checks the library and the program, as they are released, with the oldest supported version of Rust: `rust-version` in
# Cargo.toml. rustup installs a missing toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v rustup >/dev/null; then
    echo "msrv: missing: rustup (https://rustup.rs), which installs Rust $oldest" >&2
    exit 1
fi
rustup toolchain list | grep -q "^$oldest" || rustup toolchain install "$oldest" --profile minimal
features=aws,http,sql,vault
if scripts/has-openssl.sh; then features=$features,tls; fi
# A directory of its own: the versions would compile everything anew in turn.
metadata=$(cargo metadata --format-version 1 --no-deps --locked)
target=$(sed 's/.*"target_directory":"\([^"]*\)".*/\1/' <<<"$metadata")
CARGO_TARGET_DIR=$target/msrv cargo "+$oldest" check --locked --lib --bins --features "$features"
echo "msrv: Rust $oldest compiles utxo-store"

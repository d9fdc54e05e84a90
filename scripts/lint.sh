#!/usr/bin/env bash
# Format and lints. A tool that is not installed is named and passed over.
set -uo pipefail
failed=0

if cargo fmt --version >/dev/null 2>&1; then
    cargo fmt --check || failed=1
else
    echo "lint: rustfmt is missing (rustup component add rustfmt): format not checked"
fi
if cargo clippy --version >/dev/null 2>&1; then
    for features in "" "$("$(dirname "$0")/features.sh")"; do
        # shellcheck disable=SC2086 # none is no argument
        cargo clippy --locked --all-targets --quiet $features -- -D warnings || failed=1
    done
else
    echo "lint: clippy is missing (rustup component add clippy): lints not checked"
fi
"$(dirname "$0")/house.sh" || failed=1
exit $failed

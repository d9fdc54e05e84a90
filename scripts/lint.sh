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
if cargo deny --version >/dev/null 2>&1; then
    cargo deny --locked --all-features --log-level error check bans licenses sources || failed=1
    # The advisories are a repository of their own, which a machine without a way out cannot fetch.
    if advisories=$(cargo deny --locked --all-features --log-level error check advisories 2>&1); then
        echo "$advisories"
    elif grep -q "failed to fetch" <<<"$advisories"; then
        echo "lint: the advisory database cannot be fetched: advisories not checked"
    else
        echo "$advisories"
        failed=1
    fi
else
    echo "lint: cargo-deny is missing (cargo install cargo-deny): licences, sources and advisories not checked"
fi
"$(dirname "$0")/house.sh" || failed=1
exit $failed

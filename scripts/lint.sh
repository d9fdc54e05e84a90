#!/usr/bin/env bash
# Checks the format, the lints and the house rules. A missing tool is named, and its check is skipped.
set -uo pipefail
failed=0

if cargo fmt --version >/dev/null 2>&1; then
    cargo fmt --check || failed=1
else
    echo "lint: rustfmt is missing (rustup component add rustfmt): format not checked"
fi
if cargo clippy --version >/dev/null 2>&1; then
    # The release with its features (`release.sh`): the library and the binary without `testkit`, whose dead code would
    # be test code. Then everything: every target that names the crate as a dev-dependency turns `testkit` on. Both with
    # `tls` where the tests have it: otherwise librdkafka would be compiled twice.
    features=$("$(dirname "$0")/features.sh")
    release=aws,http,sql,vault
    if [ "$features" = --all-features ]; then release=$release,tls; fi
    cargo clippy --locked --lib --bins --quiet --features "$release" -- -D warnings || failed=1
    cargo clippy --locked --all-targets --quiet "$features" -- -D warnings || failed=1
else
    echo "lint: clippy is missing (rustup component add clippy): lints not checked"
fi
if cargo deny --version >/dev/null 2>&1; then
    cargo deny --locked --all-features --log-level error check bans licenses sources || failed=1
    # cargo-deny fetches the advisories from their own repository, which a machine without internet access cannot reach.
    if advisories=$(cargo deny --locked --all-features --log-level error check advisories 2>&1); then
        echo "$advisories"
    elif grep -q "failed to fetch" <<<"$advisories"; then
        echo "lint: cannot fetch the advisory database: advisories not checked"
    else
        echo "$advisories"
        failed=1
    fi
else
    echo "lint: cargo-deny is missing (cargo install cargo-deny): licences, sources and advisories not checked"
fi
"$(dirname "$0")/house.sh" || failed=1
exit $failed

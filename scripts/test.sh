#!/usr/bin/env bash
# Format, lints and all tests. The last line counts: `N passed, N failed, N skipped`. What failed is told once more above
# it, with its last words: who reads a log of CI may have no more than its end.
#
# A test that cannot have what it needs prints one line `SKIPPED: reason` to standard error and returns: cargo counts it as
# passed, this script as skipped. Tests marked #[ignore] count as skipped too. Failing lints count as one failure.
set -uo pipefail
cd "$(dirname "$0")/.."

output=$(mktemp)
lints=$(mktemp)
trap 'rm -f "$output" "$lints"' EXIT

lint_failed=0
scripts/lint.sh 2>&1 | tee "$lints"
[ "${PIPESTATUS[0]}" = 0 ] || lint_failed=1

# All features that can be built: S3, HTTP and TLS are tested on servers of their own. --show-output: also a passed test must be heard when it says that it was skipped.
cargo test --locked "$(scripts/features.sh)" --no-fail-fast -- --show-output </dev/null 2>&1 | tee "$output"
status=${PIPESTATUS[0]}

# A binary that died (an abort, an overflow, a signal) has no failed test: what it said last is all that is known.
last_words() {
    [ "$lint_failed" = 0 ] || tail -n 40 "$lints"
    grep -E '^test .* FAILED$|^error: test failed|has overflowed its stack|^fatal runtime error|^error(\[|: could not compile)' "$output" |
        sort -u | head -60
    # The panics of failed tests, without their backtraces.
    awk '/^failures:$/ { told = 1 } /^test result: / { told = 0; lines = 0 }
        told && /^---- .* stdout ----$/ { print; lines = 0 }
        told && / panicked at / { lines = 12 }
        lines > 0 && !/^ +([0-9]+:|at )/ { print; lines-- }' "$output" | head -120
    grep -B 25 "process didn't exit successfully" "$output"
}
if [ "$status" != 0 ] || [ "$lint_failed" != 0 ]; then
    echo
    echo "What failed:"
    last_words | cut -c1-400
fi

awk -v lint_failed="$lint_failed" -v status="$status" '
    /^SKIPPED: / { told++ }
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") ignored += $(i - 1)
        }
    }
    END {
        # What fails without a count: a build, a test binary that dies.
        if (status != 0 && failed == 0) failed = 1
        failed += lint_failed
        printf "%d passed, %d failed, %d skipped\n", passed - told, failed, told + ignored
        exit failed > 0
    }
' "$output"

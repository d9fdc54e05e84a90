#!/usr/bin/env bash
# Format, lints and all tests. The last line counts: `N passed, N failed, N skipped`.
#
# A test that cannot have what it needs prints one line `SKIPPED: reason` to standard error and returns: cargo counts it as
# passed, this script as skipped. Tests marked #[ignore] count as skipped too. Failing lints count as one failure.
set -uo pipefail
cd "$(dirname "$0")/.."

output=$(mktemp)
trap 'rm -f "$output"' EXIT

lint_failed=0
scripts/lint.sh || lint_failed=1

# All features that can be built: S3, HTTP and TLS are tested on servers of their own. --show-output: also a passed test must be heard when it says that it was skipped.
cargo test --locked "$(scripts/features.sh)" --no-fail-fast -- --show-output </dev/null 2>&1 | tee "$output"
status=${PIPESTATUS[0]}

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

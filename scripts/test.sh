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

# A test that hangs prints nothing more. After 15 minutes without output the tests that have not ended are named, the threads of
# the test binary are shown, and the binary is killed: the run fails with what is known instead of being cut off.
stall_guard() {
    local size last=-1 quiet=0
    command -v pkill >/dev/null || return 0
    while sleep 30 >/dev/null 2>&1; do
        # Compilers are quiet for minutes, too.
        grep -q "^running [0-9]" "$output" || continue
        size=$(wc -c <"$output")
        if [ "$size" = "$last" ]; then quiet=$((quiet + 30)); else quiet=0 last=$size; fi
        [ "$quiet" -ge "${STALL_SECONDS:-900}" ] || continue
        {
            echo "What hangs: no output for $quiet s. Running for over 60 s and not ended:"
            awk '/^test .* has been running for over/ { slow[$2] = 1 } /^test .* \.\.\. / { delete slow[$2] }
                END { for (name in slow) print "  " name }' "$output"
            for process in $(pgrep -f "$PWD/target/debug/deps/"); do
                for task in /proc/"$process"/task/*; do
                    echo "  $(cat "$task/comm") $(cut -d' ' -f3,14,15 "$task/stat") $(cat "$task/wchan" 2>/dev/null)"
                done
            done 2>/dev/null | sort | uniq -c | sort -rn | head -60
        } | tee -a "$output"
        pkill -KILL -f "$PWD/target/debug/deps/"
        return
    done
}
stall_guard &
guard=$!

# All features that can be built: S3, HTTP and TLS are tested on servers of their own. --show-output: also a passed test must be heard when it says that it was skipped.
cargo test --locked "$(scripts/features.sh)" --no-fail-fast -- --show-output </dev/null 2>&1 | tee -a "$output"
status=${PIPESTATUS[0]}
kill "$guard" 2>/dev/null

# A binary that died (an abort, an overflow, a signal) has no failed test: what it said last is all that is known.
last_words() {
    [ "$lint_failed" = 0 ] || tail -n 40 "$lints"
    grep -E '^test .* FAILED$|^error: test failed|has overflowed its stack|^fatal runtime error|^What hangs|^error(\[|: could not compile)' "$output" |
        sort -u | head -60
    awk '/^What hangs/ { told = 80 } told-- > 0' "$output"
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

#!/usr/bin/env bash
# Runs the format check, the lints and all tests. The last line counts: `N passed, N failed, N skipped`. Above the last
# line the failures are repeated with their last output, because a reader of a CI log may have only the end of the log.
#
# A test without its server or tool prints one line `SKIPPED: reason` to standard error and returns. Cargo counts such a
# test as passed, this script as skipped. Tests marked #[ignore] count as skipped, too. Failed lints count as one
# failure.
set -uo pipefail
cd "$(dirname "$0")/.."

output=$(mktemp)
lints=$(mktemp)
trap 'rm -f "$output" "$lints"' EXIT

lint_failed=0
# Megabytes of free disk: a full disk fails tests that have nothing to do with the disk, and cuts the report off.
free_disk() { df -Pm . | awk 'NR == 2 { print $4 }'; }
free_at_start=$(free_disk)
# The first build of a clone keeps no parts for later builds: the parts would take disk.
if [ ! -d "${CARGO_TARGET_DIR:-target}/debug" ]; then export CARGO_INCREMENTAL=0; fi

scripts/lint.sh 2>&1 | tee "$lints"
[ "${PIPESTATUS[0]}" = 0 ] || lint_failed=1
lint_seconds=$SECONDS

# A test that hangs prints nothing. After 15 minutes without output this function names the tests that have not ended,
# shows the threads of the test binary and kills the binary: the run fails with a report, before CI would cut it off.
stall_guard() {
    local size last=-1 quiet=0
    command -v pkill >/dev/null || return 0
    while sleep 30 >/dev/null 2>&1; do
        # Compilers print nothing for minutes, too.
        grep -q "^running [0-9]" "$output" || continue
        size=$(wc -c <"$output")
        if [ "$size" = "$last" ]; then quiet=$((quiet + 30)); else quiet=0 last=$size; fi
        [ "$quiet" -ge "${STALL_SECONDS:-900}" ] || continue
        {
            echo "Hanging tests: no output for $quiet s. Running for over 60 s and not ended:"
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

# Most tests wait for brokers, servers and timeouts: with one test a core the cores are idle for half of the time.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}"

# All features that can be built: the tests of S3, HTTP and TLS start their own servers.
cargo test --locked "$(scripts/features.sh)" --no-run </dev/null 2>&1 | tee -a "$output"
build_seconds=$((SECONDS - lint_seconds))

# --show-output prints the output of passed tests, too: the line `SKIPPED: reason` is in that output.
cargo test --locked "$(scripts/features.sh)" --no-fail-fast -- --show-output </dev/null 2>&1 | tee -a "$output"
status=${PIPESTATUS[0]}
kill "$guard" 2>/dev/null

# Prints the last output of the failures. A binary that died (abort, stack overflow, signal) has no failed test: only
# its last output is known.
last_output() {
    local failures='^test .* FAILED$|^error: test failed|has overflowed its stack|^fatal runtime error|^Hanging tests'
    failures+='|^memory allocation of .* failed|^error(\[|: could not compile)'
    [ "$lint_failed" = 0 ] || tail -n 40 "$lints"
    grep -E "$failures" "$output" | sort -u | head -60
    awk '/^Hanging tests/ { left = 80 } left-- > 0' "$output"
    # The panics of failed tests, without their backtraces and without log records: a CI log shows its end only.
    awk '/^failures:$/ { inside = 1 } /^test result: / { inside = 0; lines = 0 }
        inside && /^---- .* stdout ----$/ { print; lines = 0 }
        inside && / panicked at / { lines = 12 }
        lines > 0 && !/^ +([0-9]+:|at )/ && !/^\{"timestamp"/ { print; lines-- }' "$output" | head -120
    # The last words of a binary that died stand above the frames of a backtrace.
    grep -vE '^ +([0-9]+:|at )' "$output" | grep -B 40 "process didn't exit successfully"
}
if [ "$status" != 0 ] || [ "$lint_failed" != 0 ]; then
    echo
    echo "Failures:"
    last_output | cut -c1-400
fi

echo "Lints $lint_seconds s, build $build_seconds s, tests $((SECONDS - lint_seconds - build_seconds)) s;" \
    "disk: $(free_disk) MB free, $free_at_start MB at the start"
awk -v lint_failed="$lint_failed" -v status="$status" '
    /^SKIPPED: / { skipped++ }
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") ignored += $(i - 1)
        }
    }
    END {
        # A failed build and a test binary that died have no count.
        if (status != 0 && failed == 0) failed = 1
        failed += lint_failed
        printf "%d passed, %d failed, %d skipped\n", passed - skipped, failed, skipped + ignored
        exit failed > 0
    }
' "$output"

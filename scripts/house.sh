#!/usr/bin/env bash
# Counts the violations of the house rules. `scripts/house.sh` prints the counts and fails where a count exceeds its
# limit in `scripts/house.limits`. Limits only go down: lower a limit in the commit that improves its count.
# `scripts/house.sh list RULE` prints every violation of one rule; `scripts/house.sh TREE` counts another checkout.
set -uo pipefail
cd "$(dirname "$0")/.."
limits=$PWD/scripts/house.limits
rule=''
if [ "${1:-}" = list ]; then
    rule=${2:?name a rule}
elif [ -n "${1:-}" ]; then
    cd "$1"
fi

rust() { find src tests benches fuzz examples -name '*.rs' -not -path '*/target/*' 2>/dev/null | LC_ALL=C sort; }
product() { rust | grep '^src/'; }
# Lists the product code without tests and test doubles.
without_tests() { product | grep -vE 'tests?\.rs$|/tests/|conformance|properties\.rs$|testing\.rs$'; }
texts() {
    rust
    find . -maxdepth 3 \( -name '*.md' -o -name '*.sh' -o -name '*.toml' -o -name '*.yml' -o -name '*.yaml' \) \
        -not -path './target/*' -not -path './.git/*' -not -path './fuzz/*/*' | LC_ALL=C sort
    find docs schemas -name '*.md' -mindepth 3 2>/dev/null || true
}

# Doc comments whose first word is neither a noun nor a verb: the subject is missing.
doc_subject() {
    product | xargs awk '
        BEGIN {
            words = "What|Who|Whoever|Whom|Whose|Which|Its|It|Of|That|Those|These|They|This|Them|Somebody|Nobody" \
                "|Anybody|Everybody|So|As|Where|Wherever|When|How|Whether|Why|Whatever|Nothing|Something|Everything" \
                "|One|Ones|Another|Others|Other|Such|There|Here|Because|If|But|And|Not|Never|Since|Until|Than"
        }
        FNR == 1 { inside = 0 }
        /^ *\/\/[\/!]/ {
            if (!inside && match($0, "^ *//[/!] (" words ") "))
                print FILENAME ":" FNR ": " $0
            inside = 1
            next
        }
        { inside = 0 }'
}

# Doc comments of one line and at most three words.
doc_short() {
    product | xargs awk '
        FNR == 1 { run = 0 }
        /^ *\/\/\/ / { run++; text = $0; at = FNR; next }
        {
            if (run == 1) {
                line = text
                sub(/^ *\/\/\/ /, "", line)
                if (split(line, words, " ") <= 3) print FILENAME ":" at ": " text
            }
            run = 0
        }'
}

# Lines of more than 120 characters. Rows of Markdown tables do not count: Markdown cannot wrap a row.
long_lines() {
    texts | sort -u | while read -r file; do
        LC_ALL=C.UTF-8 grep -nE '^.{121,}$' "$file" | grep -vE '^[0-9]+: *\|' | sed "s|^|$file:|" || true
    done
}

# Types with more than 25 methods over all their `impl` blocks, without tests. rustfmt puts `impl` and its closing brace
# into the first column.
big_types() {
    without_tests | xargs awk '
        FNR == 1 { type = ""; test = 0 }
        /^#\[cfg\(test\)\]/ { test = 1 }
        test { next }
        /^impl/ && !/ for / {
            type = $0
            sub(/^impl(<[^{]*>)? /, "", type)
            sub(/[<{ ].*/, "", type)
        }
        /^}/ { type = "" }
        type != "" && /^    (pub(\([a-z ]+\))? )?(const )?(async )?(unsafe )?fn / { count[type]++ }
        END { for (type in count) if (count[type] > 25) print type ": " count[type] " methods" }' | LC_ALL=C sort
}

# Functions of more than 80 lines, without tests.
long_functions() {
    without_tests | xargs awk '
        FNR == 1 { test = 0; depth = "" }
        /^#\[cfg\(test\)\]/ { test = 1 }
        test { next }
        match($0, /^ *(pub(\([a-z ]+\))? )?(const )?(async )?(unsafe )?fn [a-z_0-9]+/) {
            indent = $0
            sub(/[^ ].*/, "", indent)
            name = $0
            sub(/.*fn /, "", name)
            sub(/[^a-z_0-9].*/, "", name)
            start = FNR
            depth = indent "}"
        }
        depth != "" && $0 == depth {
            if (FNR - start + 1 > 80) print FILENAME ":" start ": " name " has " FNR - start + 1 " lines"
            depth = ""
        }'
}

# Files of more than 500 lines, without tests.
long_files() {
    without_tests | while read -r file; do
        lines=$(awk '/^#\[cfg\(test\)\]/ { exit } { n++ } END { print n + 0 }' "$file")
        [ "$lines" -le 500 ] || echo "$file: $lines lines"
    done
}

# Type names that are defined more than once, without tests.
twice() {
    without_tests | xargs awk '
        FNR == 1 { test = 0 }
        /^#\[cfg\(test\)\]/ { test = 1 }
        test { next }
        match($0, /^ *(pub(\([a-z ]+\))? )?(struct|enum|trait|union) [A-Z][A-Za-z0-9]*/) {
            name = $0
            sub(/^ *(pub(\([a-z ]+\))? )?(struct|enum|trait|union) /, "", name)
            sub(/[^A-Za-z0-9].*/, "", name)
            count[name]++
            where[name] = where[name] " " FILENAME
        }
        END { for (name in count) if (count[name] > 1) print name ":" where[name] }' | LC_ALL=C sort
}

# Test names of more than 80 characters.
long_tests() {
    rust | xargs grep -nE '^ *(async )?fn [a-z_0-9]{81,}\(' || true
}

# Commit subjects, since the house rules began, of more than 72 characters or without a scope.
subjects() {
    git log --format=%s 375e924..HEAD 2>/dev/null | awk 'length($0) > 72 || !/^[a-z0-9_.,\/-]+(\([a-z]+\))?: [a-z]/'
}

rules='doc_subject doc_short long_lines big_types long_functions long_files twice long_tests subjects'
if [ -n "$rule" ]; then
    "$rule"
    exit
fi
failed=0
for name in $rules; do
    count=$("$name" | wc -l)
    limit=$(awk -v name="$name" '$1 == name { print $2 }' "$limits")
    verdict=ok
    if [ "$count" -gt "${limit:-0}" ]; then
        verdict="above the limit: see scripts/house.sh list $name"
        failed=1
    fi
    printf '%-15s %6d of at most %6d  %s\n' "$name" "$count" "${limit:-0}" "$verdict"
done
exit "$failed"

#!/usr/bin/env bash
# Sees to it that what the build needs is there: installs it with apt-get where that can be done, else says what is missing.
# librdkafka is built from source by ./configure (bash) and make, and compiles a C++ wrapper along with the C library. `setup.sh tests`
# asks also for OpenSSL's headers (the feature `tls`) and for what the tests' servers take, without which those tests are skipped.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "setup: missing: cargo (the Rust toolchain; see https://rustup.rs)" >&2
    exit 1
fi

packages=()
need() { # need PACKAGE COMMAND...: any one of the commands will do
    local package=$1 command
    shift
    for command in "$@"; do
        if command -v "$command" >/dev/null; then return; fi
    done
    packages+=("$package")
}
need gcc "${CC:-cc}" gcc clang
need g++ "${CXX:-c++}" g++ clang++
need make make
# A compiler can be there without the C library's headers: gcc only recommends them.
if ! echo '#include <stdio.h>' | "${CC:-cc}" -E - >/dev/null 2>&1; then packages+=(libc6-dev); fi
install() { # install PACKAGE...: says what it lacks otherwise
    if [ $# -eq 0 ]; then return; fi
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing $*" >&2
        export DEBIAN_FRONTEND=noninteractive
        if { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; } </dev/null >/dev/null; then return; fi
    fi
    echo "setup: missing: $* (e.g. apt-get install $*)" >&2
    return 1
}
install ${packages[@]+"${packages[@]}"}

if [ "${1:-}" = tests ]; then
    packages=()
    need pkg-config pkg-config pkgconf
    scripts/has-openssl.sh || packages+=(libssl-dev)
    need openssl openssl
    install ${packages[@]+"${packages[@]}"} || echo "setup: built without the feature tls: tests over TLS will be skipped" >&2
    packages=()
    need default-jre-headless java
    need maven mvn
    install ${packages[@]+"${packages[@]}"} || echo "setup: tests on Apache Kafka will be skipped" >&2
fi

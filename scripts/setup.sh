#!/usr/bin/env bash
# Installs the packages that the build needs with apt-get. Without root or apt-get, the missing packages are named.
# librdkafka is built from source by ./configure (bash) and make; the build compiles a C++ wrapper and the C library.
# `setup.sh tests` also installs the headers of OpenSSL (feature `tls`), Java and Maven for Apache Kafka, Chromium for
# the page, PostgreSQL, Prometheus for the alert rules, and `venv` for packages of PyPI, which the tests install by
# themselves. Tests that need a missing package are skipped.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "setup: missing: cargo (the Rust toolchain; see https://rustup.rs)" >&2
    exit 1
fi

packages=()
# need PACKAGE COMMAND...: adds the package to the list unless one of the commands exists.
need() {
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
# A compiler may be installed without the headers of the C library: the package gcc only recommends the headers.
if ! echo '#include <stdio.h>' | "${CC:-cc}" -E - >/dev/null 2>&1; then packages+=(libc6-dev); fi
# install PACKAGE...: installs the packages, or names them and fails.
install() {
    if [ $# -eq 0 ]; then return; fi
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing $*" >&2
        export DEBIAN_FRONTEND=noninteractive
        if { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; } </dev/null >/dev/null; then
            return
        fi
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
    install ${packages[@]+"${packages[@]}"} || echo "setup: the feature tls is left out: tests over TLS are skipped" >&2
    packages=()
    need default-jre-headless java
    need maven mvn
    install ${packages[@]+"${packages[@]}"} || echo "setup: tests on Apache Kafka are skipped" >&2
    packages=()
    need util-linux setpriv
    if ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then packages+=(postgresql); fi
    install ${packages[@]+"${packages[@]}"} || echo "setup: tests on PostgreSQL are skipped" >&2
    packages=()
    need chromium chromium
    install ${packages[@]+"${packages[@]}"} || echo "setup: tests of the page in a browser are skipped" >&2
    packages=()
    need prometheus promtool
    # A server of the machine under this name is left alone.
    had_prometheus=$(systemctl cat prometheus >/dev/null 2>&1 && echo yes || true)
    if ! install ${packages[@]+"${packages[@]}"}; then
        echo "setup: tests of the alert rules are skipped" >&2
    elif [ ${#packages[@]} -gt 0 ] && [ -z "$had_prometheus" ]; then
        # The package starts a server on port 9090, and again at every boot. Only its programs are needed.
        systemctl disable --now prometheus >/dev/null 2>&1 || true
        service prometheus stop >/dev/null 2>&1 || true
    fi
    packages=()
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
    install ${packages[@]+"${packages[@]}"} || echo "setup: tests with packages of PyPI are skipped" >&2
fi

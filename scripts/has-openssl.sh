#!/usr/bin/env bash
# Succeeds where the headers of OpenSSL are found. A build with the feature `tls` needs the headers.
[ -n "${OPENSSL_DIR:-}" ] || pkg-config --exists openssl 2>/dev/null

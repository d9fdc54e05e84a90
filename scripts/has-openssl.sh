#!/usr/bin/env bash
# Whether OpenSSL's headers are there, which a build with the feature `tls` takes.
[ -n "${OPENSSL_DIR:-}" ] || pkg-config --exists openssl 2>/dev/null

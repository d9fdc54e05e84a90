#!/usr/bin/env bash
# Prints the cargo option with the features for tests and lints: all features, without `tls` where the headers of
# OpenSSL are missing.
if "$(dirname "$0")/has-openssl.sh"; then
    echo --all-features
else
    echo --features=aws,http,sql,vault,testkit
fi

#!/usr/bin/env bash
# Says the features that tests and lints take: all, or all but `tls` where OpenSSL's headers are not there.
if "$(dirname "$0")/has-openssl.sh"; then
    echo --all-features
else
    echo --features=aws,http
fi

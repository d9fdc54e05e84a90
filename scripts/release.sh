#!/usr/bin/env bash
# Makes the archive of a release in `dist/`: the program with every feature, completions, man pages, the sample of the
# settings, schemas, documents, licence, changelog, an SBOM in CycloneDX where cargo-cyclonedx is installed, and
# checksums.
# Two runs on one commit, one machine and one toolchain give equal archives: paths, times and owners are fixed.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "$(git status --porcelain)" ]; then
    echo "release: the tree has changes: commit them first" >&2
    exit 1
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
machine=$(rustc -vV | sed -n 's/^host: //p')
features=aws,http,sql,vault
if scripts/has-openssl.sh; then
    features=$features,tls
else
    echo "release: without TLS to brokers: the headers of OpenSSL are missing" >&2
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# Paths of this machine do not get into the program.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/utxo-store --remap-path-prefix=$cargo_home=/cargo"
cargo build --release --locked --features "$features" --bin utxo-store
metadata=$(cargo metadata --format-version 1 --no-deps --locked)
target=$(sed 's/.*"target_directory":"\([^"]*\)".*/\1/' <<<"$metadata")
program=$target/release/utxo-store

name=utxo-store-$version-$machine
rm -rf dist
mkdir -p "dist/$name/completions" "dist/$name/deploy"
install -m 755 "$program" "dist/$name/utxo-store"
strip --strip-debug "dist/$name/utxo-store"
"$program" completions bash >"dist/$name/completions/utxo-store.bash"
"$program" completions zsh >"dist/$name/completions/_utxo-store"
"$program" completions fish >"dist/$name/completions/utxo-store.fish"
"$program" man --to "dist/$name/man/man1"
"$program" config sample >"dist/$name/utxo-store.toml"
cp LICENSE README.md CHANGELOG.md "dist/$name/"
cp -r deploy/grafana deploy/prometheus "dist/$name/deploy/"
cp -r schemas docs "dist/$name/"
if cargo cyclonedx --version >/dev/null 2>&1; then
    cargo cyclonedx --format json --features "$features" --override-filename "utxo-store-$version.cdx" >/dev/null
    mv "utxo-store-$version.cdx.json" dist/
else
    echo "release: without an SBOM: cargo install cargo-cyclonedx --locked" >&2
fi
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu \
    -C dist -cf - "$name" | gzip -n9 >"dist/$name.tar.gz"
rm -r "dist/$name"
(cd dist && sha256sum ./* >SHA256SUMS)
echo "release: dist/$name.tar.gz"

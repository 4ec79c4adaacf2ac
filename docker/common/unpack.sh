#!/bin/sh
# Builder stage: verifies the archives in /sources, and unpacks each to /sources/NAME.
set -eu
cd /sources
sha256sum --check SHA256SUMS
for archive in *.tar.*; do
    mkdir "${archive%%-*}"
    tar -xf "$archive" --strip-components=1 -C "${archive%%-*}"
done

#!/bin/sh
# Builder stage: makes /opt/venv from the wheels beside it, and from nothing else.
set -eu
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv
rm -rf /var/lib/apt/lists/*
python3 -m venv /opt/venv
/opt/venv/bin/pip --disable-pip-version-check install --no-cache-dir --no-compile \
    --no-index --find-links /build/wheels --no-deps --require-hashes -r /build/requirements.txt

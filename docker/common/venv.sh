#!/bin/sh
# Builder stage: makes /opt/venv from the wheels beside it; where there are none, from the package
# index, as the machine's own pip.conf has it. Only files with the listed checksums are installed.
set -eu
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv
rm -rf /var/lib/apt/lists/*
python3 -m venv /opt/venv
install() {
    /opt/venv/bin/pip --disable-pip-version-check install --no-input --no-cache-dir --no-compile \
        --only-binary=:all: --no-deps --require-hashes -r /build/requirements.txt "$@"
}
cd /build/wheels
if [ "$(find . -name '*.whl' | head -n 1)" ]; then
    install --no-index --find-links .
else
    [ ! -e pip.conf ] || export PIP_CONFIG_FILE=/build/wheels/pip.conf
    more=$(cat index)
    # Only PyTorch's own index has builds for processors alone. It is asked where it has to be.
    install || { [ "$more" ] && install --extra-index-url "$more"; }
fi

#!/bin/sh
# Makes the base image a node: ssh, Python and the packages that are named, and a user without a
# password. No key and no list of packages stays.
set -eu
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    openssh-server openssh-client python3 iproute2 procps zlib1g "$@"
rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
useradd --create-home --uid 1000 --shell /bin/bash --password '*' --groups video mpi

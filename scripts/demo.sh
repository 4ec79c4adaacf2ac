#!/usr/bin/env bash
# Sets this checkout up (system packages, .venv), then runs a training job on a cluster on this
# machine, from nothing to nothing. State is kept in $CLUSTERCTL_HOME, else in a temporary folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

set_up workloads "openssh-server openssh-client iproute2 util-linux" ""

home=$(realpath -m "${CLUSTERCTL_HOME:-$scratch/state}")
for name in "${!CLUSTERCTL_@}"; do unset "$name"; done # the plain commands, without settings
export CLUSTERCTL_HOME=$home XDG_CONFIG_HOME=$scratch
cd "$scratch"
if compgen -G "$home/clusters/*/cluster.json" >/dev/null; then
    die 2 "$home holds a cluster, and this ends with \`clusterctl down\`." \
        "Unset CLUSTERCTL_HOME, or set it to an empty folder."
fi

up=''
total=0

# run COMMAND...: prints it, runs it, adds its time to the total.
run() {
    local begun=${EPOCHREALTIME/[.,]/}
    printf '\n$ %s\n' "$*"
    "$@"
    total=$((total + ${EPOCHREALTIME/[.,]/} - begun))
}

tear_down() {
    local code=$?
    if [ -n "$up" ]; then
        printf '\n$ clusterctl down --discard\n'
        clusterctl down --discard || die "$code" "The cluster is still there:" \
            "CLUSTERCTL_HOME=$CLUSTERCTL_HOME $venv/bin/clusterctl down"
    fi
    clean_up
}
trap tear_down EXIT

up=yes
run clusterctl up
run clusterctl run reduce_all.py
run clusterctl run multinode_ddp_mpi.py 1000 1000
run clusterctl down --discard
up=''
printf '\nup, two runs and down: %s s\n' "$(seconds "$total")"

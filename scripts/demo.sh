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

# shorten: of many lines those at the start and at the end, and every 500th between them.
shorten() {
    local line count=0 hidden=0 held=()
    while IFS= read -r line; do
        count=$((count + 1))
        held+=("$line")
        [ "$count" -gt 4 ] && [ ${#held[@]} -le 8 ] && continue
        if [ "$count" -le 4 ] || [ $((count % 500)) -eq 0 ]; then
            printf '%s\n' "${held[0]}"
        else
            hidden=$((hidden + 1))
        fi
        held=("${held[@]:1}")
    done
    [ "$hidden" -eq 0 ] || printf '… %d more lines: clusterctl logs\n' "$hidden"
    [ ${#held[@]} -eq 0 ] || printf '%s\n' "${held[@]}"
}

# run [--shorten] COMMAND...: prints it, runs it, adds its time to the total.
run() {
    local begun=${EPOCHREALTIME/[.,]/} shorten=''
    [ "$1" != --shorten ] || { shorten=yes && shift; }
    printf '\n$ %s\n' "$*"
    if [ -n "$shorten" ]; then "$@" 2>&1 | shorten; else "$@"; fi
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
run --shorten clusterctl run multinode_ddp_mpi.py 1000 1000
run clusterctl down --discard
up=''
printf '\nup, two runs and down: %s s\n' "$(seconds "$total")"

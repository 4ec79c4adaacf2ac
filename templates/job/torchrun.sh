# Of rank.sh, for a node on which torchrun starts the ranks: becomes torchrun.
# shellcheck shell=sh disable=SC2154

cctl_out=$cctl_job/out/agent-$OMPI_COMM_WORLD_RANK
mkdir -p "$cctl_job/out" && cd "$cctl_job/work" || exit 6
echo "clusterctl: start $OMPI_COMM_WORLD_RANK $cctl_attempt"
eval "set -- $cctl_starter"
exec /bin/sh "$cctl_job/env" agent "$@" /bin/sh "$cctl_job/rank.sh" ranks "$PATH" \
    </dev/null >>"$cctl_out.out" 2>>"$cctl_out.err"

# Runs one rank: finds its number, keeps its output on this node and notes how it ended. The rank.sh of a job,
# which mpirun, torchrun or srun starts once per rank, sets what is used here and reads this. The program alone
# gets the user's variables (the file `env`): none of them changes what happens here.
# shellcheck shell=sh disable=SC1090,SC1091,SC2154

# bash, where it is sh, takes functions from the environment: one named `cd` is not meant for this.
unset -f [ awk cat cd command date echo env false flock ip kill ln mkdir mv printf read readlink rm sed setsid sh stdbuf touch true wait
unset CLUSTERCTL_RANK # marks the program, and not this wrapper, for who looks into /proc
cctl_attempt=${CLUSTERCTL_ATTEMPT:-1} cctl_watcher='' cctl_own=''
if [ "${1-}" = own ]; then cctl_own=yes && shift; fi # what the stub has started, see below

[ "$cctl_kind" != agent ] || [ "${1-}" = ranks ] || . "$cctl_scripts/torchrun.sh" # which starts the ranks of this node
eval "$cctl_numbers"
[ -n "$cctl_rank" ] || { echo 'clusterctl: no launcher program has given a rank to this process' >&2; exit 6; }
cctl_out=$cctl_job/out/rank-$cctl_rank
[ -e "$cctl_job/env" ] || { echo "clusterctl: rank $cctl_rank has no variables: $cctl_node restarted, or the job has ended" >&2; exit 6; }
[ -z "$cctl_batch" ] || trap '' USR1 USR2 # warnings for the batch script, which launchers pass on to all

await() { # until $cctl_child has ended, with $cctl_code. A trap sets $cctl_caught: what a `wait` says that a
    # signal has ended is not the child's answer; 127: it was the one before.
    cctl_code=127 cctl_caught=yes
    while [ -n "$cctl_caught" ] || kill -0 "$cctl_child" 2>/dev/null; do
        cctl_caught=''
        wait "$cctl_child"
        cctl_answer=$?
        [ "$cctl_answer" = 127 ] || cctl_code=$cctl_answer
    done
}

if [ -z "$cctl_own" ]; then
    # Launcher programs signal the process group of what they have started: SIGTERM, and SIGKILL within seconds.
    # This stub is all that they reach. The rank is in a session of its own, gets SIGTERM once, and has its time.
    read -r cctl_here </proc/sys/kernel/hostname
    [ "$cctl_here" = "${cctl_host:-$cctl_here}" ] ||
        { echo "clusterctl: rank $cctl_rank was planned for $cctl_node and landed on $cctl_here" >&2; exit 6; }
    halt() { # once, and whatever becomes of this stub
        cctl_caught=yes
        trap 'cctl_caught=yes' TERM INT HUP
        env -u CLUSTERCTL_JOB setsid /bin/sh "$cctl_job/agent.sh" halt "$cctl_rank" "$cctl_grace" "${cctl_child:-0}" </dev/null >/dev/null 2>&1 &
    }
    trap halt TERM INT HUP
    [ -d "$cctl_job/out" ] || mkdir -p "$cctl_job/out"
    for cctl_file in "$cctl_out.exit" "$cctl_out.oom" "$cctl_out".[amt]*; do # of an earlier attempt
        [ ! -e "$cctl_file" ] || rm -f "$cctl_file"
    done
    # For who ends the job: a daemon of mpirun that is killed leaves its folder behind.
    [ -z "${cctl_tells:+${PMIX_SERVER_TMPDIR-}}" ] || [ "$cctl_local" != 0 ] || echo "$PMIX_SERVER_TMPDIR" >"$cctl_out.session"
    cd "$cctl_job/work/$cctl_working" || exit 6
    # Not into a pipe: it ends with mpirun's daemon, and would take the wrapper with it.
    setsid /bin/sh "$cctl_job/rank.sh" own "$@" </dev/null >/dev/null 2>&1 &
    cctl_child=$!
    # Through mpirun, as the end: it outlives this node, which may take no connection then.
    [ -z "$cctl_tells" ] || echo "clusterctl: start $cctl_rank $cctl_attempt"
    await
    if [ -n "$cctl_tells" ] && [ ! -e "$cctl_out.told" ] && [ -e "$cctl_out.exit" ]; then
        [ ! -e "$cctl_out.alone" ] || [ -e "$cctl_out.met" ] ||
            { read -r cctl_end && echo "clusterctl: alone $cctl_rank $cctl_end $cctl_attempt"; } <"$cctl_out.alone"
        read -r cctl_end <"$cctl_out.exit"
        echo "clusterctl: exit $cctl_rank $cctl_end"
    fi
    exit "$cctl_code"
fi

count_oom() { # as $cctl_oom: processes that the kernel has killed for want of memory, of this control group or the machine
    while IFS=: read -r cctl_word cctl_oom cctl_group && [ "$cctl_word" != 0 ]; do :; done </proc/self/cgroup
    cctl_oom='' cctl_events=$cctl_cgroups$cctl_group/memory.events
    [ -r "$cctl_events" ] || cctl_events=/proc/vmstat
    while read -r cctl_word cctl_number; do
        [ "$cctl_word" != oom_kill ] || cctl_oom=$cctl_number
    done <"$cctl_events"
} 2>/dev/null

take_gpu() { # NUMBER: whether no other job on this node has that GPU; until this rank ends, it has it
    touch "$cctl_gpu-$1" && exec 8>>"$cctl_gpu-$1" && flock -n 8
} 2>/dev/null

# Others after each start of this node. A container has its host's boot id, and a first process of its own.
# Nodes of a batch system share the folder.
{ read -r cctl_boot && read -r cctl_first </proc/1/stat; } </proc/sys/kernel/random/boot_id
[ -n "$cctl_batch" ] || [ -e "$cctl_job/out/boot" ] || printf '%s\n' "$cctl_boot" "$cctl_first" >"$cctl_job/out/boot"
count_oom; cctl_before=$cctl_oom
RANK=$cctl_rank; eval "set -- $cctl_program"
if [ -n "$cctl_resume" ] && [ -s "$cctl_job/snapshot-$cctl_attempt.sh" ]; then
    . "$cctl_job/snapshot-$cctl_attempt.sh"
    eval "set -- \"\$@\" $cctl_resume"
fi
if [ "$cctl_kind" = point ]; then . "$cctl_scripts/point.sh"; elif [ -n "$cctl_gpu" ]; then take_gpu "$cctl_local"; fi
[ -z "$cctl_batch" ] || . "$cctl_job/surroundings"
# A C program buffers by the block when its output is a file: nothing would be seen until it ends.
[ -z "$cctl_lines" ] || ! command -v stdbuf >/dev/null || set -- "$(command -v stdbuf)" -oL -eL "$@"
[ -z "${CLUSTERCTL_MASTER-}" ] || # the job goes on without nodes that it has lost
    set -- env "MASTER_ADDR=$CLUSTERCTL_MASTER" "CLUSTERCTL_WORLD_SIZE=$cctl_world" "$@"
unset CLUSTERCTL_MASTER # a job that this one starts has its own
set -- /bin/sh "$cctl_job/env" rank "$@"
# sh starts a background command with SIGINT and SIGQUIT ignored, which no program expects.
! env --default-signal="$cctl_signals" --version >/dev/null 2>&1 || set -- env --default-signal="$cctl_signals" "$@"

cctl_in=/dev/null # mpirun and srun would give standard input to rank 0 in part, or twice
[ "$RANK" != 0 ] || [ ! -e "$cctl_job/stdin" ] || cctl_in=$cctl_job/stdin
# Only who signals all processes reaches this, as Slurm does at the end of a step: the program has got it, too.
trap 'cctl_caught=yes; (set -C; echo "$cctl_attempt" >"$cctl_out.term") 2>/dev/null' TERM
trap 'cctl_caught=yes' INT HUP
{
    LOCAL_RANK=$cctl_local WORLD_SIZE=$cctl_world LOCAL_WORLD_SIZE=$cctl_local_world CLUSTERCTL_RANK=$cctl_rank
    CLUSTERCTL_ATTEMPT=$cctl_attempt # points of a sweep and ranks without a launcher have none yet
    export CLUSTERCTL_ATTEMPT RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE CLUSTERCTL_RANK
    eval "$cctl_alone"
    exec "$@"
} <"$cctl_in" >>"$cctl_out.out" 2>>"$cctl_out.err" 8>&- &
cctl_child=$!
echo "$cctl_child" >"$cctl_out.pid"
if [ -n "$cctl_linger" ] && [ "$cctl_local" = 0 ]; then # one per node: word comes as a file on the shared disk
    env -u CLUSTERCTL_JOB /bin/sh "$cctl_job/agent.sh" heed "$cctl_rank" "$cctl_local_world" "$cctl_grace" $$ &
    cctl_watcher=$!
fi
await
trap '' TERM INT HUP # its program has ended; batch systems repeat themselves
[ -z "$cctl_watcher" ] || [ -e "$cctl_job/stopping" ] || kill "$cctl_watcher" 2>/dev/null
[ "$cctl_kind" != point ] || clear_point
case $cctl_code in 0 | 143) ;; *) count_oom ;; esac
[ "$cctl_oom" = "$cctl_before" ] || echo "$cctl_attempt" >"$cctl_out.oom"
[ ! -e "$cctl_out.term" ] || echo "$cctl_attempt" >"$cctl_out.told"
echo "$cctl_code $(date +%s.%N) $cctl_attempt" >"$cctl_out.exit.new"
mv "$cctl_out.exit.new" "$cctl_out.exit"
# The first rank to end takes the others with it: not while they are saving their work.
[ -z "$cctl_linger" ] || [ ! -e "$cctl_out.told" ] ||
    env -u CLUSTERCTL_JOB /bin/sh "$cctl_job/agent.sh" linger "$cctl_rank" "$cctl_world" "$cctl_grace"
exit "$cctl_code"

# shellcheck shell=sh disable=SC2154
# Keeps the next $cctl_size bytes of stdin, what ranks find in their environment, as `env` in this folder: as
# a link into memory, from which a restart removes the secrets. systemd-logind empties /dev/shm for a
# user whose last session has ended, and a job outlives sessions: only root and users that linger
# (`loginctl enable-linger`) can rely on it. Elsewhere it is a file.
cctl_env=$(dd bs="$cctl_size" count=1 iflag=fullblock 2>/dev/null; echo .)
cctl_env=${cctl_env%.}
cctl_id=$(id -u)
cctl_memory=$cctl_memory/clusterctl-$cctl_id
cctl_kept=''
if [ "$cctl_id" = 0 ] || [ -e "$cctl_linger/$(id -un)" ]; then
    [ -d "$cctl_memory" ] || mkdir -m 700 "$cctl_memory" 2>/dev/null
    # Somebody else may have made it, or a link in its place.
    if [ "$(LC_ALL=C stat -c '%F %u %a' "$cctl_memory" 2>/dev/null)" = "directory $cctl_id 700" ] &&
        [ "$(stat -f -c %T "$cctl_memory")" = tmpfs ]; then
        cctl_kept=$cctl_memory/$cctl_name
    fi
fi
if [ -n "$cctl_kept" ] && printf %s "$cctl_env" 2>/dev/null >"$cctl_kept"; then
    ln -sfn "$cctl_kept" env || exit
else
    rm -f env ${cctl_kept:+"$cctl_kept"}
    printf %s "$cctl_env" >./env || exit
fi

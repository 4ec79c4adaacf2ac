#!/bin/sh
# Starts sshd for the one user that this container is for, writes the single-node hostfile, stays.
# With arguments: runs them beside sshd, and ends with them.
#
#   SSH_PORT              where sshd listens (2222)
#   SSH_USER              who may log in: whoever runs this container, or, for root, any user of it
#   AUTHORIZED_KEYS       public keys, one in a line; or mount them at /etc/clusterctl/authorized_keys
#   HOST_KEY_FILE         a private host key; without one a new key is made at each start
#   SLOTS                 ranks on this node: default the GPUs, else the processors
set -eu
umask 077

if [ "$(id -u)" = 0 ]; then
    state=/run/clusterctl
    mkdir -p /run/sshd
else
    state=$HOME/.container # sshd believes no key below a folder that others may write to
fi
mkdir -p "$state"
user=${SSH_USER:-$(id -un)}
getent passwd "$user" >/dev/null || { echo "there is no user $user in this image" >&2; exit 1; }
if [ "$(id -u)" != 0 ] && [ "$(id -un)" != "$user" ]; then
    echo "only root can let in someone else: $user" >&2
    exit 1
fi

keys=$state/authorized_keys
if [ -n "${AUTHORIZED_KEYS:-}" ]; then
    printf '%s\n' "$AUTHORIZED_KEYS" >"$keys"
elif [ -r /etc/clusterctl/authorized_keys ]; then
    cat /etc/clusterctl/authorized_keys >"$keys"
else
    : >"$keys"
    echo "no key was given: nobody can log in" >&2
fi
unset AUTHORIZED_KEYS
# sshd reads it as the user who logs in.
[ "$(id -u)" != 0 ] || { chmod 711 "$state" && chmod 644 "$keys"; }

host_key=$state/host_key
if [ -n "${HOST_KEY_FILE:-}" ]; then
    cat "$HOST_KEY_FILE" >"$host_key"
elif [ ! -s "$host_key" ]; then
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$host_key"
fi

gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU') || gpus=0
if [ "$gpus" = 0 ] && [ -e /dev/kfd ]; then
    gpus=$(find /dev/dri -name 'renderD*' 2>/dev/null | wc -l)
fi
[ "$gpus" != 0 ] || gpus=$(nproc)
echo "$(hostname) slots=${SLOTS:-$gpus}" >"$state/hostfile"
chmod 644 "$state/hostfile"

root_login=no
[ "$user" != root ] || root_login=prohibit-password
config=$state/sshd_config
{
    cat /etc/clusterctl/sshd_config
    echo "Port ${SSH_PORT:-2222}"
    echo "HostKey $host_key"
    echo "AuthorizedKeysFile $keys"
    echo "PidFile $state/sshd.pid"
    echo "AllowUsers $user"
    echo "PermitRootLogin $root_login"
    # Ranks are started through sshd, which hands on nothing of the image's environment by itself.
    printf 'SetEnv PATH=%s' "$PATH"
    for name in LD_LIBRARY_PATH CUDA_HOME ROCM_PATH; do
        eval "value=\${$name-}"
        [ -z "$value" ] || printf ' %s=%s' "$name" "$value"
    done
    echo
} >"$config"
echo "${SSH_PORT:-2222}" >"$state/port"
chmod 644 "$state/port"

[ $# -gt 0 ] || exec /usr/sbin/sshd -D -e -f "$config"
/usr/sbin/sshd -e -f "$config"
exec "$@"

#!/bin/sh
# Healthy: an sshd answers on our port and shows its host key.
set -eu
for state in /run/clusterctl "$HOME/.container"; do
    [ ! -r "$state/port" ] || exec ssh-keyscan -T 2 -t ed25519 -p "$(cat "$state/port")" 127.0.0.1
done 2>/dev/null | grep -q ssh-ed25519

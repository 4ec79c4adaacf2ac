#!/bin/sh -eu
# Usage: sh -eu node.sh NAME ADDRESS FOLDER HIDDEN SHADOW SHARED SSHD…
# PID 1 of a node, started by `unshare` in namespaces of its own. Makes them a machine, runs its
# sshd and reaps what is orphaned. When it ends, the kernel ends every process of the node.
#   FOLDER  the node's own folder, the only thing that it sees below HIDDEN
#   SHADOW  a file to see in place of /etc/shadow, or nothing
#   SHARED  a folder below HIDDEN that all nodes see, or nothing
#   SSHD    the command line of its sshd
# The working directory is used as a handle on what a new mount is about to cover; `mount -c` keeps
# it from being turned into a path first.
name=$1 address=$2 folder=$3 hidden=$4 shadow=$5 shared=$6
shift 6

# One line comes when our end of the cable is plugged in; end of file: the starter died, so do we.
read -r _ || exit 1
exec </dev/null
umask 022

echo "$name" >/proc/sys/kernel/hostname
ip -batch - <<END
link set lo up
address add $address/24 dev eth0
link set eth0 up
END

# sysfs shows the network of whoever mounted it: UCX and others look there for devices.
if [ -d /sys/fs/cgroup ]; then
    cd /sys/fs/cgroup
    mount -t sysfs sysfs /sys
    mount -c --rbind . /sys/fs/cgroup
fi
cd "$folder"
mount --bind etc/hosts /etc/hosts
[ -z "$shadow" ] || mount --bind "$shadow" /etc/shadow
[ ! -d /dev/shm ] || mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
[ -z "$shared" ] || { mkdir /run/shared && mount --bind "$shared" /run/shared; }
[ -d "$hidden" ] || mkdir -p "$hidden"
mount -t tmpfs -o mode=755 tmpfs "$hidden"
mkdir -p "$folder" /run/sshd
mount -c --bind . "$folder"
[ -z "$shared" ] || { mkdir -p "$shared" && mount --move /run/shared "$shared" && rmdir /run/shared; }
cd /

# In the foreground, and not by `exec`: the shell's wait collects adopted processes too.
"$@" || exit $?
exit 0

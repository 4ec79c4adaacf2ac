#!/bin/sh
# What a node with namespaces of its own takes, tried once.
set -e
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
cd /proc
mount -c --bind . /run
echo trial >/proc/sys/kernel/hostname
ip link add name br0 type bridge
ip -4 -j address >/dev/null
exec ip link add name one master br0 type veth peer name two

"""Namespaces or loopback? Found out by trying: a user id of 0 promises nothing in a container."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from clusterctl import process
from clusterctl.errors import ProviderError, UsageError
from clusterctl.model import NodeResult
from clusterctl.providers.local.sshd import SEARCH

NAMESPACES = "namespaces"
LOOPBACK = "loopback"
VARIABLE = "CLUSTERCTL_LOCAL_MODE"

UNSHARE = (
    *("unshare", "--net", "--uts", "--ipc", "--mount", "--pid"),
    *("--fork", "--kill-child", "--propagation", "private"),
)
_TRIAL = """
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
cd /proc
mount -c --bind . /run
echo trial >/proc/sys/kernel/hostname
ip link add name br0 type bridge
ip -4 -j address >/dev/null
exec ip link add name one master br0 type veth peer name two
"""
_TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
_CAPABILITIES = {21: "CAP_SYS_ADMIN", 12: "CAP_NET_ADMIN"}
"""What a node needs, by bit (linux/capability.h)."""


@dataclass(frozen=True, slots=True)
class Mode:
    """`reason` says in a few words why it is this one."""

    name: str
    reason: str


def choose(environment: Mapping[str, str] = os.environ) -> Mode:
    """The mode for a new cluster. Raises ProviderError where the mode asked for is impossible."""
    wanted = environment.get(VARIABLE, "")
    if wanted not in ("", NAMESPACES, LOOPBACK):
        raise UsageError(
            f"{VARIABLE} is {wanted!r}", hint=f"set it to {NAMESPACES} or {LOOPBACK}, or unset it"
        )
    if wanted == LOOPBACK:
        return Mode(LOOPBACK, f"{VARIABLE}={LOOPBACK}")
    obstacle = find_obstacle()
    if not obstacle:
        return Mode(NAMESPACES, "you are root")
    if wanted == NAMESPACES:
        raise ProviderError(
            f"namespaces are not possible here: {obstacle}",
            hint=f"run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN, or unset {VARIABLE}",
        )
    return Mode(LOOPBACK, obstacle)


@cache
def find_obstacle() -> str:
    """Why nodes cannot have namespaces of their own; nothing if they can. A trial, once."""
    if os.geteuid() != 0:
        return "not root"
    for tool, package in _TOOLS.items():
        if shutil.which(tool, path=SEARCH) is None:
            return f"{tool} is not installed (package {package})"
    trial = process.run([*UNSHARE, "sh", "-ec", _TRIAL], timeout=5, env={"PATH": SEARCH})
    return "" if trial.ok else explain(trial, Path("/proc/self/status").read_text())


def explain(trial: NodeResult, status: str) -> str:
    """A short phrase from a failed trial and our /proc/self/status."""
    effective = int(status.partition("\nCapEff:")[2].split(maxsplit=1)[0], 16)
    for bit, name in _CAPABILITIES.items():
        if not effective >> bit & 1:
            return f"no {name}"
    return (
        trial.why if trial.error or trial.complaints else f"the trial ended with {trial.exit_code}"
    )

"""The user's ssh_config, for hosts that are theirs. Our own nodes never see it."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MAX_DEPTH = 16
"""OpenSSH's own limit for files that include files, and ours for jump hosts behind jump hosts."""


def load_ssh_config(host: str, port: int, user: str) -> Any:
    """A paramiko SSHConfig of the user's and the system's files, empty where there are none.

    `port` and `user`, where given, overrule it for `host`, also within its ProxyCommand.
    """
    import paramiko

    config = paramiko.SSHConfig()
    given = [f"Port {port}"] * bool(port) + [f"User {user}"] * bool(user)
    config.parse([f"Host {host}", *given])
    for path in (Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config")):
        config.parse(_read_lines(path, "Match all", 0))
    return config


def _read_lines(path: Path, block: str, depth: int) -> Iterator[str]:
    """The lines of a file with `Include` carried out, which paramiko passes over.

    `block` is the Host or Match line under which the file stands.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        words = line.replace("=", " ", 1).split(maxsplit=1)
        keyword = words[0].lower() if words else ""
        if keyword == "include" and len(words) == 2 and depth < MAX_DEPTH:
            for pattern in shlex.split(words[1], comments=True):
                base = Path.home() / ".ssh" if path.is_relative_to(Path.home()) else path.parent
                for name in sorted(glob.glob(str(base / Path(pattern).expanduser()))):
                    yield from _read_lines(Path(name), block, depth + 1)
            # What follows belongs to the block that it stands in, not to the last one included.
            yield block
        else:
            if keyword in ("host", "match"):
                block = line
            yield line


def list_jumps(settings: Mapping[str, Any], host: str) -> list[str]:
    """The jump hosts on the way to `host`, nearest first. A host is no jump host to itself."""
    value = settings.get("proxyjump") or "none"
    if _find_first(settings) != "proxyjump" or value.lower() == "none":
        return []
    hops = [hop.strip().removeprefix("ssh://") for hop in value.split(",")]
    names = [hop.rpartition("@")[2].partition(":")[0] for hop in hops]
    return hops[: names.index(host)] if host in names else hops


def find_proxy_command(settings: Mapping[str, Any]) -> str:
    """The command that connects us to the host, or nothing."""
    return settings["proxycommand"] or "" if _find_first(settings) == "proxycommand" else ""


def _find_first(settings: Mapping[str, Any]) -> str:
    """Which of the two is in force: the one that comes first, as ssh_config(5) has it."""
    return next((key for key in settings if key in ("proxyjump", "proxycommand")), "")


def list_known_hosts_files(settings: Mapping[str, Any]) -> list[Path]:
    """The user's and the system's known_hosts files."""
    user = settings.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    system = settings.get(
        "globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
    )
    names = (name.replace("%d", "~", 1) for name in shlex.split(f"{user} {system}"))
    return [Path(name).expanduser() for name in names]

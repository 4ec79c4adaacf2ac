"""What must not be forgotten between two attempts to make a cluster: a file in its folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from clusterctl.state.home import write_atomic


class Memory(msgspec.Struct, kw_only=True):
    """`zone` and `spot` are those of the last attempt, `ssh_cidr` is from where SSH is open."""

    id: str
    region: str
    zone: str = ""
    ssh_cidr: str = ""
    spot: bool = False


def recall(folder: Path) -> Memory | None:
    """None where nothing was tried yet."""
    try:
        return msgspec.json.decode(_file(folder).read_bytes(), type=Memory)
    except (OSError, msgspec.DecodeError):
        return None


def remember(folder: Path, memory: Memory) -> None:
    path = _file(folder)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(memory))


def _file(folder: Path) -> Path:
    return folder / "ec2" / "memory.json"

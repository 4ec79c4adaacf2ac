"""What is kept between two attempts to make a cluster: a file in its folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from clusterctl.state.home import write_atomic


class ProviderState(msgspec.Struct, kw_only=True):
    """`zone` and `spot` are those of the last attempt, `ssh_cidr` is from where SSH is open;
    `unfinished`: an attempt has begun, and nobody has seen its end; `guarded`: AWS itself ends the
    machines after their deadline."""

    id: str
    region: str
    zone: str = ""
    ssh_cidr: str = ""
    spot: bool = False
    on_demand: tuple[str, ...] = ()
    """The workers that are none where the others are spot instances."""
    unfinished: bool = False
    guarded: bool = False


def load_state(folder: Path) -> ProviderState | None:
    """None where nothing was tried yet."""
    try:
        return msgspec.json.decode(_locate_file(folder).read_bytes(), type=ProviderState)
    except (OSError, msgspec.DecodeError):
        return None


def save(folder: Path, state: ProviderState) -> None:
    path = _locate_file(folder)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(state))


def _locate_file(folder: Path) -> Path:
    return folder / "ec2" / "memory.json"

"""The mark of a cluster that ends with its program: `launch --detach` leaves it in the cluster's
folder. Every command looks for marks, so this loads nothing but the records."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from clusterctl.state.files import write_atomic
from clusterctl.state.store import Store

MARK = "launch.json"


def mark(store: Store, name: str, folder: Path) -> None:
    """Notes that the cluster ends with its jobs, whose outputs belong below `folder`."""
    write_atomic(store.locate_folder(name) / MARK, json.dumps({"folder": str(folder)}).encode())


def unmark(store: Store, name: str) -> None:
    """The cluster stays after all."""
    (store.locate_folder(name) / MARK).unlink(missing_ok=True)


def list_marked(store: Store) -> tuple[str, ...]:
    """The clusters that end with their jobs."""
    return tuple(sorted(path.parent.name for path in store.home.clusters.glob(f"*/{MARK}")))


def find_folder(store: Store, name: str) -> Path | None:
    """Where the outputs belong; None for a cluster that does not end with its jobs."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return Path(json.loads((store.locate_folder(name) / MARK).read_bytes())["folder"])
    return None

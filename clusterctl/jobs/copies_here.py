"""The copies of a job's outputs that this machine has: `copies/NODE/PATH` in the job's folder, and
`copies/.NODE.json`, which says what they are."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one node's outputs: (path, size in bytes, modification time). `when`: all that
    was there at that moment is among them, in seconds since the epoch by the launcher's clock."""

    when: float
    files: tuple[tuple[str, int, float], ...]
    left_out: tuple[int, int] = (0, 0)
    """How many more outputs there were, and their bytes: as far as the launcher has said so."""


def locate(job_folder: Path) -> Path:
    """Where copies of a job's outputs are here."""
    return job_folder / "copies"


def parse(content: bytes) -> Copies | None:
    """What a note says; None where it is damaged."""
    with suppress(ValueError, LookupError, TypeError, OverflowError, RecursionError):
        known = json.loads(content)
        files = ((str(name), int(size), float(when)) for name, size, when in known["files"])
        return Copies(float(known["when"]), tuple(files))
    return None


def render(copies: Copies) -> bytes:
    return json.dumps({"when": copies.when, "files": copies.files}).encode()


def list_stored(target: Path) -> dict[str, Copies]:
    """What `mirror.bring` has put below `target`, by node. What has a damaged note comes anew."""
    found = {}
    for path in target.glob(".*.json"):
        with suppress(OSError):
            if copies := parse(path.read_bytes()):
                found[path.name[1 : -len(".json")]] = copies
    return found

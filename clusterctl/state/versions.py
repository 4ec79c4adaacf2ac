"""The version of records: what an earlier clusterctl wrote is brought forward, what a later one
wrote is refused, because to write it back would lose what this one does not know.

It stands for all that lies beside the record of a cluster or job, too (the state of its provider,
its provenance, what was fetched of it): that is used only by who has read the record. So a change
of form there is a version here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from clusterctl.errors import NewerRecordError

KEY = "record_version"
FIRST = 1
"""The version of records that do not name one."""

RENAMED: dict[int, dict[str, str]] = {1: {"traits": "site_info"}, 2: {}, 3: {}, 4: {}, 5: {}}
"""By version: the keys that the next version calls something else. One that only has more fields is
a version too: an older clusterctl would drop them when it writes the record back."""

VERSION = max(RENAMED) + 1
"""The version that this clusterctl writes."""


def stamp(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record as they are written."""
    return {KEY: VERSION, **raw}


def pick_version(data: bytes) -> dict[str, Any]:
    """Of a record as it was read: nothing but what tells its version. Raises msgspec.DecodeError
    for what is no record."""
    raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return {KEY: msgspec.json.decode(raw[KEY])} if KEY in raw else {}


def is_current(raw: dict[str, Any]) -> bool:
    """Whether it is as this version writes it."""
    return _read_version(raw) == VERSION


def migrate(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """What the file holds, as this version would have written it. Raises NewerRecordError."""
    refuse_newer(path, raw)
    for version in range(_read_version(raw), VERSION):
        raw = {RENAMED[version].get(key, key): value for key, value in raw.items()}
    return raw


def refuse_newer(path: Path, raw: dict[str, Any]) -> None:
    """Raises NewerRecordError for what a later clusterctl wrote."""
    if _read_version(raw) > VERSION:
        raise NewerRecordError(
            f"the record {path} has version {_read_version(raw)},"
            f" and this clusterctl reads versions up to {VERSION}",
            hint="upgrade clusterctl to the version that wrote it; the record was not changed",
        )


def _read_version(raw: dict[str, Any]) -> int:
    version = raw.get(KEY, FIRST)
    if type(version) is not int or version < FIRST:
        raise msgspec.ValidationError(f"{version!r} is not a version - at `$.{KEY}`")
    return version

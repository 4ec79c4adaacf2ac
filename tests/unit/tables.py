"""Tables of cases that are data: `tests/cases/FILE.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.core.text import read_toml

FOLDER = Path(__file__).resolve().parents[1] / "cases"


def read_rows(file: str, table: str) -> Any:
    return read_toml(FOLDER / f"{file}.toml")[table]


def rows(names: str, place: str) -> pytest.MarkDecorator:
    """`parametrize` with the table FILE.TABLE. A row is a list, or names its values, and those that
    it does not name are None. Rows may have names of their own."""
    found = read_rows(*place.split("."))
    ids = list(found) if isinstance(found, dict) else None
    many = names.split(", ")
    given = [
        [row.get(name) for name in many] if isinstance(row, dict) and many[1:] else row
        for row in (found.values() if ids else found)
    ]
    return pytest.mark.parametrize(many if many[1:] else names, given, ids=ids)

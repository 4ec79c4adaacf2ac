"""Command lines, called in this process and in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]


class Said(Struct, frozen=True):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        [line] = self.out.splitlines()
        return json.loads(line)


Call = Callable[..., Said]


def state() -> list[str]:
    home = Path(os.environ["CLUSTERCTL_HOME"])
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def clusterctl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def judge(said: Said, code: int, what: str, hint: str) -> None:
    """One line what is wrong, one line what to do, and where the log is if there is more to say."""
    assert said.code == code, said
    assert "Traceback" not in said.err
    assert said.out == ""
    first, *rest = said.err.rstrip("\n").split("\n")
    assert first.startswith("clusterctl: ")
    if code not in (2, 7):
        assert rest.pop() == f"  log: {os.environ['CLUSTERCTL_HOME']}/clusterctl.log"
    assert len(rest) == 1, said.err
    assert rest[0].startswith("  → ")
    assert what in first
    assert hint in said.err

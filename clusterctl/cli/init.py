"""The verb init: a settings file for the project at hand."""

from __future__ import annotations

from pathlib import Path

from clusterctl.actions import init as action
from clusterctl.cli.console import Console
from clusterctl.options.machine import Init


def init(given: Init, console: Console) -> None:
    given = given.apply_limits((), console.note)
    if given.only_print:
        text = action.make_text(Path.cwd())
        console.result(text.rstrip(), raw=True)
        console.document({"path": None, "text": text})
        return
    path = action.write(Path.cwd())
    console.note(f"wrote {path}; remove the # in front of a line to set it")
    console.document({"path": path, "text": path.read_text(encoding="utf-8")})

"""Verbs about this machine: check."""

from __future__ import annotations

import typer

from clusterctl import actions, verbs
from clusterctl.actions import check as action
from clusterctl.cli.console import Console, pick, table


def check(given: verbs.Check, console: Console) -> None:
    given.within((), console.note)
    found = action.check(actions.open_store())
    console.result(table((item.level, item.subject, item.text) for item in found))
    for item in found:
        if item.hint and item.level != "ok":
            console.note(f"{item.subject}: {item.hint}")
    console.document(
        {"findings": [pick(item, "level", "subject", "text", "hint") for item in found]}
    )
    if any(item.level == "error" for item in found):
        raise typer.Exit(3)

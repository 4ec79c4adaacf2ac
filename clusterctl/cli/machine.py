"""Verbs about this machine: check."""

from __future__ import annotations

import typer

from clusterctl import verbs
from clusterctl.cli.console import Console, table


def check(given: verbs.Check, console: Console) -> None:
    given.within((), console.note)
    from clusterctl import actions
    from clusterctl.actions import check as action

    found = action.check(actions.open_store())
    rows: list[tuple[str, ...]] = [(item.level, item.subject, item.text) for item in found]
    console.result(table(rows))
    for item in found:
        if item.hint and item.level != "ok":
            console.note(f"{item.subject}: {item.hint}")
    console.document({"findings": [vars_of(item) for item in found]})
    if any(item.level == "error" for item in found):
        raise typer.Exit(3)


def vars_of(item: object) -> dict[str, str]:
    return {name: getattr(item, name) for name in ("level", "subject", "text", "hint")}

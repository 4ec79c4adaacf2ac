"""Verbs about this machine: check."""

from __future__ import annotations

import typer

from clusterctl.cli.console import Console, table
from clusterctl.cli.options import ClusterOption, Json, Quiet, Verbose, applicable


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(
    context: typer.Context,
    cluster: ClusterOption = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """What this machine offers: tools, packages, state home, clusters here and on EC2."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    applicable(context, ())
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

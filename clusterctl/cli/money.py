"""Verbs about what a cluster costs: extend, gc."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clusterctl.cli.console import Console, table
from clusterctl.cli.options import (
    ClusterOption,
    Json,
    NameArgument,
    Quiet,
    Verbose,
    Yes,
    applicable,
    either,
    life_time,
)
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.model import clock


def register(app: typer.Typer) -> None:
    app.command()(extend)
    app.command()(gc)


def extend(
    context: typer.Context,
    name: NameArgument = None,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="TIME", help="From now on: 30m, 8h, 2d.")
    ] = "",
    cluster: ClusterOption = None,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Move the deadline of a cluster, on all its nodes. An earlier end needs your consent."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    if not ttl:
        raise UsageError("extend needs --ttl", hint="clusterctl extend --ttl 4h")
    seconds = life_time(ttl)
    from clusterctl import actions
    from clusterctl.actions import extend as action

    store = actions.open_store()
    chosen = actions.choose(store, either(context, name, cluster))
    consent = (lambda question: True) if yes else console.consent
    done = action.extend(store, chosen.name, seconds, console.tell, consent)
    console.note(
        f"cluster {done.cluster.name} ends at {clock(done.deadline)}; ${done.dollars:.2f} by then"
    )
    console.document(
        {"cluster": done.cluster.name, "deadline": done.deadline, "dollars": done.dollars}
    )


def gc(
    context: typer.Context,
    adopt: Annotated[
        str, typer.Option(metavar="NAME", help="Take this cluster back instead.")
    ] = "",
    region: Annotated[
        list[str] | None, typer.Option(help="Where to look (default: the usual region).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list.")] = False,
    cluster: ClusterOption = None,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Find clusters on EC2 that no record here knows, and remove them or take one back."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    from clusterctl import actions
    from clusterctl.actions import gc as action

    applicable(context, {"adopt"} if adopt else ())
    store = actions.open_store()
    if adopt:
        orphan = action.adoptable(store, adopt, region or [])
        if dry_run:
            console.result(f"would be on record again: {orphan.text}")
            console.document({"dry_run": True, "adopted": orphan.name, "id": orphan.id})
            return
        taken = action.adopt(store, orphan, console.tell)
        console.note(
            f"cluster {taken.name} is on record again: {len(taken.nodes)} nodes."
            f" `clusterctl status {taken.name}` watches it, `down {taken.name}` removes it"
        )
        console.document({"adopted": taken.name, "id": taken.id, "nodes": len(taken.nodes)})
        return
    search = action.find(store, region or [])
    looked = f"looked in {', '.join(search.regions)}; --region looks elsewhere"
    for item in search.overdue:
        console.note(
            f"cluster {item.text}: its deadline is over, but its machines still run."
            f" `clusterctl down {item.name or item.id}` removes it"
        )
    found = tuple(item for item in search.orphans if cluster in (None, item.name, item.id))
    if not found:
        console.note(f"no cluster on EC2 without a record here ({looked})")
    rows: list[tuple[str, ...]] = [("cluster", "name", "region", "left")]
    rows += [(item.id, item.name, item.region, _kinds(item)) for item in found]
    if found:
        console.result(table(rows))
        console.note(looked)
    removed: list[str] = []
    failed: list[ClusterctlError] = list(search.failed)
    for item in [] if dry_run else found:
        if yes or console.consent(f"remove {item.text}?"):
            try:
                if action.remove(store, item, console.tell):
                    removed.append(item.id)
            except ClusterctlError as error:
                failed.append(error)
    console.document(
        {
            "found": [
                {
                    "id": i.id,
                    "name": i.name,
                    "region": i.region,
                    "left": [vars_of(x) for x in i.resources],
                }
                for i in found
            ],
            "removed": removed,
            "overdue": [item.id for item in search.overdue],
            "regions": search.regions,
            "failed": [error.message for error in failed],
        }
    )
    console.raise_first(failed)


def vars_of(resource: Any) -> dict[str, str]:
    return {"kind": resource.kind, "id": resource.id}


def _kinds(orphan: Any) -> str:
    counts: dict[str, int] = {}
    for resource in orphan.resources:
        counts[resource.kind] = counts.get(resource.kind, 0) + 1
    return ", ".join(f"{number} {kind}" for kind, number in counts.items())

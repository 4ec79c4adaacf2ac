"""The verb drill."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from clusterctl.actions import common, drill_faults, drill_judge
from clusterctl.actions import drill as action
from clusterctl.cli.console import Console, format_table
from clusterctl.core.errors import UsageError
from clusterctl.core.model import ClusterSpec, NodeGroup
from clusterctl.core.text import count
from clusterctl.options.clusters import Drill

WIDTH = 60
"""Characters of a reason that the table shows; --json has all of it."""
HEAD = ("fault", "node", "step", "reported", "reason", "outcome", "lost", "left")


def drill(given: Drill, console: Console) -> None:
    store = common.open_store()
    name = common.check_name(given.choose_name() or action.NAME)
    there = action.find(store, name)
    if there and (given.provider or given.workers):
        raise UsageError(
            f"cluster {name!r} already exists; --provider and --workers apply only to a new one",
            hint="leave out these options, or choose another name",
        )
    spec = ClusterSpec(name=name, provider="", groups=(NodeGroup(count=0),))
    if not there:
        group = NodeGroup(count=given.workers or 2)
        provider = given.provider or "local"
        spec = ClusterSpec(name=name, provider=provider, groups=(group,), ttl=action.TTL)
    steps = given.steps or action.STEPS
    names = [node.name for node in there.workers] if there else action.list_workers(spec.workers)
    strikes = drill_faults.plan(given.faults, given.rounds or 1, given.seed or 0, names, steps)
    if given.dry_run:
        where = there.spec.provider if there else spec.provider
        console.note(f"cluster {name} ({where}), {count(len(names), 'worker')}, {steps} steps")
        console.result(
            format_table((item.fault, item.node, f"step {item.step}") for item in strikes)
        )
        console.document(
            {
                "dry_run": True,
                "cluster": name,
                "provider": where,
                "workers": names,
                "steps": steps,
                "rounds": strikes,
            }
        )
        return
    if there and not given.yes and not console.consent(f"Break cluster {name!r} on purpose?"):
        console.note("aborted; nothing was broken")
        raise typer.Exit(2)
    console.after_interrupt = f"`clusterctl down {name}` removes the cluster"
    rounds = []
    with action.prepare(store, spec, console.report) as cluster:
        for item in action.run(store, cluster, strikes, steps, console.report):
            rounds.append(item)
            console.report("; ".join(item.misses) or f"{item.strike.fault}: {item.outcome}")
    report(console, name, given.seed or 0, rounds)


def report(console: Console, name: str, seed: int, rounds: Sequence[drill_judge.Round]) -> None:
    """Prints the table of all rounds. Exits with 8 if something was not as expected."""
    console.result(format_table([HEAD, *map(_list_cells, rounds)]))
    missed = [item for item in rounds if item.misses]
    for item in missed:
        console.result(f"miss: {item.strike.fault}: {'; '.join(item.misses)}")
    if reports := drill_judge.describe_reports(rounds):
        console.result(reports)
    console.note(f"{count(len(rounds), 'round')}, {len(missed)} with misses")
    console.document({"cluster": name, "seed": seed, "ok": not missed, "rounds": rounds})
    if missed:
        raise typer.Exit(8)


def _list_cells(item: drill_judge.Round) -> tuple[str, ...]:
    strike = item.strike
    return (
        *(strike.fault, strike.node, str(strike.step)),
        "-" if item.reported is None else f"{item.reported:.1f} s",
        (item.reason if len(item.reason) <= WIDTH else f"{item.reason[:WIDTH]}…") or "-",
        item.outcome,
        f"{item.lost:.1f} s",
        ", ".join(item.left) or "nothing",
    )

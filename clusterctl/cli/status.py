"""Verbs that show clusters: status, list, of this machine or of the whole account, and cost."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from clusterctl.cli.clusters import describe_end, document_node
from clusterctl.cli.console import Console, ago, format_records, format_table, make_plain, pick
from clusterctl.core.text import format_time
from clusterctl.options.verbs import Cost, List, Status


def status(given: Status, console: Console) -> None:
    from clusterctl.actions import common
    from clusterctl.actions import status as actions_status
    from clusterctl.state import store as state_store

    store = common.open_store()
    live = given.live
    with console.show_waiting():
        found = actions_status.read_status(
            store, common.choose_cluster(store, given.choose_name()), live=live
        )
    what = found.cluster
    least = "at least " * bool(found.unknown_prices)
    source = ", from the record" if what.charges and not found.asked else ""
    lines = [
        f"{what.name} ({what.id}): {what.phase.value}, provider {what.spec.provider},"
        f" {': '.join(filter(None, (what.mode, what.mode_reason)))}, age {ago(found.age)},"
        f" {least}${found.dollars:.2f} so far ({least}${found.dollars_per_hour:.2f}/h{source})"
        + describe_end(what)
    ]
    if found.unknown_prices:
        lines.append(f"not included (price unknown): {', '.join(found.unknown_prices)}")
    if what.shared:
        lines.append(f"shared folder: {what.shared} on all nodes; `down` deletes it")
    if folder := state_store.find_launch_folder(store, what.name):
        lines.append(f"ends with its program; the next command then copies its outputs to {folder}")
    lines += [f"warning: {line}" for line in found.warnings]
    lines.append(format_records(_list_node(item, found.jobs, live) for item in found.nodes))
    if any(item.gpus for item in found.nodes):
        lines.append(format_records(_list_gpus(found.nodes)))
    if found.queues:
        lines.append(found.queues)
    if console.verbose:
        for item in found.nodes:
            lines.append(f"{item.node.name}: root {item.node.root}")
            lines += [
                f"  {i.device} {i.address}/{i.prefix} {'up' if i.up else 'down'}"
                for i in item.node.facts.interfaces
            ]
    if found.jobs:  # most clusters have no open job
        from clusterctl.cli.output import quote_command
    for job in found.jobs:
        lines.append(f"job {job.id}: {quote_command(job)}, {job.state.value}")
    console.result("\n".join(lines))
    console.document(**_document_status(found, live))
    if found.queues is None:
        raise typer.Exit(4)


def list_clusters(given: List, console: Console) -> None:
    from clusterctl.actions import common
    from clusterctl.actions import status as actions_status

    store = common.open_store()
    wanted = given.cluster
    if wanted is not None:
        common.choose_cluster(store, wanted)
    with console.show_waiting():
        statuses = actions_status.list_statuses(store)
    found = tuple(item for item in statuses if wanted in (None, item.cluster.name))
    damage = store.list_damage()
    for line in damage:
        console.note(line)
    if not found and not damage:
        console.note("no clusters; create one with `clusterctl up`")
    elif found:
        console.result(format_records(map(_list_cluster, found)))
        for line in (line for item in found for line in item.warnings):
            console.note(f"warning: {line}")
    console.document(clusters=[_document_status(item, False) for item in found], damage=damage)


def _list_node(item: Any, jobs: Any, live: bool) -> dict[str, object]:
    node, mpi, python = item.node, item.node.facts.mpi, item.node.facts.python
    models = Counter(node.facts.gpus)
    running = (job for job in jobs if job.state.value == "running")
    here = (str(j.id) for j in running if any(place.node == node.name for place in j.placement))
    row: dict[str, object] = {
        "node": node.name,
        "role": node.role.value,
        "address": f"{node.address}:{node.ssh_port}" if node.ssh_port else node.address or "here",
        "slots": node.slots or "-",
        "mpi": f"{mpi.flavour} {mpi.version}" if mpi else "-",
        "python": python.version if python else "-",
        "gpus": ", ".join(f"{number} x {model}" for model, number in models.items()) or None,
        "job": ", ".join(here) or None,
    }
    if live:
        row["live"] = item.live
        row["node deadline"] = format_time(item.deadline) if item.deadline else "-"
    return row


def _list_gpus(nodes: Any) -> Iterator[dict[str, object]]:
    """What each GPU does now, and for which jobs."""
    for item in nodes:
        models = dict(enumerate(item.node.facts.gpus))
        for gpu in item.gpus:
            memory = f"{gpu.memory / 1e9:.1f} of {gpu.total / 1e9:.1f} GB"
            yield {
                "node": item.node.name,
                "gpu": gpu.index,
                "model": models.get(gpu.index, "-"),
                "use": "-" if gpu.used is None else f"{gpu.used:.0%}",
                "memory": memory if gpu.total else "-",
                "job": ", ".join(map(str, gpu.jobs)) or "-",
            }


def _list_cluster(item: Any) -> dict[str, object]:
    what = item.cluster
    return {
        "name": what.name,
        "provider": what.spec.provider,
        **pick(what, "mode"),
        "phase": what.phase.value,
        "workers": what.spec.workers,
        "age": ago(item.age),
        "$/h": f"{'>= ' * bool(item.unknown_prices)}{item.dollars_per_hour:.2f}",
    }


def _document_status(found: Any, live: bool) -> dict[str, Any]:
    what = found.cluster
    return {
        "cluster": what.name,
        "provider": what.spec.provider,
        **pick(what, "id", "mode", "mode_reason", "phase", "created", "deadline", "shared"),
        "age_s": round(found.age, 1),
        **pick(found, "dollars", "dollars_per_hour", "unknown_prices", "warnings"),
        "money_from": "provider" if found.asked else "record",
        "jobs": [job.id for job in found.jobs],
        **(pick(found, "queues") if live else {}),
        "nodes": [
            {
                **document_node(item.node),
                "gpus": list(item.node.facts.gpus),
                **(pick(item, "live", "deadline") if live else {}),
                **({"gpu_use": make_plain(item.gpus)} if live else {}),
            }
            for item in found.nodes
        ],
    }


# -------------------------------------------------------------------------------------------------
# The verb `cost`.


def cost(given: Cost, console: Console) -> None:
    import csv

    from clusterctl.actions import common, costs

    with console.show_waiting():
        found = costs.sum_spending(common.open_store(), given.since, given.cluster)
    rows: dict[str, Sequence[Any]] = {
        "day": [item for item in found.days if item.dollars or not item.exact],
        "cluster": found.clusters,
        "job": found.jobs,
    }
    chosen = [make_plain(row) for row in rows[given.by]]
    if given.csv:
        if chosen and not given.json:
            writer = csv.DictWriter(sys.stdout, list(chosen[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(chosen)
    elif chosen:
        head = [name for name in chosen[0] if name not in ("exact", "dollars")]
        cells = (
            [*map(row.get, head), f"{'' if row['exact'] else '>= '}{row['dollars']:.4f}"]
            for row in chosen
        )
        console.result(format_table([[*head, "$"], *cells]))
    for line in found.warnings:
        console.note(f"warning: {line}")
    least = "" if found.exact else "at least "
    sum_of_all = f"{least}${found.dollars:.2f}{' so far' * found.running}"
    console.note(
        f"{sum_of_all} since {format_time(found.since)}, without traffic to the internet;"
        " from the records on this machine"
    )
    console.document(**make_plain(found), dollars=found.dollars, exact=found.exact)

"""Verbs about clusters: up, down, status, list, ssh, cp, forward."""

from __future__ import annotations

import time
from typing import Any

import typer

from clusterctl.cli.console import Console, ago, pick, table
from clusterctl.cli.job_output import fetched_document, note_fetched
from clusterctl.errors import UsageError
from clusterctl.model import Cluster, clock, count
from clusterctl.options.clusters import Allow, Down, List, Status, Up
from clusterctl.options.machine import Cp, Forward, Ssh
from clusterctl.options.table import DEFAULT_NAME


def up(given: Up, console: Console, *, then: bool = True) -> None:
    """`then`: say how long each phase took, and what to do next."""
    from clusterctl import actions
    from clusterctl.actions import spec as specs
    from clusterctl.actions import up as action
    from clusterctl.actions import up_plan

    called = given.wanted() or DEFAULT_NAME
    store = actions.open_store()
    resolved = up_plan.resolve(store, specs.cluster_spec(called, given))
    of = f" of cluster {called!r}" if called in store.names() else ""
    place = f"the provider{of} is {resolved.provider}"
    given = given.within(up_plan.circumstances(resolved), console.note, place)
    spec = specs.cluster_spec(called, given)
    if given.dry_run:
        with console.waiting():
            plan = up_plan.plan(store, spec, console.report)
        console.result("\n".join((f"mode: {plan.mode}", *plan.lines)))
        shown = pick(plan, "mode", "lines", "charges", "deadline")
        console.document({"dry_run": True, "cluster": spec.name, **shown})
        return
    console.after_interrupt = (
        f"what was created is kept: `clusterctl up {spec.name}` continues, "
        f"`clusterctl down {spec.name}` removes it"
    )
    consent = (lambda question: True) if given.yes else console.consent
    with console.waiting():
        made = action.up(store, spec, console.report, consent)
    up_cluster = made.cluster
    if then:
        console.note(table([(phase, f"{seconds:.2f} s") for phase, seconds in made.phases]))
    workers = count(len(up_cluster.workers), "worker")
    console.note(
        f"cluster {up_cluster.name} is ready: 1 launcher, {workers}"
        f" ({up_cluster.mode}){_ends(up_cluster)}"
        + (_next(up_cluster, alone=store.names() == (up_cluster.name,)) if then else "")
    )
    console.document(
        {
            "cluster": up_cluster.name,
            **pick(up_cluster, "id", "phase", "mode", "deadline"),
            "seconds": dict(made.phases),
            "nodes": [_node(node) for node in up_cluster.nodes],
        }
    )


def down(given: Down, console: Console) -> None:
    if given.fetch and given.force:
        raise UsageError("--force and --fetch cannot be combined", hint="leave one of them out")
    from clusterctl import actions
    from clusterctl.actions import down as action
    from clusterctl.actions.salvage import Unfetched

    store = actions.open_store()
    wanted = given.wanted()
    if wanted is None:
        wanted = actions.find_only_name(store) if store.names() else DEFAULT_NAME
    ask = (lambda question: True) if given.yes or given.force else console.confirm
    before = store.names()
    console.after_interrupt = f"`clusterctl down {wanted}` continues"
    unfetched = Unfetched(
        fetch=given.fetch,
        discard=given.discard,
        ask=console.confirm if console.interactive and not given.yes else None,
    )
    with console.waiting():
        gone = action.down(store, wanted, console.report, ask, unfetched, force=given.force)
    if gone is None:
        if wanted in before:
            console.note("aborted; nothing was removed")
            raise typer.Exit(2)
        console.note(f"no cluster named {wanted} on record here; nothing to remove")
        console.document({"cluster": wanted, "existed": False})
        return
    least = "at least " * any(line.dollars is None for line in gone.receipt)
    cost = f"{least}${gone.dollars:.2f}" if gone.receipt else f"$0.00 ({gone.provider})"
    lived = f": {gone.nodes} nodes, {ago(gone.hours * 3600)}, {cost}" if gone.nodes else ""
    if gone.receipt:
        console.note(table(_receipt(gone.receipt)))
    for brought in gone.fetched:
        note_fetched(console, brought)
    console.note(f"cluster {gone.name} was removed{lived}")
    console.document(
        {
            "cluster": gone.name,
            "existed": True,
            **pick(gone, "nodes", "dollars", "receipt", "jobs_cancelled"),
            "hours": round(gone.hours, 4),
            "unfetched": [{"job": job, "bytes": size} for job, size in gone.unfetched],
            "fetched": [fetched_document(brought) for brought in gone.fetched],
        }
    )


def status(given: Status, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import show

    store = actions.open_store()
    live = given.live
    found = show.status(store, actions.choose(store, given.wanted()), live=live)
    what = found.cluster
    lines = [
        f"{what.name} ({what.id}): {what.phase.value}, provider {what.spec.provider},"
        f" {_mode(what)}, age {ago(found.age)}, {_dollars(found.dollars, found)} so far"
        f" ({_dollars(found.dollars_per_hour, found)}/h){_ends(what)}"
    ]
    if found.unknown_prices:
        lines.append(f"not included (price unknown): {', '.join(found.unknown_prices)}")
    lines += [f"warning: {line}" for line in found.warnings]
    head = ["node", "role", "address", "slots", "mpi", "python"]
    head += ["live", "node deadline"] if live else []
    lines.append(table([head, *(_node_row(item, live) for item in found.nodes)]))
    if found.queues:
        lines.append(table(_queues(found.queues)))
    if console.verbose:
        for item in found.nodes:
            lines.append(f"{item.node.name}: root {item.node.root}")
            lines += [
                f"  {i.device} {i.address}/{i.prefix} {'up' if i.up else 'down'}"
                for i in item.node.facts.interfaces
            ]
    for job in found.jobs:
        lines.append(f"job {job.id}: {job.spec.program.target}, {job.state.value}")
    console.result("\n".join(lines))
    console.document(_status(found, live))


def list_here(given: List, console: Console) -> dict[str, Any]:
    """Shows the clusters on record, and returns them for --json."""
    from clusterctl import actions
    from clusterctl.actions import show

    store = actions.open_store()
    wanted = given.cluster
    if wanted is not None:
        actions.choose(store, wanted)
    found = tuple(item for item in show.list_statuses(store) if wanted in (None, item.cluster.name))
    damage = store.damage()
    for line in damage:
        console.note(line)
    if not found and not damage:
        console.note("no clusters; create one with `clusterctl up`")
    elif found:
        head = ["name", "provider", "mode", "phase", "workers", "age", "$/h"]
        console.result(table([head, *map(_cluster_row, found)]))
        for line in (line for item in found for line in item.warnings):
            console.note(f"warning: {line}")
    return {"clusters": [_status(item, False) for item in found], "damage": damage}


def allow(given: Allow, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import allow as action

    store = actions.open_store()
    chosen = actions.choose(store, given.cluster)
    allowed = action.allow(store, chosen.name, given.networks, console.report)
    console.note(f"cluster {chosen.name} accepts SSH from {', '.join(allowed)}")
    console.document({"cluster": chosen.name, "networks": list(allowed)})


def ssh(given: Ssh, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import reach

    given = given.within({"json"} if given.json else (), console.note)
    store = actions.open_store()
    chosen = actions.choose(store, given.cluster)
    node, words = given.node or None, list(given.command)
    if not given.json:
        raise typer.Exit(reach.shell(store, chosen, node, words))
    if not words:
        raise UsageError("--json needs a command", hint="clusterctl ssh --json NODE -- COMMAND")
    result = reach.execute(store, chosen, node, words, given.timeout)
    console.document(
        {
            **pick(result, "node", "exit_code", "error"),
            "stdout": result.text,
            "stderr": result.stderr.decode(errors="replace"),
        }
    )
    raise typer.Exit(4 if result.exit_code is None else result.exit_code)


def forward(given: Forward, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import reach

    store = actions.open_store()
    chosen = actions.choose(store, given.cluster)
    argv, here = reach.forward_argv(chosen, given.target, given.port)
    console.note(f"http://{here} leads to {given.target} of cluster {chosen.name}; Ctrl-C ends it")
    console.document({"address": here, "target": given.target, "cluster": chosen.name})
    code = reach.forward(store, chosen, argv, argv[-1])
    raise typer.Exit(130 if code in (-2, 130, 255) else code)


def cp(given: Cp, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import reach

    store = actions.open_store()
    chosen = actions.choose(store, given.cluster)
    reach.copy(store, chosen, given.source, given.target, given.timeout)
    console.document({"source": given.source, "target": given.target})


def _next(cluster: Cluster, *, alone: bool) -> str:
    option, argument = ("", "") if alone else (f"-c {cluster.name} ", f" {cluster.name}")
    return (
        f". Next:\n  clusterctl run {option}{_program(cluster)} 1000 1000\n"
        f"  clusterctl status{argument}\n  clusterctl down{argument}"
    )


def _node_row(item: Any, live: bool) -> list[object]:
    node, mpi, python = item.node, item.node.facts.mpi, item.node.facts.python
    place = f"{node.address}:{node.ssh_port}" if node.ssh_port else node.address or "here"
    versions = f"{mpi.flavour} {mpi.version}" if mpi else "-", python.version if python else "-"
    now = [item.live, clock(item.deadline) if item.deadline else "-"] if live else []
    return [node.name, node.role.value, place, node.slots, *versions, *now]


def _cluster_row(item: Any) -> list[object]:
    what = item.cluster
    rate = f"{'>= ' * bool(item.unknown_prices)}{item.dollars_per_hour:.2f}"
    kind = [what.name, what.spec.provider, what.mode, what.phase.value]
    return [*kind, what.spec.workers, ago(item.age), rate]


def _dollars(dollars: float, found: Any) -> str:
    return f"{'at least ' * bool(found.unknown_prices)}${dollars:.2f}"


def _queues(queues: Any) -> list[list[object]]:
    """Partitions or queues: what is free, of what there is."""
    rows: list[list[object]] = [["queue", "nodes free", "slots free", "gpus free", "nodes down"]]
    for queue in queues:
        nodes = f"{queue.free_nodes} of {queue.nodes}"
        slots = f"{queue.free_slots} of {queue.slots}"
        gpus = f"{queue.free_gpus} of {queue.gpus}" if queue.gpus else "-"
        rows.append([queue.name, nodes, slots, gpus, queue.down])
    return rows


def _ends(cluster: Cluster) -> str:
    if not cluster.deadline:
        return ""
    word = "ends" if cluster.deadline > time.time() else "ended"
    return f", {word} {clock(cluster.deadline)}"


def _program(cluster: Cluster) -> str:
    """The bundled program that shows what the cluster is for."""
    gpu = any(node.accelerator.value != "none" for node in cluster.workers)
    named = any(group.family not in ("", "cpu") for group in cluster.spec.groups)
    return "multinode_ddp_mpi_gpu.py" if gpu or named else "multinode_ddp_mpi.py"


def _receipt(lines: Any) -> list[list[object]]:
    rows: list[list[object]] = [["part", "item", "count", "hours", "$/h", "$"]]
    for line in lines:
        known = line.hourly is not None
        prices = [f"{line.hourly:.4f}", f"{line.dollars:.4f}"] if known else ["?", "?"]
        rows.append([line.part, line.item, line.count, f"{line.hours:.3f}", *prices])
    return rows


def _mode(cluster: Cluster) -> str:
    reason = f": {cluster.mode_reason}" if cluster.mode_reason else ""
    return f"{cluster.mode}{reason}"


def _node(node: Any) -> dict[str, Any]:
    where = pick(node, "name", "role", "address", "private_address", "ssh_port", "user", "root")
    return {**where, **pick(node, "slots", "accelerator"), **pick(node.facts, "mpi", "python")}


def _status(found: Any, live: bool) -> dict[str, Any]:
    what = found.cluster
    return {
        "cluster": what.name,
        "provider": what.spec.provider,
        **pick(what, "id", "mode", "mode_reason", "phase", "created", "deadline"),
        "age_s": round(found.age, 1),
        **pick(found, "dollars", "dollars_per_hour", "unknown_prices", "warnings"),
        "jobs": [job.id for job in found.jobs],
        **(pick(found, "queues") if live else {}),
        "nodes": [
            {**_node(item.node), **(pick(item, "live", "deadline") if live else {})}
            for item in found.nodes
        ],
    }

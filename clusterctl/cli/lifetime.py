"""Verbs about how long a cluster runs: extend, stop, start."""

from __future__ import annotations

import time

import typer

from clusterctl.actions import common, costs, lifetime
from clusterctl.actions import gc as actions_gc
from clusterctl.cli import clusters
from clusterctl.cli.console import Console, ago, format_table, pick
from clusterctl.core.text import count, format_time
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.insight import cost
from clusterctl.options.verbs import Extend, Gc, Start, Stop, Up
from clusterctl.state.home import name_client
from clusterctl.state.store import Store


def extend(given: Extend, console: Console) -> None:
    if not given.ttl:
        raise UsageError("extend needs --ttl", hint="clusterctl extend --ttl 4h")
    store, chosen = common.open_cluster(given.choose_name())
    consent = (lambda question: True) if given.yes else console.consent
    with console.show_waiting():
        cluster, dollars = lifetime.extend(store, chosen.name, given.ttl, console.report, consent)
    end = cluster.deadline or 0.0
    console.note(
        f"cluster {cluster.name} shuts down at {format_time(end)};"
        f" cost until then: {cost.render_cost(dollars, cost.is_exact(cluster.charges))}"
    )
    console.document(cluster=cluster.name, deadline=end, dollars=dollars)


def stop(given: Stop, console: Console) -> None:
    store, chosen = common.open_cluster(given.choose_name())
    ask = (lambda question: True) if given.yes else console.confirm
    with console.show_waiting():
        done = lifetime.stop(store, chosen.name, console.report, ask)
    if done is None:
        console.note("aborted; nothing was stopped")
        raise typer.Exit(2)
    cluster, ended = done
    console.note(
        f"{costs.describe_stopped(cluster)}. Next:\n"
        f"  clusterctl start {cluster.name}\n  clusterctl down {cluster.name}"
    )
    console.document(
        cluster=cluster.name,
        phase=cluster.phase,
        dollars_per_hour=cost.sum_hourly(cluster.charges),
        deadline=cluster.deadline,
        jobs_cancelled=list(ended),
    )


def start(given: Start, console: Console) -> None:
    chosen = common.choose_cluster(common.open_store(), given.choose_name())
    lifetime.require_pausing(chosen)
    clusters.up(given.pick_options(Up, name=chosen.name, cluster=None), console)


# -------------------------------------------------------------------------------------------------
# The verb gc: clusters in the account that this machine has no record of.


def gc(given: Gc, console: Console) -> None:
    given = given.apply_limits({"adopt"} if given.adopt else (), console.note)
    store, region = common.open_store(), list(given.region)
    if given.adopt:
        return _adopt(given, store, console)
    with console.show_waiting():
        search = actions_gc.find_leftovers(store, region)
    regions = search.regions
    where = ", ".join(regions) if len(regions) <= 4 else f"{len(regions)} regions"
    looked = f"searched {where}; --region searches other regions"
    found = tuple(item for item in search.orphans if given.cluster in (None, item.name, item.id))
    if found:
        console.result(format_table([HEAD, *map(_list_cells, found)]))
    none = not found and not search.failed  # in all regions, as far as is known
    console.note(f"no EC2 clusters without a local record ({looked})" if none else looked)
    removed: list[str] = []
    failed: list[ClusterctlError] = list(search.failed)
    for item in [] if given.dry_run else found:
        own = actions_gc.is_own(item, search.mine)
        if given.yes and not own and given.cluster != item.id:
            me = actions_gc.describe_owner(search.mine, name_client())
            console.note(
                f"cluster {item.id} belongs to {item.whose}, and you are {me}: to remove it, run"
                f" `clusterctl gc --yes -c {item.id}`"
            )
            continue
        if given.yes or console.consent(f"remove {item.text}?"):
            try:
                with console.show_waiting():
                    gone = actions_gc.remove(store, item, console.report)
                removed += [item.id] * gone
            except ClusterctlError as error:
                failed.append(error)
    console.document(
        found=[
            {
                **pick(item, "id", "name", "region", "owner", "client", "deadline"),
                **pick(item, "made", "hourly"),
                "every_price_known": item.priced,
                "left": [pick(resource, "kind", "id") for resource in item.resources],
            }
            for item in found
        ],
        removed=removed,
        regions=regions,
        failed=[error.message for error in failed],
    )
    console.raise_first(failed)


def _adopt(given: Gc, store: Store, console: Console) -> None:
    """Takes a cluster back whose record is lost."""
    with console.show_waiting():
        orphan = actions_gc.find_adoptable(store, given.adopt, given.region)
    if given.dry_run:
        console.result(f"would take back cluster {orphan.text}")
        console.document(dry_run=True, adopted=orphan.name, id=orphan.id)
        return
    with console.show_waiting():
        taken = actions_gc.adopt(store, orphan, console.report)
    until = f"until {format_time(taken.deadline)}" if taken.deadline else "no deadline is known"
    console.note(
        f"cluster {taken.name} was taken back: {count(len(taken.nodes), 'node')}, {until}. Next:\n"
        f"  clusterctl status {taken.name}\n"
        f"  clusterctl down {taken.name}"
    )
    shown = pick(taken, "id", "deadline")
    console.document(adopted=taken.name, **shown, nodes=len(taken.nodes))


HEAD = ("cluster", "name", "region", "owner", "from", "age", "ends", "$/h", "resources")


def _list_cells(item: actions_gc.Orphan) -> tuple[object, ...]:
    """One row below HEAD."""
    return (
        *(item.id, item.name or "-", item.region, item.owner or "-", item.client or "-"),
        ago(time.time() - item.made) if item.made else "-",
        format_time(item.deadline) if item.deadline else "-",
        f"{'' if item.priced else '>= '}{item.hourly:.2f}",
        item.kinds,
    )

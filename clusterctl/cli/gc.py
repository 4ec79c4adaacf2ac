"""The verb gc: clusters in the account that this machine has no record of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from clusterctl import actions
from clusterctl.actions import Store
from clusterctl.actions import gc as action
from clusterctl.cli.console import Console, ago, format_table, pick
from clusterctl.errors import ClusterctlError
from clusterctl.formats import count, format_time
from clusterctl.options.clusters import Gc


def gc(given: Gc, console: Console) -> None:
    given = given.apply_limits({"adopt"} if given.adopt else (), console.note)
    store, region = actions.open_store(), list(given.region)
    if given.adopt:
        return _adopt(given, store, console)
    with console.show_waiting():
        search = action.find(store, region)
    looked = describe_searched(search.regions)
    for item in search.overdue:
        console.note(
            f"cluster {item.text}: past its deadline, but its machines are still running;"
            f" remove it with `clusterctl down {item.name or item.id}`"
        )
    found = tuple(item for item in search.orphans if given.cluster in (None, item.name, item.id))
    if not found:
        console.note(f"no EC2 clusters without a local record ({looked})")
    if found:
        rows = [(*_list_cells(store, item), _count_kinds(item)) for item in found]
        console.result(format_table([(*HEAD, "resources"), *rows]))
        console.note(looked)
    removed: list[str] = []
    failed: list[ClusterctlError] = list(search.failed)
    for item in [] if given.dry_run else found:
        own = action.is_own(item, search.mine)
        if given.yes and not own and given.cluster != item.id:
            console.note(
                f"cluster {item.id} belongs to {item.whose}, and you are"
                f" {action.describe_me(search.mine)}: to remove it, run"
                f" `clusterctl gc --yes -c {item.id}`"
            )
            continue
        if given.yes or console.consent(f"remove {item.text}?"):
            try:
                with console.show_waiting():
                    gone = action.remove(store, item, console.report)
                removed += [item.id] * gone
            except ClusterctlError as error:
                failed.append(error)
    console.document(
        {
            "found": [
                {
                    **document_cloud(store, item),
                    "left": [pick(resource, "kind", "id") for resource in item.resources],
                }
                for item in found
            ],
            "removed": removed,
            "overdue": [item.id for item in search.overdue],
            "regions": search.regions,
            "failed": [error.message for error in failed],
        }
    )
    console.raise_first(failed)


def _adopt(given: Gc, store: Store, console: Console) -> None:
    """Takes a cluster back whose record is lost."""
    with console.show_waiting():
        orphan = action.find_adoptable(store, given.adopt, given.region)
    if given.dry_run:
        console.result(f"would take back cluster {orphan.text}")
        console.document({"dry_run": True, "adopted": orphan.name, "id": orphan.id})
        return
    with console.show_waiting():
        taken = action.adopt(store, orphan, console.report)
    console.note(
        f"cluster {taken.name} was taken back: {count(len(taken.nodes), 'node')}. Next:\n"
        f"  clusterctl status {taken.name}\n"
        f"  clusterctl down {taken.name}"
    )
    console.document({"adopted": taken.name, "id": taken.id, "nodes": len(taken.nodes)})


HEAD = ("cluster", "name", "region", "owner", "from", "age", "ends", "$/h", "jobs")


def describe_searched(regions: Sequence[str]) -> str:
    """Where that was, in words."""
    where = ", ".join(regions) if len(regions) <= 4 else f"{len(regions)} regions"
    return f"searched {where}; --region searches other regions"


def _list_cells(store: Store, item: action.Orphan) -> tuple[object, ...]:
    """One row below HEAD. The jobs that run are known of the clusters of this machine."""
    known = any(cluster.id == item.id for cluster in store.list_clusters())
    return (
        *(item.id, item.name or "-", item.region, item.owner or "-", item.client or "-"),
        ago(time.time() - item.made) if item.made else "-",
        format_time(item.deadline) if item.deadline else "-",
        f"{'' if item.priced else '>= '}{item.hourly:.2f}",
        len(_list_running(store, item)) if known else "?",
    )


def _list_running(store: Store, item: action.Orphan) -> list[int]:
    return [
        job.id for job in store.list_jobs() if job.cluster_id == item.id and not job.state.ended
    ]


def document_cloud(store: Store, item: action.Orphan) -> dict[str, Any]:
    """A cluster as the cloud knows it, for --json."""
    return {
        **pick(item, "id", "name", "region", "owner", "client", "deadline", "made", "hourly"),
        "every_price_known": item.priced,
        "jobs": _list_running(store, item),
    }


def list_all(console: Console) -> dict[str, Any]:
    """Every cluster of the account, whoever made it: shown, and returned for --json."""
    store = actions.open_store()
    with console.show_waiting():
        search = action.find(store)
    console.result(format_table([HEAD, *(_list_cells(store, item) for item in search.tagged)]))
    console.note(describe_searched(search.regions).partition(";")[0])
    for error in search.failed:
        console.note(f"warning: {error.message}")
    return {
        "cloud": [document_cloud(store, item) for item in search.tagged],
        "regions": search.regions,
        "failed": [error.message for error in search.failed],
    }


def _count_kinds(orphan: Any) -> str:
    counts: dict[str, int] = {}
    for resource in orphan.resources:
        counts[resource.kind] = counts.get(resource.kind, 0) + 1
    return ", ".join(f"{number} {kind}" for kind, number in counts.items())

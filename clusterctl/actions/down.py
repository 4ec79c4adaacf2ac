"""`down`: saves what is worth keeping, removes everything, and proves that nothing is left."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.actions import costs
from clusterctl.actions.common import Unfetched, check_name
from clusterctl.core.job import JobState
from clusterctl.core.model import Cluster, ClusterSpec, Consent, Phase, Reporter
from clusterctl.errors import (
    ClusterctlError,
    LeftoverError,
    NewerRecordError,
    ProviderError,
    RecordError,
    UsageError,
)
from clusterctl.insight import cost
from clusterctl.machines import providers
from clusterctl.machines.protocol import Cloud
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store

if TYPE_CHECKING:
    from clusterctl.actions.jobs import Fetched
    from clusterctl.actions.shared_folder import BroughtFolder


class DownResult(Struct, frozen=True):
    """What was taken down. `hours` is how long the cluster lived; 0, like the number of nodes,
    where its record was lost."""

    name: str
    nodes: int = 0
    hours: float = 0.0
    jobs_cancelled: tuple[int, ...] = ()
    unfetched: tuple[tuple[int, int], ...] = ()
    """Jobs with outputs that went unfetched, and how many bytes they were."""
    fetched: tuple[Fetched, ...] = ()
    """What was brought first."""
    shared: BroughtFolder | None = None
    """So was the folder that all nodes shared."""
    receipt: tuple[cost.Line, ...] = ()
    dollars: float = 0.0
    provider: str = ""
    left: tuple[dict[str, str], ...] = ()
    """Hosts that did not answer and were let go, with the folder that is still there."""


def take_down(
    store: Store,
    name: str,
    report: Reporter,
    ask: Consent,
    unfetched: Unfetched,
    *,
    force: bool = False,
    verb: str = "down",
) -> DownResult | None:
    """None when there is nothing of that name, or the person said no. `verb` is `detach` for
    machines that are not ours: there only what we have put on them goes.

    `force` saves nothing and asks nobody. Raises UsageError where outputs would be lost unasked.
    """
    check_name(name)
    if verb == "detach" and name not in store.list_names():
        store.read_cluster(name)  # says so: nothing else knows of machines that are not ours
    with ClusterLock(store.home, name, verb, report):
        known = False
        try:
            cluster = store.read_cluster(name)
            known = True
            providers.load_provider(cluster.spec.provider)
        except NewerRecordError:
            raise
        except RecordError as error:
            if known and not force:
                path = store.locate_folder(name) / "cluster.json"
                more = "--force removes the record, and what can be found by tags"
                raise RecordError(error.message, hint=f"correct it in {path}; {more}") from error
            return _take_down_unrecorded(store, name, error, report, ask, force)
        if verb != cluster.end:
            how = "was attached" if cluster.attached else "was created by clusterctl"
            raise UsageError(f"cluster {name!r} {how}", hint=f"clusterctl {cluster.end} {name}")
        cluster = costs.settle(store, cluster, report)
        living = None
        if cluster.charges:
            # Before a job is ended for a cluster that would then stay.
            with costs.report_failure(cluster, report, "nothing was removed"):
                folder = store.locate_folder(name)
                living = providers.list_living(cluster, folder, time.time())
        asks = bool(cluster.nodes) and cluster.phase is not Phase.DELETING and not force
        if asks:
            store.check_jobs(cluster)
        saved: dict[str, Any] = {}
        jobs = store.list_cluster_jobs(cluster) or store.list_unrecorded_jobs(cluster)
        if asks and (cluster.shared or jobs):
            from clusterctl.actions import outputs  # most clusters are removed without

            kept = outputs.save(store, cluster, living, report, ask, unfetched)
            if kept is None:
                return None
            saved = kept
        elif cluster.attached and not asks:
            from clusterctl.actions import outputs

            saved = {"jobs_cancelled": outputs.end_jobs(store, cluster, report)}
        left: list[dict[str, str]] = []
        cluster = finish_down(store, cluster, report, left=left if force else None)
    now = time.time()
    return DownResult(
        name,
        nodes=len(cluster.nodes),
        hours=(now - cluster.created) / 3600,
        receipt=cost.make_receipt(cluster.charges, now),
        dollars=cost.sum_dollars(cluster.charges, now),
        provider=cluster.spec.provider,
        left=tuple(left),
        **saved,
    )


def finish_down(
    store: Store,
    cluster: Cluster,
    report: Reporter,
    *,
    left: list[dict[str, str]] | None = None,
    clock: Callable[[], float] = time.time,
) -> Cluster:
    """The part that is safe to repeat: destroy, then let the record go; returns its last state.

    Machines go also where nothing can be written: a full disk must not keep them. `left`: also lets
    go of machines that are not ours and do not answer, and gets them.
    """
    folder = store.locate_folder(cluster.name)
    cluster = replace(_look(cluster, folder, clock()), phase=Phase.DELETING)
    # With what it has cost, which nobody knows any more when it is gone.
    with _continue_without(report):
        store.save(cluster)
    store.add_event(cluster.name, "deleting")
    try:
        providers.load_provider(cluster.spec.provider).destroy(cluster, folder, report)
    except ClusterctlError as error:
        if left is None or not (cluster.attached and isinstance(error, LeftoverError)):
            _note_left(store, cluster, report, clock())
            raise
        left += error.left
    except KeyboardInterrupt:
        costs.report_left(cluster, report)
        raise
    now = clock()
    charges = _look(cluster, folder, now).charges
    cluster = replace(
        cluster,
        charges=tuple(
            item if item.until is not None else replace(item.end_at(now), unseen=True)
            for item in charges
        ),
    )
    for line in costs.describe_doubts(cluster, now):
        report(line)
    how = "detached" if cluster.attached else "taken down"
    for job in store.list_open_jobs(cluster):
        with _continue_without(report):
            store.save_job(replace(job, state=JobState.LOST, reason=f"its cluster was {how}"))
    store.add_event(cluster.name, "deleted")
    with _continue_without(report):
        store.retire(cluster)
    return cluster


def _note_left(store: Store, cluster: Cluster, report: Reporter, now: float) -> None:
    """After a removal that broke off: says what runs, and keeps the ends of what does not, which
    are forgotten an hour later."""
    cluster = _look(cluster, store.locate_folder(cluster.name), now)
    with _continue_without(report):
        store.save(cluster)
    costs.report_left(cluster, report)


def _look(cluster: Cluster, folder: Path, now: float) -> Cluster:
    """With the charges of what there is or was; as they are where that is not told."""
    with suppress(ClusterctlError):
        return providers.settle(cluster, folder, now)
    return cluster


def find_orphans(store: Store, name: str) -> tuple[Cluster, ...]:
    """The clusters that run under this name and have no record, as their machines tell it."""
    folder = store.locate_folder(name)
    return tuple(
        Cluster(
            id=id,
            spec=ClusterSpec(name=name, provider=provider, groups=()),
            phase=Phase.DELETING,
            created=time.time(),
        )
        for provider, id in providers.find_ids(folder)
    )


def _take_down_unrecorded(
    store: Store, name: str, why: RecordError, report: Reporter, ask: Consent, force: bool
) -> DownResult | None:
    """Takes down what can be found of a cluster whose record is damaged or gone. Raises RecordError
    where it cannot be known which one that was, unless `force`."""
    try:
        found = find_orphans(store, name)
    except RecordError as error:
        if not force:
            raise
        report(f"{error.message}; {error.hint}")
        found = ()
    if not found and name not in store.list_names():
        if store.list_names():
            raise why
        return None
    report(why.message)
    question = "its outputs, logs and shared folder cannot be saved; remove it anyway?"
    if found and not ask(question):
        return None
    for cluster in found:
        report(f"found {cluster.id} by its tags")
        if isinstance(providers.load_provider(cluster.spec.provider), Cloud):
            report(
                "what it has cost was on its record: there is no receipt, and `cost` does not count"
                " it"
            )
        finish_down(store, cluster, report)
    shutil.rmtree(store.locate_folder(name), ignore_errors=True)
    return DownResult(name)


@contextmanager
def _continue_without(report: Reporter) -> Iterator[None]:
    """Says what could not be written, and goes on."""
    try:
        yield
    except (ProviderError, UsageError) as error:
        report(f"{error.message}; continuing without it")

"""`down`: saves what is worth keeping, removes everything, and proves that nothing is left."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl import providers
from clusterctl.actions import check_name, ended_workers, salvage, shared_folder
from clusterctl.actions.jobs import Fetched
from clusterctl.actions.running_costs import describe_doubts, report_left, report_price
from clusterctl.actions.unfetched import Unfetched
from clusterctl.charge_model import NETWORK_PARTS, Charge
from clusterctl.errors import (
    ClusterctlError,
    LeftoverError,
    NewerRecordError,
    ProviderError,
    RecordError,
    UsageError,
)
from clusterctl.insight import cost
from clusterctl.job_model import JobState
from clusterctl.model import Cluster, ClusterSpec, Consent, Phase, Reporter
from clusterctl.providers.protocol import Ended, Life, Recovering, Repricing
from clusterctl.providers.shared import charges as measured
from clusterctl.state import ClusterLock, Store

_ACT = {"down": "take the cluster down", "detach": "remove clusterctl's files from its machines"}
"""What a verb does, in its questions."""


@dataclass(frozen=True, slots=True)
class DownResult:
    """What was taken down. `hours` is how long the cluster lived; 0, like the number of nodes,
    where its record was lost."""

    name: str
    nodes: int
    hours: float
    jobs_cancelled: tuple[int, ...]
    unfetched: tuple[tuple[int, int], ...]
    """Jobs with outputs that went unfetched, and how many bytes they were."""
    fetched: tuple[Fetched, ...] = ()
    """What was brought first."""
    shared: shared_folder.BroughtFolder | None = None
    """So was the folder that all nodes shared."""
    receipt: tuple[cost.Line, ...] = ()
    dollars: float = 0.0
    provider: str = ""


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
    with ClusterLock(store.home, name, verb, report):
        try:
            cluster = store.read_cluster(name)
        except NewerRecordError:
            raise
        except RecordError as error:
            return _take_down_unrecorded(store, name, error, report, ask, force)
        try:
            providers.load(cluster.spec.provider)
        except RecordError as error:
            if force:
                return _take_down_unrecorded(store, name, error, report, ask, force)
            path = store.locate_folder(name) / "cluster.json"
            raise RecordError(
                f"{path} names an unknown provider, {cluster.spec.provider!r}",
                hint="correct it there; --force removes the record, and what can be found by tags",
            ) from error
        if verb != cluster.end:
            how = "was attached" if cluster.attached else "was created by clusterctl"
            raise UsageError(f"cluster {name!r} {how}", hint=f"clusterctl {cluster.end} {name}")
        cluster = ended_workers.settle(store, cluster, report)
        living = _list_living(store, cluster, report) if cluster.charges else None
        saved = salvage.Saved()
        if cluster.nodes and cluster.phase is not Phase.DELETING and not force:
            done = salvage.save(store, cluster, living, report, ask, unfetched, _ACT[verb])
            if done is None:
                return None
            saved = done
        elif cluster.attached:
            saved = salvage.Saved(cancelled=salvage.end_jobs(store, cluster, report))
        cluster = finish_down(store, cluster, report, force=force)
    return _sum_up(cluster, saved, time.time())


def _sum_up(cluster: Cluster, saved: salvage.Saved, now: float) -> DownResult:
    return DownResult(
        cluster.name,
        len(cluster.nodes),
        (now - cluster.created) / 3600,
        saved.cancelled,
        saved.lost,
        saved.fetched,
        saved.shared,
        cost.make_receipt(cluster.charges, now),
        cost.sum_dollars(cluster.charges, now),
        cluster.spec.provider,
    )


def finish_down(
    store: Store,
    cluster: Cluster,
    report: Reporter,
    *,
    force: bool = False,
    clock: Callable[[], float] = time.time,
) -> Cluster:
    """The part that is safe to repeat: destroy, then let the record go; returns its last state.

    Machines go also where nothing can be written: a full disk must not keep them. `force` also lets
    go of machines that are not ours and do not answer.
    """
    folder = store.locate_folder(cluster.name)
    if cluster.charges and cluster.phase is Phase.CREATING:
        cluster = reprice(cluster, folder, report)
    planned = cluster
    cluster, unseen, ends = _confirm_charges(planned, folder, clock())
    cluster = replace(cluster, phase=Phase.DELETING)
    # With what it has cost, which nobody knows any more when it is gone.
    kept = _leave_open(cluster, unseen, planned, ends)
    with _continue_without(report):
        store.save(kept)
    store.add_event(cluster.name, "deleting")
    try:
        providers.load(cluster.spec.provider).destroy(cluster, folder, report)
    except LeftoverError as error:
        if not (force and cluster.attached):
            _note_left(store, kept, report, clock())
            raise
        report(error.message)
    except ClusterctlError:
        _note_left(store, kept, report, clock())
        raise
    now = clock()
    lives = _list_lives(cluster, folder)
    never = {item.node for item in unseen} - {life.node for life in lives}
    made = [i for i in cluster.charges if i.part in NETWORK_PARTS or i.node not in never]
    charges = measured.correct(made, lives)
    cluster = replace(cluster, charges=tuple(item.end_at(now) for item in charges))
    for line in describe_doubts(planned, ends, cluster.charges, now):
        report(line)
    how = "detached" if cluster.attached else "taken down"
    for job in store.list_open_jobs(cluster):
        with _continue_without(report):
            store.save_job(replace(job, state=JobState.LOST, reason=f"its cluster was {how}"))
    store.add_event(cluster.name, "deleted")
    with _continue_without(report):
        store.retire(cluster)
    return cluster


def _confirm_charges(
    cluster: Cluster, folder: Path, now: float
) -> tuple[Cluster, Sequence[Charge], Mapping[str, Ended]]:
    """The cluster with the charges of what there is or was, those of them that nobody has seen (a
    machine of an `up` that was cut off a moment ago may not be shown yet, and whether there was one
    is known when all are gone), and the ends that the cloud tells."""
    if not cluster.charges:
        return cluster, (), {}
    found, ends = _find_made(cluster, folder, now)
    machines = [item for item in cluster.charges if item.part not in NETWORK_PARTS]
    seen = {item.node for item in found if item.part not in NETWORK_PARTS}
    unseen = [item for item in machines if not (item.until or item.node in seen)]
    return replace(cluster, charges=(*found, *unseen)), unseen, ends


def _leave_open(
    cluster: Cluster, unseen: Collection[Charge], planned: Cluster, ends: Mapping[str, Ended]
) -> Cluster:
    """For the record: what nobody tells the end of is asked for again by the next `down`. What
    nobody has seen is closed as it began, for that takes what is open as having been there."""
    unknown = {name for name, end in ends.items() if end.doubt}
    found = [item.end_at(item.since) if item in unseen else item for item in cluster.charges]
    kept = [item for item in found if item.node not in unknown]
    still = [item for item in planned.charges if item.node in unknown]
    return replace(cluster, charges=(*kept, *still))


def _note_left(store: Store, cluster: Cluster, report: Reporter, now: float) -> None:
    """After a removal that broke off: says what runs, and keeps the ends of what does not, which
    are forgotten an hour later."""
    planned = cluster
    cluster, unseen, ends = _confirm_charges(planned, store.locate_folder(cluster.name), now)
    with _continue_without(report):
        store.save(_leave_open(cluster, unseen, planned, ends))
    report_left(cluster, report)


def _list_living(store: Store, cluster: Cluster, report: Reporter) -> Collection[str]:
    """The nodes that are billed. Raises the provider's error where it does not let us in: before a
    job is ended for a cluster that would then stay."""
    try:
        return providers.load_billing(cluster).list_billed(
            cluster, store.locate_folder(cluster.name)
        )
    except ClusterctlError:
        report_price(cluster, report)
        raise


def _find_made(
    cluster: Cluster, folder: Path, now: float
) -> tuple[tuple[Charge, ...], Mapping[str, Ended]]:
    """The charges of machines that there are, or were, and the ends that the cloud tells: an `up`
    that broke off has planned more, and those that are gone cost no more."""
    provider = providers.load_billing(cluster)
    try:
        network = providers.find_network(cluster, folder, pending=False)
        ends = provider.list_ended(cluster, folder)
        lives = _list_lives(cluster, folder)
        # Last, for what a killed `up` launched a moment ago is not shown by earlier answers.
        there = {*provider.list_billed(cluster, folder), *network}
    except ClusterctlError:
        return cluster.charges, {}
    kept = provider.list_made(folder)
    made = measured.find_made(cluster, kept, lives)
    leaving = measured.find_leaving(cluster, kept)
    charges = measured.settle(cluster, living=there, made=made, now=now, ends=ends, leaving=leaving)
    charges = measured.add_restarts(cluster, charges, lives, ends)
    return measured.correct(charges, lives), ends


def reprice(cluster: Cluster, folder: Path, report: Reporter) -> Cluster:
    """After an `up` that broke off, the cluster with the prices of what its machines have come to
    be, where that is told: on-demand ones, perhaps, in place of spot instances."""
    provider = providers.load(cluster.spec.provider)
    if isinstance(provider, Repricing):
        with _continue_without(report):
            return replace(cluster, charges=provider.reprice(cluster, folder, report))
    return cluster


def correct_times(cluster: Cluster, folder: Path) -> tuple[Charge, ...]:
    """The charges with the times of whoever bills the machines, where those are told. For the
    record: AWS forgets machines an hour after their end."""
    return measured.correct(cluster.charges, _list_lives(cluster, folder))


def _list_lives(cluster: Cluster, folder: Path) -> Sequence[Life]:
    """When machines began and ended; () where that is not told."""
    if not cluster.charges:
        return ()
    try:
        return providers.load_billing(cluster).list_lives(cluster, folder)
    except ClusterctlError:
        return ()


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
        for provider in providers.PROVIDERS
        if isinstance(loaded := providers.load(provider), Recovering)
        for id in sorted(loaded.find_ids(folder))
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
        if isinstance(providers.load(cluster.spec.provider), Repricing):
            report(
                "what it has cost was on its record: there is no receipt, and `cost` does not count"
                " it"
            )
        finish_down(store, cluster, report)
    shutil.rmtree(store.locate_folder(name), ignore_errors=True)
    return DownResult(name, 0, 0.0, (), ())


@contextmanager
def _continue_without(report: Reporter) -> Iterator[None]:
    """Says what could not be written, and goes on."""
    try:
        yield
    except (ProviderError, UsageError) as error:
        report(f"{error.message}; continuing without it")

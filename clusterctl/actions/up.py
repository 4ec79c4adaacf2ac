"""`up`: from a plan to a checked cluster. Repeating it resumes, or changes the workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from clusterctl.actions import run, running_costs
from clusterctl.actions.common import check_name, open_pool
from clusterctl.actions.down import find_orphans, finish_down
from clusterctl.actions.up_bootstrap import (
    bootstrap_nodes,
    connect,
    find_troubles,
    record_failed_create,
    report_left,
    write_ssh,
)
from clusterctl.actions.up_plan import (
    Intent,
    add_regions,
    agree,
    find_owned,
    find_places,
    intend,
    keep_budget,
    make_id,
)
from clusterctl.core import keys
from clusterctl.core import progress as core_progress
from clusterctl.core.model import Charge, Cluster, ClusterSpec, Consent, Phase, Reporter
from clusterctl.core.progress import NodePhases
from clusterctl.errors import ClusterctlError
from clusterctl.insight import cost
from clusterctl.machines import bootstrap, providers
from clusterctl.machines import charges as machines_charges
from clusterctl.machines.bootstrap import StepReporter
from clusterctl.machines.protocol import LAUNCHER, Created, NoCapacity
from clusterctl.state.home import Home, name_client, write_atomic
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool

if TYPE_CHECKING:
    from clusterctl.insight.verify import Measurements


# -------------------------------------------------------------------------------------------------
# How long the phases of an `up` take, and what a live view calls them.


BOOTSTRAP = "bootstrap"
STAGES = {
    "images": "building images",
    "create": "creating nodes",
    "connect": "connecting",
    BOOTSTRAP: "preparing nodes",
    "mesh": "testing the connections between nodes",
    "all-reduce": "testing an all-reduce",
    "verify": "measuring",
}
"""The phases of an `up`, for a live view."""


@dataclass(slots=True)
class Clock:
    """Seconds per phase, in order; on machines that take their time, each is announced."""

    nodes: NodePhases
    report: Reporter | None = None
    phases: list[tuple[str, float]] = field(default_factory=list)
    parts: list[tuple[str, float]] = field(default_factory=list)
    """Of the bootstrap: the steps that took time, on the slowest node of each."""

    @property
    def all(self) -> tuple[tuple[str, float], ...]:
        """The phases, the parts of the bootstrap after the bootstrap."""
        after = next((n for n, row in enumerate(self.phases, 1) if row[0] == BOOTSTRAP), 0)
        return (*self.phases[:after], *self.parts, *self.phases[after:])

    @contextmanager
    def time_phase(self, name: str) -> Iterator[None]:
        if self.report and self.phases:
            self.report(f"{name} (after {self.phases[-1][0]}: {self.phases[-1][1]:.1f} s)")
        self.nodes.show_stage(STAGES.get(name, ""))
        began = time.monotonic()
        yield
        self.phases.append((name, round(time.monotonic() - began, 3)))


# -------------------------------------------------------------------------------------------------
# How long each phase of a node took when clusters were made, kept in the state home: what a live
# view of `up` says of the time left until nodes of this very cluster tell.


FILE = "phase-times.json"
MOST = 50
"""Sorts of clusters that are remembered."""

_Times = dict[str, dict[str, float]]


def load_phase_times(home: Home, cluster: Cluster) -> dict[str, float]:
    """Seconds by phase, as `NodePhases.medians` names them, of the last cluster of this sort."""
    return _read(home).get(_make_key(cluster), {})


def save(home: Home, cluster: Cluster, seconds: Mapping[str, float]) -> None:
    """Nothing depends on it: where it cannot be written, it is left out."""
    times, sort = _read(home), _make_key(cluster)
    times.pop(sort, None)
    kept = list(times.items())[1 - MOST :]
    with suppress(ClusterctlError):
        write_atomic(home.path / FILE, msgspec.json.encode({**dict(kept), sort: dict(seconds)}))


def _read(home: Home) -> _Times:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((home.path / FILE).read_bytes(), type=_Times)
    return {}


def _make_key(cluster: Cluster) -> str:
    """Equal for clusters whose nodes should take equally long."""
    spec = cluster.spec
    groups = (f"{group.family} {group.instance_type}" for group in spec.groups)
    runtime = spec.runtime.value if spec.runtime else ""
    images = (f"{kind}={image}" for kind, image in sorted(cluster.images.items()))
    return " ".join((spec.provider, runtime, *groups, *images))


# -------------------------------------------------------------------------------------------------

NOTEWORTHY = 0.5
"""Seconds that a step of the bootstrap has to take to be shown."""


@dataclass(frozen=True, slots=True)
class UpResult:
    """A ready cluster, how long each phase took, in seconds, and what its nodes were measured to
    give, if they were."""

    cluster: Cluster
    phases: tuple[tuple[str, float], ...]
    measured: Measurements | None = None


def should_measure(charges: Sequence[Charge], wanted: bool | None) -> bool:
    """Whether the nodes are measured at the end: as wanted, else where they cost money."""
    return bool(charges) if wanted is None else wanted


def bring_up(
    store: Store,
    spec: ClusterSpec,
    report: Reporter,
    consent: Consent,
    *,
    measure: bool | None = False,
    nodes: NodePhases | None = None,
    wall: Callable[[], float] = time.time,
) -> UpResult:
    """Creates or resumes. Raises the error of the first thing that cannot be done; what has been
    made by then is in the record, so that `up` goes on there and `down` removes it.

    With several regions, one without capacity is left with nothing in it before the next is tried.
    `measure`: see `should_measure`. What is measured decides nothing. `nodes` is told how far each
    is. `wall`: the time, which goes on while this machine sleeps.
    """
    check_name(spec.name)
    here, *others = find_places(spec, find_owned(store, spec))
    while True:
        try:
            phases = nodes or NodePhases()
            return _bring_up(store, here, others, report, consent, measure, phases, wall)
        except NoCapacity as error:
            made = store.find(spec.name)
            if not others or made is None or made.nodes:
                raise
            gone, (here, *others) = here.cloud.region, others
            report(f"{error.message}: the whole cluster moves from {gone} to {here.cloud.region}")
            with ClusterLock(store.home, spec.name, "up", report):
                left = finish_down(store, made, report)
            spent = cost.sum_dollars(left.charges, time.time())
            here, *others = (machines_charges.take_off(place, spent) for place in (here, *others))
            consent = _agree


def _agree(question: str) -> bool:
    """Consent to a region was asked for with the first."""
    return True


def _bring_up(
    store: Store,
    spec: ClusterSpec,
    others: Sequence[ClusterSpec],
    report: Reporter,
    consent: Consent,
    measure: bool | None,
    phases: NodePhases,
    wall: Callable[[], float],
) -> UpResult:
    clock = Clock(phases)
    with clock.time_phase("plan"):
        old = find_owned(store, spec)
        if old and running_costs.may_have_ended(store, old, time.time()):
            with ClusterLock(store.home, spec.name, "up", report):
                running_costs.settle(store, store.read_cluster(spec.name), report)
        # Before anything is written: most of what cannot be done is found out here.
        intent = intend(spec, find_owned(store, spec), report, store.home.path)
        if consent is not _agree:
            intent = add_regions(intent, others, report)
    features = intent.provider.features
    clock.report = None if features.instant else report
    with ClusterLock(store.home, spec.name, "up", report):
        if intent.plan.recipes:
            with clock.time_phase("images"):
                _build(intent.plan.recipes, report)
        intent, cluster = _write_record(store, spec, intent, report, consent, wall)
        if intent.old:
            running_costs.count_as_used(store, intent.old)
        with clock.time_phase("create"):
            cluster, created = _create(store, cluster, intent, report, phases)
        store.add_event(cluster.name, "created", nodes=len(cluster.nodes))
        with created.pool or open_pool(store, cluster) as pool:
            cluster = _make_ready(store, cluster, intent, created, pool, clock, report)
            measured = None
            if should_measure(cluster.charges, measure):
                with clock.time_phase("verify"):
                    measured = _verify(store, cluster, pool, report)
    return UpResult(cluster, clock.all, measured)


def _make_ready(
    store: Store,
    cluster: Cluster,
    intent: Intent,
    created: Created,
    pool: Pool,
    clock: Clock,
    report: Reporter,
) -> Cluster:
    """From nodes that answer to a cluster that is on record as ready."""
    features, phases = intent.provider.features, clock.nodes
    with clock.time_phase("connect"):
        connect(pool, cluster, phases)
    with clock.time_phase(BOOTSTRAP):
        progress = StepReporter(report, nodes=phases, sizes=_find_sizes(cluster, intent))
        nodes = bootstrap_nodes(
            pool,
            cluster,
            features,
            intent.images,
            store.locate_folder(cluster.name) / "ssh",
            created.host_keys,
            progress,
        )
        clock.parts = [
            (f"{BOOTSTRAP}: {what}", round(seconds, 3))
            for what, seconds in progress.seconds.items()
            if seconds >= NOTEWORTHY
        ]
        for line in find_troubles(pool, cluster, created.nodes, nodes, features):
            report(line)
        cluster = replace(cluster, nodes=nodes)
    with clock.time_phase("mesh"):
        hint = f"check for a firewall between them, then run `clusterctl up {cluster.name}`"
        bootstrap.check_mesh(pool, cluster, what="nodes", hint=hint)
    if cluster.shared:
        with clock.time_phase("shared folder"):
            if why := bootstrap.check_shared(pool, cluster):
                report(why)
    store.save(cluster)
    cluster = replace(cluster, phase=Phase.READY)
    if not features.instant:
        # Ranks that do not add up, or that nobody waited for, make no cluster ready.
        with clock.time_phase("all-reduce"):
            run.run_all_reduce(store, cluster, pool, report)
    store.save(cluster)
    store.add_event(cluster.name, "ready", phases=dict(clock.all))
    if phases.watched and not (intent.old or features.instant):
        save(store.home, cluster, phases.compute_medians())
    return cluster


def _verify(store: Store, cluster: Cluster, pool: Pool, report: Reporter) -> Measurements | None:
    from clusterctl.actions import verify  # not for every `up`: most measure nothing
    from clusterctl.insight import verify as insight_verify

    measured = verify.measure_after_up(store, cluster, pool, report)
    if measured:
        workers = len(cluster.workers)
        for line in insight_verify.describe_verdict(measured, workers=workers, name=cluster.name):
            report(line)
    return measured


def _find_sizes(cluster: Cluster, intent: Intent) -> dict[str, int]:
    """Bytes that each node downloads of its image."""
    kinds = (
        {node.name: bootstrap.find_kind(node) for node in cluster.nodes} if intent.images else {}
    )
    return {name: intent.images[kind].size for name, kind in kinds.items()}


def _watch(store: Store, cluster: Cluster, intent: Intent, phases: NodePhases) -> None:
    """Tells which nodes there will be, and lets the provider say how far each is."""
    workers = (f"worker-{number}" for number in range(1, cluster.spec.workers + 1))
    names = intent.plan.nodes or (LAUNCHER, *workers)
    phases.expect({name: "launcher" if name == LAUNCHER else "worker" for name in names})
    phases.compare_with(load_phase_times(store.home, cluster))
    intent.provider.observe(phases)


def _create(
    store: Store, cluster: Cluster, intent: Intent, report: Reporter, phases: NodePhases
) -> tuple[Cluster, Created]:
    """The cluster with its machines, as it is on record by then."""
    _watch(store, cluster, intent, phases)
    folder = store.locate_folder(cluster.name)
    keys.ensure(folder / "ssh" / "user")
    keys.ensure(folder / "ssh" / "mesh")
    try:
        created = intent.provider.create(cluster, folder, report)
    except ClusterctlError as error:
        known = record_failed_create(store, cluster, intent.old, report)
        if not known and not (intent.others and isinstance(error, NoCapacity)):
            report_left(store, cluster, report)
        raise
    phases.expect(
        {node.name: f"{bootstrap.find_kind(node)} {node.instance_type}" for node in created.nodes}
    )
    if created.pool is None:
        phases.enter((node.name for node in created.nodes), core_progress.CONNECTING)
    cluster = replace(
        cluster,
        nodes=created.nodes,
        mode_reason=created.mode_reason or cluster.mode_reason,
        shared=created.shared,
        shared_source=created.shared_source,
    )
    with suppress(ClusterctlError):  # the next look knows
        cluster = providers.settle(cluster, folder, time.time())
    cluster, renewed = write_ssh(store, cluster, created.host_keys)
    for name in renewed:
        report(f"{name} has a new host key, confirmed by the provider")
    store.save(cluster)
    return keep_budget(store, cluster, report), created


def _build(recipes: Sequence[str], report: Reporter) -> None:
    from clusterctl.actions import images as actions_images

    for name in recipes:
        report(f"building the image {name}, once on this engine: a minute or two")
        actions_images.build(name, on_line=lambda line: None)


def _write_record(
    store: Store,
    spec: ClusterSpec,
    intent: Intent,
    report: Reporter,
    consent: Consent,
    wall: Callable[[], float],
) -> tuple[Intent, Cluster]:
    """The record, written before anything is made; the old one if there is one to resume."""
    named = bool(spec.provider or intent.old)
    old = find_owned(store, spec)
    if old is None:
        for orphan in find_orphans(store, spec.name):
            report(f"found cluster {orphan.id} without a local record; removing it first")
            finish_down(store, orphan, report)
    if old and old.phase is Phase.DELETING:
        report(f"finishing an earlier `down` of {old.name} first")
        finish_down(store, old, report)
        old = None

    def renew(intent: Intent) -> Intent:
        fresh = intend(spec, old, report, store.home.path)
        return add_regions(fresh, intent.others, report)

    if old != intent.old:
        # Another clusterctl was at work in between, or an old cluster had to go first.
        intent = renew(intent)
    if not named:
        report("no provider given: starting a local cluster")
    intent = agree(store, intent, renew, report, consent, wall)
    spec, plan = intent.spec, intent.plan
    base = old or Cluster(
        id=make_id(plan.owner, spec.name),
        spec=spec,
        phase=Phase.CREATING,
        created=time.time(),
        owner=plan.owner,
        client=name_client() if plan.owner else "",
    )
    cluster = replace(
        base,
        spec=spec,
        phase=Phase.CREATING,
        stopping=False,
        charges=plan.charges,
        deadline=plan.deadline,
        account=plan.account,
        shares_machine=intent.provider.features.shares_machine,
        images={kind: i.reference for kind, i in intent.images.items() if not i.recipe},
    )
    if not base.mode:
        # A cluster stays in the mode it was made in, whatever is possible by now.
        cluster = replace(
            cluster, mode=plan.mode, mode_reason=plan.mode_reason, one_host=plan.one_host
        )
    store.save(cluster)
    store.add_event(cluster.name, "resuming" if old else "creating", workers=spec.workers)
    return intent, cluster

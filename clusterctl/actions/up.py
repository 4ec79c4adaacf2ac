"""`up`: from options to a checked cluster. Repeating it resumes, or changes the workers."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterctl import assets, bootstrap, catalog, keys, providers
from clusterctl.actions import (
    Tell,
    check_name,
    node_images,
    open_pool,
    require_owned,
    salvage,
    shrink,
    smoke_test,
    ssh_config,
)
from clusterctl.actions.down import find_orphans, finish_down
from clusterctl.actions.node_images import NodeImage
from clusterctl.bootstrap import steps
from clusterctl.bootstrap.progress import StepReporter
from clusterctl.errors import (
    BootstrapError,
    ClusterctlError,
    NodeUnreachable,
    RecordError,
    UsageError,
)
from clusterctl.insight import cost
from clusterctl.model import (
    Accelerator,
    CloudSpec,
    Cluster,
    ClusterSpec,
    Node,
    NodeGroup,
    NodeResult,
    Phase,
    Runtime,
)
from clusterctl.node_results import fold, ranges
from clusterctl.providers.protocol import (
    Created,
    Creator,
    Features,
    LogsIn,
    NoCapacity,
    ProviderPlan,
)
from clusterctl.providers.shared import billing
from clusterctl.state import ClusterLock, Store
from clusterctl.state.home import write_atomic
from clusterctl.transport.known_hosts import host_name
from clusterctl.transport.pool import Pool

CONNECT_TIMEOUT = 20.0
DEFAULT_WORKERS = 2
BOOTSTRAP = "bootstrap"
NOTEWORTHY = 0.5
"""Seconds that a step of the bootstrap has to take to be shown."""


@dataclass(slots=True)
class Clock:
    """Seconds per phase, in order; on machines that take their time, each is announced."""

    tell: Tell | None = None
    phases: list[tuple[str, float]] = field(default_factory=list)
    parts: list[tuple[str, float]] = field(default_factory=list)
    """Of the bootstrap: the steps that took time, on the slowest node of each."""

    @property
    def all(self) -> tuple[tuple[str, float], ...]:
        """The phases, the parts of the bootstrap after the bootstrap."""
        after = next((n for n, row in enumerate(self.phases, 1) if row[0] == BOOTSTRAP), 0)
        return (*self.phases[:after], *self.parts, *self.phases[after:])

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.tell and self.phases:
            self.tell(f"{name} (after {self.phases[-1][0]}: {self.phases[-1][1]:.1f} s)")
        began = time.monotonic()
        yield
        self.phases.append((name, round(time.monotonic() - began, 3)))


@dataclass(frozen=True, slots=True)
class Up:
    """A ready cluster and how long each phase took, in seconds."""

    cluster: Cluster
    phases: tuple[tuple[str, float], ...]


Consent = Callable[[str], bool]
"""Asks whether money may be spent, and workers may go; raises UsageError where there is nobody to
ask."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What `up` is going to do about the cluster that there is, or about none."""

    old: Cluster | None
    spec: ClusterSpec
    provider: Creator
    plan: ProviderPlan
    images: Mapping[str, NodeImage]
    """By kind of node; none where ranks run on the machines themselves."""
    surplus: tuple[str, ...]
    """The workers that there are and that will go."""
    others: tuple[ClusterSpec, ...] = ()
    """The same for other regions, to be tried next."""


def resolve(store: Store, spec: ClusterSpec) -> ClusterSpec:
    """The options, with defaults for what they leave out: these decide what others mean."""
    check_name(spec.name)
    return complete(spec, _old(store, spec))


def circumstances(spec: ClusterSpec) -> set[str]:
    """What decides which options of `up` have an effect: the provider, and `host` where ranks run
    on machines that would usually have containers."""
    usual = providers.load_creator(spec.provider).features.runtime
    host = {"host"} if spec.runtime is Runtime.HOST and usual is Runtime.DOCKER else set()
    return {spec.provider, *host}


def plan(store: Store, spec: ClusterSpec, tell: Tell) -> ProviderPlan:
    """What `up` would do."""
    check_name(spec.name)
    old = _old(store, spec)
    first, *others = _places(spec, old)
    return _with_others(_intend(first, old, tell), others, tell).plan


def _places(spec: ClusterSpec, old: Cluster | None) -> list[ClusterSpec]:
    """The options for each region that the cluster may be made in, in this order. One that has
    nodes stays where it is; one that was cut off goes on there."""
    regions = complete(spec, old).cloud.regions
    if not regions or spec.cloud.region:
        return [spec]
    here = old.spec.cloud.region if old else ""
    if here in regions:
        at = regions.index(here)
        regions = regions[at : at + 1] if old and old.nodes else regions[at:]
    return [replace(spec, cloud=replace(spec.cloud, region=region)) for region in regions]


def _with_others(intent: Intent, others: Sequence[ClusterSpec], tell: Tell) -> Intent:
    """With what the plan becomes in other regions, and one question for all: what cannot be made
    there is found out before money is spent here."""
    lines, questions, here = [*intent.plan.lines], [], intent.spec.cloud.region
    if intent.plan.question:
        questions.append(f"{intent.plan.question.removesuffix('?')} in {here}")
    for other in others if questions else ():
        place = other.cloud.region
        plan = _intend(other, None, tell).plan
        lines += [f"if {here} has no capacity, the whole cluster moves to {place}:", *plan.lines]
        questions.append(f"{plan.question.removesuffix('?')} in {place}")
    question = f"{', or else '.join(questions)}?" if questions[1:] else intent.plan.question
    plan = replace(intent.plan, lines=tuple(lines), question=question)
    return replace(intent, plan=plan, others=tuple(others))


def _intend(
    spec: ClusterSpec, old: Cluster | None, tell: Tell, ahead: Path | None = None
) -> Intent:
    options = complete(spec, old)
    provider = providers.load_creator(options.provider)
    plan = provider.plan(options, old, tell, ahead=ahead)
    options = plan.spec or options
    images = _images(spec, options, old, provider, plan.kinds)
    surplus = shrink.find_surplus(old, plan, options.workers) if old else ()
    more = [image.line for image in images.values()]
    if surplus:
        more.append(f"to be removed: {ranges(surplus)}")
    plan = replace(plan, lines=(*plan.lines, *more))
    return Intent(old, options, provider, plan, images, surplus)


def _images(
    given: ClusterSpec,
    options: ClusterSpec,
    old: Cluster | None,
    provider: Creator,
    kinds: Sequence[str],
) -> dict[str, NodeImage]:
    """What the nodes get. An --image that is given again is asked for again."""
    if not kinds:
        return {}
    known = old.images if old and not (given.image or given.images) else {}
    logins = provider.registry_login if isinstance(provider, LogsIn) else lambda host: None
    return node_images.resolve(options, kinds, known, logins)


def up(store: Store, spec: ClusterSpec, tell: Tell, consent: Consent) -> Up:
    """Creates or resumes. Raises the error of the first thing that cannot be done; what has been
    made by then is in the record, so that `up` goes on there and `down` removes it.

    With several regions, one without capacity is left with nothing in it before the next is tried.
    """
    check_name(spec.name)
    here, *others = _places(spec, _old(store, spec))
    while True:
        try:
            return _up(store, here, others, tell, consent)
        except NoCapacity as error:
            made = store.find(spec.name)
            if not others or made is None or made.nodes:
                raise
            gone, (here, *others) = here.cloud.region, others
            tell(f"{error.message}: the whole cluster moves from {gone} to {here.cloud.region}")
            with ClusterLock(store.home, spec.name, "up", tell):
                finish_down(store, made, tell)
            consent = _agreed


def _agreed(question: str) -> bool:
    """Consent to a region was asked for with the first."""
    return True


def _up(
    store: Store, spec: ClusterSpec, others: Sequence[ClusterSpec], tell: Tell, consent: Consent
) -> Up:
    clock = Clock()
    with clock.phase("plan"):
        # Before anything is written: most of what cannot be done is found out here.
        intent = _intend(spec, _old(store, spec), tell, store.home.path)
        if consent is not _agreed:
            intent = _with_others(intent, others, tell)
    features = intent.provider.features
    clock.tell = None if features.instant else tell
    with ClusterLock(store.home, spec.name, "up", tell):
        if intent.plan.recipes:
            with clock.phase("images"):
                _build(intent.plan.recipes, tell)
        intent, cluster = _record(store, spec, intent, tell, consent)
        with clock.phase("create"):
            cluster, created = _create(store, cluster, intent, tell)
        store.event(cluster.name, "created", nodes=len(cluster.nodes))
        with created.pool or open_pool(store, cluster) as pool:
            with clock.phase("connect"):
                _connect(pool, cluster)
            with clock.phase(BOOTSTRAP):
                progress = StepReporter(tell)
                nodes = _bootstrap(store, pool, cluster, intent, created.host_keys, progress)
                clock.parts = [
                    (f"{BOOTSTRAP}: {what}", round(seconds, 3))
                    for what, seconds in progress.seconds.items()
                    if seconds >= NOTEWORTHY
                ]
                for line in _missing_gpus(created.nodes, nodes):
                    tell(line)
                cluster = replace(cluster, nodes=nodes)
            with clock.phase("mesh"):
                hint = f"check for a firewall between them, then run `clusterctl up {cluster.name}`"
                bootstrap.check_mesh(pool, cluster, what="nodes", hint=hint)
            store.save(cluster)
            cluster = replace(cluster, phase=Phase.READY)
            if not features.instant:
                # Ranks that do not add up, or that nobody waited for, make no cluster ready.
                with clock.phase("all-reduce"):
                    smoke_test.run_all_reduce(store, cluster, pool, tell)
        store.save(cluster)
        store.event(cluster.name, "ready", phases=dict(clock.all))
    return Up(cluster, clock.all)


def _create(store: Store, cluster: Cluster, intent: Intent, tell: Tell) -> tuple[Cluster, Created]:
    """The cluster with its machines, as it is on record by then."""
    folder = store.folder(cluster.name)
    keys.ensure(folder / "ssh" / "user")
    keys.ensure(folder / "ssh" / "mesh")
    try:
        created = intent.provider.create(cluster, folder, tell)
    except ClusterctlError:
        record_failed_create(store, cluster, intent.old, tell)
        raise
    cluster = replace(
        cluster,
        nodes=created.nodes,
        charges=cluster.charges if created.charges is None else created.charges,
        mode_reason=created.mode_reason or cluster.mode_reason,
    )
    for name in _write_ssh(store, cluster, created.host_keys):
        tell(f"{name} has a new host key, confirmed by the provider")
    store.save(cluster)
    return cluster, created


def _build(recipes: Sequence[str], tell: Tell) -> None:
    from clusterctl.actions import images

    for name in recipes:
        tell(f"building the image {name}, once on this engine: a minute or two")
        images.build(name, on_line=lambda line: None)


def _old(store: Store, spec: ClusterSpec) -> Cluster | None:
    """The record of the cluster of that name, if there is one; UsageError for an attached one."""
    old = store.find(spec.name)
    return require_owned(old) if old else None


def complete(spec: ClusterSpec, old: Cluster | None) -> ClusterSpec:
    """The options; what they leave out is taken from the cluster there is, else the defaults."""
    named = (replace(group, family=catalog.family_of(group.family)) for group in spec.groups)
    spec = replace(spec, groups=tuple(named))
    provider = spec.provider or (old.spec.provider if old else providers.DEFAULT)
    if old and old.spec.provider != provider:
        raise RecordError(
            f"cluster {old.name!r} already exists ({old.spec.provider})",
            hint=f"`clusterctl down {old.name}` first, or choose another name",
        )
    features = providers.load_creator(provider).features
    usual = NodeGroup(count=DEFAULT_WORKERS, family=features.worker_family)
    base = old.spec if old else ClusterSpec(name=spec.name, provider=provider, groups=(usual,))
    return replace(
        spec,
        provider=provider,
        groups=_complete_groups(spec, base),
        ttl=spec.ttl or base.ttl,
        runtime=spec.runtime or base.runtime or features.runtime,
        **_complete_images(spec, base),
        gpus=spec.gpus or base.gpus,
        cloud=_complete_cloud(spec.cloud, base.cloud),
    )


def _complete_images(spec: ClusterSpec, base: ClusterSpec) -> dict[str, Any]:
    """One --image, of all nodes or of some, replaces those from before."""
    source = spec if spec.image or spec.images else base
    return {"image": source.image, "images": source.images}


def _complete_groups(spec: ClusterSpec, base: ClusterSpec) -> tuple[NodeGroup, ...]:
    """A group that names no machines means those of `base`; a count of 0, as many as it has."""
    first = spec.groups[0]
    if first.family or first.instance_type:
        return tuple(_counted(group, base) for group in spec.groups)
    if not first.count:
        return base.groups
    if len(base.groups) > 1:
        raise UsageError(
            f"cluster {spec.name} has {len(base.groups)} kinds of workers: --workers does not say"
            " which",
            hint="give the number of each: --gpu FAMILY:N --cpu TYPE:N",
        )
    return (replace(base.groups[0], count=first.count),)


def _counted(group: NodeGroup, base: ClusterSpec) -> NodeGroup:
    if group.count:
        return group
    kind = catalog.instance_type(group)
    have = [item.count for item in base.groups if catalog.instance_type(item) == kind]
    return replace(group, count=have[0] if have else DEFAULT_WORKERS)


def _complete_cloud(cloud: CloudSpec, base: CloudSpec) -> CloudSpec:
    """`base` with what differs from the defaults."""
    defaults = CloudSpec()
    given = {
        name: value
        for name in CloudSpec.__dataclass_fields__
        if (value := getattr(cloud, name)) != getattr(defaults, name)
    }
    return replace(base, **given)


def _record(
    store: Store, spec: ClusterSpec, intent: Intent, tell: Tell, consent: Consent
) -> tuple[Intent, Cluster]:
    """The record, written before anything is made; the old one if there is one to resume."""
    named = bool(spec.provider or intent.old)
    old = _old(store, spec)
    if old is None:
        for orphan in find_orphans(store, spec.name):
            tell(f"found cluster {orphan.id} without a local record; removing it first")
            finish_down(store, orphan, tell)
    if old and old.phase is Phase.DELETING:
        tell(f"finishing an earlier `down` of {old.name} first")
        finish_down(store, old, tell)
        old = None
    if old != intent.old:
        # Another clusterctl was at work in between, or an old cluster had to go first.
        others, intent = intent.others, _intend(spec, old, tell, store.home.path)
        intent = _with_others(intent, others, tell)
    spec, plan = intent.spec, intent.plan
    if not named:
        tell("no machines requested: starting a local cluster")
    for line in plan.lines:
        tell(line)
    if old and intent.surplus:
        shrink.confirm_removal(store, old, intent.surplus, tell, consent)
    if plan.question and not consent(plan.question):
        raise UsageError("aborted; nothing was started", hint="--dry-run only shows the plan")
    base = old or Cluster(
        id=f"{_first_name(plan.owner)}{spec.name}-{secrets.token_hex(4)}",
        spec=spec,
        phase=Phase.CREATING,
        created=time.time(),
        owner=plan.owner,
        client=socket.gethostname() if plan.owner else "",
    )
    cluster = replace(
        base,
        spec=spec,
        phase=Phase.CREATING,
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
    store.event(cluster.name, "resuming" if old else "creating", workers=spec.workers)
    return intent, cluster


def _first_name(owner: str) -> str:
    """`ana-` for user/ana: the ids of a shared account tell whose a cluster is."""
    name = owner.rpartition("/")[2].partition("@")[0].lower()
    plain = re.sub("[^a-z0-9]+", "-", name).strip("-0123456789")[:10].strip("-")
    return f"{plain}-" if plain else ""


def record_failed_create(
    store: Store,
    cluster: Cluster,
    old: Cluster | None,
    tell: Tell,
    clock: Callable[[], float] = time.time,
) -> None:
    """After an `up` that broke off: the record keeps what really costs money, and a cluster that
    was ready and has lost and gained nothing is ready."""
    if not cluster.charges:
        return
    try:
        there = providers.load_billing(cluster).list_billed(cluster, store.folder(cluster.name))
    except ClusterctlError as error:
        salvage.tell_unknown(cluster, error, tell)
        return
    before = {node.name: node.machine for node in old.nodes} if old else {}
    # What ran when it was planned; the rest of the plan may never have been made.
    past = set(old.charges) if old else set()
    ran = {item.node for item in past.intersection(cluster.charges) if item.until is None}
    charges = billing.settle(cluster, living=there, made=ran, now=clock())
    # By machine and deadline, not by name: new ones are called as those in whose place they are.
    same = old and (there, cluster.deadline) == (before, old.deadline)
    if old and old.phase is Phase.READY and same:
        store.save(old)
        tell(f"cluster {old.name} is unchanged and ready")
        return
    store.save(replace(cluster, charges=charges))
    if there:
        tell(
            f"{len(there)} {'machine runs' if len(there) == 1 else 'machines run'},"
            f" ${cost.per_hour(charges):.2f}/h: `clusterctl up {cluster.name}` continues,"
            f" `clusterctl down {cluster.name}` removes {'it' if len(there) == 1 else 'them'}"
        )


def _write_ssh(store: Store, cluster: Cluster, host_keys: dict[str, str]) -> list[str]:
    """known_hosts and an ssh_config: for us, and for `ssh -F` by hand. Returns the nodes whose
    host key has changed since they were last written."""
    folder = store.folder(cluster.name) / "ssh"
    before: dict[str, str] = {}
    with suppress(OSError):
        lines = (folder / "known_hosts").read_text(errors="replace").splitlines()
        before = dict(line.split(" ", 1) for line in lines if " " in line)
    nodes = {name: cluster.node(name) for name in host_keys}
    endpoints = {name: host_name(node.address, node.ssh_port) for name, node in nodes.items()}
    known = "".join(f"{endpoints[name]} {key}\n" for name, key in host_keys.items())
    write_atomic(folder / "known_hosts", known.encode())
    config = assets.render("client/ssh_config.j2", cluster=cluster)
    write_atomic(folder / "config", config.encode())
    ssh_config.write_hosts(store, cluster)
    return [n for n, key in host_keys.items() if before.get(endpoints[n], key) != key]


def _connect(pool: Pool, cluster: Cluster) -> None:
    """Every node, or one error that names those that do not answer."""

    failed = [result for result in pool.connect(timeout=CONNECT_TIMEOUT) if not result.ok]
    if failed:
        raise NodeUnreachable(
            "; ".join(fold(failed)),
            hint=f"`clusterctl up {cluster.name}` tries again,"
            f" `clusterctl down {cluster.name}` removes the cluster",
            transient=True,
        )


def _bootstrap(
    store: Store,
    pool: Pool,
    cluster: Cluster,
    intent: Intent,
    host_keys: dict[str, str],
    progress: StepReporter,
) -> tuple[Node, ...]:
    features = intent.provider.features
    folder = store.folder(cluster.name) / "ssh"
    key = keys.pair(folder / "mesh")
    containers = _containers(cluster, intent.images, folder, key.public)
    # Nodes meet each other where jobs run: at the containers' sshd, where there are any.
    host_keys = {**host_keys, **{name: box.host_key.public for name, box in containers.items()}}
    mesh = bootstrap.Mesh(key=key, nodes=cluster.nodes, host_keys=host_keys)
    scripts = {
        node.name: _script(node, cluster, features, mesh, containers.get(node.name))
        for node in cluster.nodes
    }

    compiles = any(image.recipe in catalog.COMPILED_FOR for image in intent.images.values())
    with progress:
        results = pool.run(
            "exec /bin/sh -s",
            stdin=scripts,
            timeout=features.bootstrap_timeout + catalog.COMPILING * compiles,
            on_stdout=progress.hear,
        )
    problems = [
        NodeResult(node=result.node, error=text)
        for result in results
        if (text := bootstrap.find_problem(result))
    ]
    if problems:
        raise BootstrapError(
            f"bootstrap failed: {'; '.join(fold(problems))}",
            hint=f"correct that, then `clusterctl up {cluster.name}` resumes",
        )
    pairs = zip(cluster.nodes, results, strict=True)
    return tuple(bootstrap.read(node, result) for node, result in pairs)


def _containers(
    cluster: Cluster, images: Mapping[str, NodeImage], folder: Path, mesh_key: str
) -> dict[str, steps.Container]:
    """What each node's container is made from; none where ranks run on the machine itself."""
    found = {}
    for node in cluster.nodes if images else ():
        kind = steps.kind(node)
        image = images[kind]
        found[node.name] = steps.Container(
            image=image.reference,
            recipe=image.recipe,
            bases=image.bases,
            login=image.login,
            host_key=keys.pair(folder / "containers" / node.name),
            mesh_key=mesh_key,
            row=catalog.CONTAINER_IMAGES[kind],
        )
    return found


def _script(
    node: Node,
    cluster: Cluster,
    features: Features,
    mesh: bootstrap.Mesh,
    container: steps.Container | None,
) -> bytes:
    if not features.fresh_machines:
        return bootstrap.script(node, mesh, pythons=features.pythons)
    return bootstrap.script(
        node,
        mesh,
        pythons=steps.pythons(node, container),
        steps=steps.for_node(
            node,
            cluster.spec.runtime or Runtime.HOST,
            nodes=cluster.nodes,
            mesh_key=mesh.key.public,
            container=container,
            deadline_unit=features.deadline_unit,
        ),
        files=container.files(node) if container else None,
        inside=steps.inside(container),
    )


def _missing_gpus(promised: Sequence[Node], found: Sequence[Node]) -> tuple[str, ...]:
    """Machines that were paid for as GPU machines, and where no driver shows any."""
    results = [
        NodeResult(
            node=node.name,
            error=f"no {before.accelerator.value} GPU is found, and {before.instance_type} has one",
        )
        for before, node in zip(promised, found, strict=True)
        if before.accelerator is not Accelerator.NONE and not node.facts.gpus
    ]
    return fold(results)

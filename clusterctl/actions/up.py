"""`up`: from a plan to a checked cluster. Repeating it resumes, or changes the workers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.actions import access, common, costs, up_plan
from clusterctl.actions.common import Connected, check_name, open_pool
from clusterctl.actions.down import find_orphans, finish_down
from clusterctl.actions.up_plan import Intent
from clusterctl.core import catalog, keys
from clusterctl.core import progress as core_progress
from clusterctl.core.model import (
    FULL_DISK,
    GATEWAY,
    Accelerator,
    Cluster,
    ClusterSpec,
    Consent,
    Node,
    NodeResult,
    Phase,
    Reporter,
    Runtime,
    fold,
    shorten,
)
from clusterctl.core.progress import NodePhases
from clusterctl.core.text import count
from clusterctl.errors import BootstrapError, ClusterctlError, NodeUnreachable, ProviderError
from clusterctl.insight import cost
from clusterctl.machines import bootstrap, deadlines, ledger, providers
from clusterctl.machines import charges as machines_charges
from clusterctl.machines.bootstrap import StepReporter, check_mesh, check_shared
from clusterctl.machines.protocol import LAUNCHER, Created, Features, NoCapacity, describe_resources
from clusterctl.state.home import name_client
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool

CONNECT_TIMEOUT = 20.0
BOOTSTRAP = "bootstrap"
STAGES = {
    "images": "building images",
    "create": "creating nodes",
    "connect": "connecting",
    BOOTSTRAP: "preparing nodes",
    "mesh": "testing the connections between nodes",
    "all-reduce": "testing an all-reduce",
}
"""The phases of an `up`, for a live view."""
NOTEWORTHY = 0.5
"""Seconds that a step of the bootstrap has to take to be shown."""


class Clock(Struct):
    """Seconds per phase, in order; on machines that take their time, each is announced."""

    nodes: NodePhases
    report: Reporter | None = None
    phases: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def time_phase(self, name: str) -> Iterator[None]:
        if self.report and self.phases:
            before, seconds = next(row for row in reversed(self.phases) if ": " not in row[0])
            self.report(f"{name} (after {before}: {seconds:.1f} s)")
        self.nodes.show_stage(STAGES.get(name, ""))
        began = time.monotonic()
        yield
        self.phases.append((name, round(time.monotonic() - began, 3)))


class UpResult(Struct, frozen=True):
    """A ready cluster, and how long each phase took, in seconds."""

    cluster: Cluster
    phases: tuple[tuple[str, float], ...]


def bring_up(
    store: Store,
    spec: ClusterSpec,
    report: Reporter,
    consent: Consent,
    *,
    nodes: NodePhases | None = None,
    wall: Callable[[], float] = time.time,
) -> UpResult:
    """Creates or resumes. Raises the error of the first thing that cannot be done; what has been
    made by then is in the record, so that `up` goes on there and `down` removes it.

    A region without capacity for a new cluster is left with nothing in it, also where it is the
    last that is tried.
    `nodes` is told how far each is. `wall`: the time, which goes on while this machine sleeps.
    """
    check_name(spec.name)
    old = up_plan.find_owned(store, spec)
    here, *others = up_plan.find_places(spec, old)
    clock = Clock(nodes or NodePhases())
    with clock.time_phase("plan"):
        # Before anything is written, a lock too: most of what cannot be done is found out here.
        intent = up_plan.intend(here, old, others, report, store.home.path)
    with ClusterLock(store.home, spec.name, "up", report):
        old = up_plan.find_owned(store, spec)
        if old:
            old = costs.settle(store, old, report)
        spent = 0.0
        while True:
            try:
                intent, cluster = _begin(store, here, intent, old, report, consent, clock, wall)
                return _complete(store, cluster, intent, clock, report)
            except KeyboardInterrupt:
                with suppress(ClusterctlError):
                    if made := store.find(spec.name):
                        record_failed_create(store, made, None, report)
                raise
            except NoCapacity as error:
                made = store.find(spec.name)
                # What is older than this `up` stays, unless the cluster moves.
                if made is None or made.nodes or not (others or intent.old is None):
                    raise
                if others:
                    gone, there = here.cloud.region, others[0].cloud.region
                    report(f"{error.message}: the whole cluster moves from {gone} to {there}")
                else:
                    report("no capacity for the whole cluster: removing what was created")
                left = finish_down(store, made, report)
                dollars = cost.sum_dollars(left.charges, time.time())
                spent += dollars
                if not others:
                    if spent:
                        report(f"what was created and removed cost ${spent:.4f}")
                    raise
                here, *others = (machines_charges.take_off(place, dollars) for place in others)
                old, consent = None, lambda question: True  # the first question named all regions
                clock = Clock(clock.nodes)
                with clock.time_phase("plan"):
                    intent = up_plan.intend(here, old, others, report, store.home.path)


def _begin(
    store: Store,
    spec: ClusterSpec,
    intent: Intent,
    old: Cluster | None,
    report: Reporter,
    consent: Consent,
    clock: Clock,
    wall: Callable[[], float],
) -> tuple[Intent, Cluster]:
    """What was agreed to, and the record, written before anything is made. `old`: the record that
    there is by now."""
    if not intent.provider.features.instant:
        clock.report = report
    if intent.plan.recipes:
        from clusterctl.actions import images

        with clock.time_phase("images"):
            for name in intent.plan.recipes:
                report(f"building the image {name}, once on this engine: a minute or two")
                images.build(name, on_line=lambda line: None)
    if not (spec.provider or intent.old):
        report("no provider given: starting a local cluster")
    orphans = () if old else find_orphans(store, spec.name)
    for orphan in orphans:
        report(f"found cluster {orphan.id} without a local record; removing it first")
        finish_down(store, orphan, report)
    if old and old.phase is Phase.DELETING:
        report(f"finishing an earlier `down` of {old.name} first")
        finish_down(store, old, report)
        old = None

    def renew() -> Intent:
        return up_plan.intend(spec, old, intent.others, report, store.home.path)

    if old != intent.old:
        intent = renew()
    intent = up_plan.agree(store, intent, renew, report, consent, wall)
    spec, plan = intent.spec, intent.plan
    base = old or Cluster(
        id=up_plan.make_id(plan.owner, spec.name),
        spec=spec,
        phase=Phase.CREATING,
        created=time.time(),
        owner=plan.owner,
        client=name_client() if plan.owner else "",
    )
    if not base.mode:
        # A cluster stays in the mode it was made in, whatever is possible by now.
        base = replace(base, mode=plan.mode, mode_reason=plan.mode_reason, one_host=plan.one_host)
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
    store.save(cluster)
    store.add_event(cluster.name, "resuming" if old else "creating", workers=spec.workers)
    if old:
        costs.count_as_used(store, old)
    return intent, cluster


def _complete(
    store: Store,
    cluster: Cluster,
    intent: Intent,
    clock: Clock,
    report: Reporter,
) -> UpResult:
    """From the record of what is planned to a cluster that is on record as ready."""
    with clock.time_phase("create"):
        cluster, created = _create(store, cluster, intent, report, clock.nodes)
    store.add_event(cluster.name, "created", nodes=len(cluster.nodes))
    instant = intent.provider.features.instant
    with created.pool or open_pool(store, cluster) as pool:
        with clock.time_phase("connect"):
            logs = partial(
                intent.provider.read_consoles, cluster, store.locate_folder(cluster.name)
            )
            connect(pool, cluster, clock.nodes, logs if instant else None)
        cluster = _prepare_nodes(store, cluster, intent, created, pool, clock, report)
        with clock.time_phase("mesh"):
            hint = f"check for a firewall between them, then run `clusterctl up {cluster.name}`"
            check_mesh(pool, cluster, what="nodes", hint=hint)
        if cluster.shared:
            with clock.time_phase("shared folder"):
                check_shared(pool, cluster)
        if not instant:
            from clusterctl.actions import run  # not for every `up`

            store.save(cluster)
            # Ranks that do not add up, or that nobody waited for, make no cluster ready.
            with clock.time_phase("all-reduce"):
                ready = replace(cluster, phase=Phase.READY)
                run.run_all_reduce(Connected(store, ready, pool, report))
        cluster = replace(cluster, phase=Phase.READY)
        store.save(cluster)
        store.add_event(cluster.name, "ready", phases=dict(clock.phases))
    return UpResult(cluster, tuple(clock.phases))


def _create(
    store: Store, cluster: Cluster, intent: Intent, report: Reporter, phases: NodePhases
) -> tuple[Cluster, Created]:
    """The cluster with its machines, as it is on record by then."""
    workers = (f"worker-{number}" for number in range(1, cluster.spec.workers + 1))
    names = intent.plan.nodes or (LAUNCHER, *workers)
    phases.expect({name: "launcher" if name == LAUNCHER else "worker" for name in names})
    intent.provider.observe(phases)
    folder = store.locate_folder(cluster.name)
    keys.ensure(folder / "ssh" / "user")
    keys.ensure(folder / "ssh" / "mesh")
    try:
        created = intent.provider.create(cluster, folder, report)
    except ClusterctlError as error:
        goes = isinstance(error, NoCapacity) and bool(intent.others or intent.old is None)
        record_failed_create(store, cluster, intent.old, report, goes=goes)
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
    )
    with suppress(ClusterctlError):  # the next look knows
        cluster = providers.settle(cluster, folder, time.time())
    # known_hosts and an ssh_config: for us, and for `ssh -F` by hand.
    access.forget(store, cluster)
    cluster = common.write_known_hosts(store, cluster, created.host_keys)
    access.write_config(store, cluster)
    store.save(cluster)
    return up_plan.keep_budget(store, cluster, report), created


def connect(
    pool: Pool,
    cluster: Cluster,
    nodes: NodePhases,
    read_logs: Callable[[list[str]], Mapping[str, Sequence[str]]] | None = None,
) -> None:
    """Every node, or one error that names those that do not answer. `read_logs`: the last lines of
    their sshd, which tell why it refuses a user."""

    def note(result: NodeResult) -> None:
        phase = core_progress.CONNECTED if result.ok else core_progress.FAILED
        nodes.enter([result.node], phase, result.error)

    results = pool.connect(timeout=CONNECT_TIMEOUT, on_done=note)
    failed = [result for result in results if not result.ok]
    if failed:
        logs = read_logs([result.node for result in failed]) if read_logs else {}
        lines = "\n".join(line for some in logs.values() for line in some)
        said = re.search(r"User \S+ not allowed because .*", lines)
        raise NodeUnreachable(
            "; ".join(fold(failed)) + (f": {said[0]}" if said else ""),
            hint="use an account that may log in by SSH; "
            * bool(said)
            + f"`clusterctl up {cluster.name}` tries again,"
            f" `clusterctl down {cluster.name}` removes the cluster",
            transient=True,
        )


def _prepare_nodes(
    store: Store,
    cluster: Cluster,
    intent: Intent,
    created: Created,
    pool: Pool,
    clock: Clock,
    report: Reporter,
) -> Cluster:
    """The cluster with what its nodes say of themselves."""
    features, folder = intent.provider.features, store.locate_folder(cluster.name) / "ssh"
    key = keys.ensure_pair(folder / "mesh")
    boxes = {
        node.name: _make_container(node, cluster, intent, folder, key.public)
        for node in (cluster.nodes if intent.images else ())
    }
    # Nodes meet each other where jobs run: at the containers' sshd, where there are any.
    host_keys = created.host_keys | {n: box.host_key.public for n, box in boxes.items()}
    files = bootstrap.list_mesh_files(key, cluster.nodes, host_keys)
    if features.shares_machine:
        files = bootstrap.fit_config(files)
    files |= {bootstrap.SETUP: cluster.spec.setup} if cluster.spec.setup else {}
    metered = clock.nodes.watched
    scripts = {
        node.name: _render_script(node, cluster, features, files, boxes.get(node.name), metered)
        for node in cluster.nodes
    }

    def note(result: NodeResult) -> None:
        problem = bootstrap.find_problem(result, boxes.get(result.node))
        phase = core_progress.FAILED if problem else core_progress.READY
        clock.nodes.enter([result.node], phase, problem)

    kinds = {node.name: bootstrap.find_kind(node) for node in cluster.nodes}
    fetched = {kind: round(gb[0] * 1e9) for kind, gb in intent.installs.items()}
    sizes = {name: fetched.get(kind, 0) for name, kind in kinds.items()}
    progress = StepReporter(report, nodes=clock.nodes, sizes=sizes)
    with clock.time_phase(BOOTSTRAP):
        results = pool.run(
            "exec /bin/sh -s",
            stdin=scripts,
            timeout=features.bootstrap_timeout,
            on_stdout=progress.on_stdout,
            on_done=note,
        )
    problems = [
        NodeResult(node=result.node, error=text)
        for result in results
        if (text := bootstrap.find_problem(result, boxes.get(result.node)))
    ]
    if problems:
        # The files of local nodes are in the state home.
        full = features.shares_machine and any(FULL_DISK.search(one.error) for one in problems)
        repair = f"free some space in {store.home.path}" if full else "fix the problem"
        raise (ProviderError if full else BootstrapError)(
            f"bootstrap failed: {'; '.join(fold(problems))}",
            hint=f"{repair}, then `clusterctl up {cluster.name}` resumes",
        )
    clock.phases += [
        (f"{BOOTSTRAP}: {what}", round(seconds, 3))
        for what, seconds in progress.seconds.items()
        if seconds >= NOTEWORTHY
    ]
    first = results[0].stdout if features.shares_machine else b""  # what all have in common
    nodes = tuple(
        bootstrap.read_bootstrap(node, replace(result, stdout=first + result.stdout))
        for node, result in zip(cluster.nodes, results, strict=True)
    )
    for line in find_troubles(pool, cluster, created.nodes, nodes, features):
        report(line)
    return replace(cluster, nodes=nodes)


def _make_container(
    node: Node, cluster: Cluster, intent: Intent, folder: Path, mesh_key: str
) -> bootstrap.NodeContainer:
    """What the node's container is made from."""
    kind = bootstrap.find_kind(node)
    image = intent.images[kind]
    return bootstrap.NodeContainer(
        image=image.reference,
        recipe=image.recipe,
        bases=image.bases,
        login=image.login,
        host_key=keys.ensure_pair(folder / "containers" / node.name),
        mesh_key=mesh_key,
        row=catalog.CONTAINER_IMAGES[kind],
        shared=cluster.shared,
    )


def _render_script(
    node: Node,
    cluster: Cluster,
    features: Features,
    files: Mapping[str, str],
    container: bootstrap.NodeContainer | None,
    metered: bool,
) -> bytes:
    setup = cluster.spec.setup
    if not features.fresh_machines:
        steps = bootstrap.list_setup_steps(node, setup)
        here = features.shares_machine
        asked = bootstrap.OWN if here and node.name != cluster.nodes[0].name else ()
        return bootstrap.render_script(
            node, files, pythons=features.pythons, steps=steps, asked=asked, here=here
        )
    return bootstrap.render_script(
        node,
        {**files, **(container.list_files(node) if container else {})},
        pythons=bootstrap.list_pythons(node, container),
        steps=bootstrap.list_steps(
            node,
            cluster.spec.runtime or Runtime.HOST,
            nodes=cluster.nodes,
            mesh_key=files["ssh/mesh.pub"].strip(),
            container=container,
            deadline_unit=features.deadline_unit,
            idle=cluster.spec.cloud.idle or 0.0,
            shared=cluster.shared,
            setup=setup,
        ),
        inside=bootstrap.enter_container(container),
        metered=metered,
    )


def find_troubles(
    pool: Pool,
    cluster: Cluster,
    promised: Sequence[Node],
    found: Sequence[Node],
    features: Features,
    clock: Callable[[], float] = time.time,
) -> tuple[str, ...]:
    """What is wrong with nodes on which jobs can still run: no GPU, a wrong clock, a deadline that
    is not the cluster's (that of an image which was made from a node, say)."""
    missing = find_missing_gpus(promised, found)
    if not features.fresh_machines:
        return missing
    command = f"{deadlines.render_question()}; {deadlines.CLOCK}"
    results = [one for one in pool.run(command, timeout=CONNECT_TIMEOUT) if one.ok]
    shown = {one.node: deadlines.read_clock(one.text) for one in results}
    kept = {one.node: deadlines.parse_answer(one.text.splitlines())[0] for one in results}
    other = deadlines.describe_difference(cluster, kept)
    return (*missing, *filter(None, (other,)), *deadlines.describe_clocks(shown, clock()))


def find_missing_gpus(promised: Sequence[Node], found: Sequence[Node]) -> tuple[str, ...]:
    """Machines that were paid for as GPU machines, and where no driver shows any."""
    results = [
        NodeResult(
            node=node.name,
            error=f"no {before.accelerator.value} GPU found, but {before.instance_type} has one",
        )
        for before, node in zip(promised, found, strict=True)
        if before.accelerator is not Accelerator.NONE and not node.facts.gpus
    ]
    return fold(results)


# -------------------------------------------------------------------------------------------------
# An `up` that broke off: what stays on record, and what people are told of what is left.


def record_failed_create(
    store: Store,
    cluster: Cluster,
    old: Cluster | None,
    report: Reporter,
    *,
    goes: bool = False,
    clock: Callable[[], float] = time.time,
) -> None:
    """After an `up` that broke off: the record keeps what really costs money, and a cluster that
    was ready and has lost and gained nothing is ready, one whose machines are all stopped is
    stopped. Says what there is, also without machines, unless it `goes`: all is removed next."""
    folder, name = store.locate_folder(cluster.name), cluster.name
    then = f"`clusterctl up {name}` continues, `clusterctl down {name}` removes it"
    if cluster.charges:
        try:
            looks = providers.look(cluster, folder, clock())
        except ClusterctlError as error:
            planned = {item.node for item in cluster.charges if item.until is None}
            report(
                f"what runs now is unknown ({error.message}): up to"
                f" {count(len(planned), 'machine')}, {costs.describe_bill(cluster)}: {then}"
            )
            return
        cluster = replace(cluster, charges=ledger.settle(cluster, looks))
        there = ledger.list_living(looks)
        # By machine and deadline, not by name: new ones are called as those they replace.
        before = {node.name: node.machine for node in old.nodes} if old else {}
        same = old and (there, cluster.deadline) == (before, old.deadline)
        runs = any(item.part == "instance" and item.until is None for item in cluster.charges)
        if cluster.nodes and there and not runs:
            kept = replace(old, charges=cluster.charges) if old and same else cluster
            store.save(replace(kept, phase=Phase.STOPPED, stopping=False))
            report(f"{costs.describe_stopped(cluster)}; `clusterctl start {name}` tries again")
            return
        if old and old.phase is Phase.READY and same:
            store.save(old)
            report(f"cluster {name} is unchanged and ready")
            return
        store.save(cluster)
        gateway = any(item.part == GATEWAY and item.until is None for item in cluster.charges)
        things = [shorten(sorted(there))] * bool(there) + ["a NAT gateway"] * gateway
        if things and not goes:
            report(f"still running: {' and '.join(things)}, {costs.describe_bill(cluster)}: {then}")
            return
    provider = providers.load_provider(cluster.spec.provider)
    if goes:
        return
    with suppress(ClusterctlError):  # why `up` broke off is said next, and matters more
        if left := provider.list_left(cluster, folder):
            things_left = describe_resources(left, ids=False)
            report(f"no machines are running; left over: {things_left}: {then}")

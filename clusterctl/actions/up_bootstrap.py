"""What `up` does on the nodes that there are: SSH files, connections, the bootstrap."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from clusterctl.actions import access
from clusterctl.actions.common import name_in_known_hosts, write_known_hosts
from clusterctl.actions.images import NodeImage
from clusterctl.actions.running_costs import report_unknown
from clusterctl.core import catalog, keys
from clusterctl.core import progress as core_progress
from clusterctl.core.model import (
    GATEWAY,
    Accelerator,
    Cluster,
    Node,
    NodeResult,
    Phase,
    Reporter,
    Runtime,
    fold,
)
from clusterctl.core.progress import NodePhases
from clusterctl.core.text import count, format_time
from clusterctl.errors import BootstrapError, ClusterctlError, NodeUnreachable
from clusterctl.insight import cost
from clusterctl.machines import bootstrap, deadlines, ledger, providers
from clusterctl.machines.bootstrap import StepReporter
from clusterctl.machines.ledger import list_living
from clusterctl.machines.protocol import Features, describe_resources
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool

CONNECT_TIMEOUT = 20.0


def write_ssh(
    store: Store, cluster: Cluster, host_keys: Mapping[str, str]
) -> tuple[Cluster, list[str]]:
    """known_hosts and an ssh_config: for us, and for `ssh -F` by hand. Returns the record with the
    keys, and the nodes whose host key has changed since they were last written."""
    access.forget(store, cluster)
    before: dict[str, str] = {}
    with suppress(OSError):
        path = store.locate_folder(cluster.name) / "ssh" / "known_hosts"
        lines = path.read_text(errors="replace").splitlines()
        before = dict(line.split(" ", 1) for line in lines if " " in line)
    cluster = write_known_hosts(store, cluster, host_keys)
    access.write_config(store, cluster)
    access.write_hosts(store, cluster)
    changed = {name for name, key in cluster.host_keys.items() if before.get(name, key) != key}
    nodes = map(cluster.node, host_keys)
    return cluster, [n.name for n in nodes if name_in_known_hosts(n) in changed]


def connect(pool: Pool, cluster: Cluster, nodes: NodePhases) -> None:
    """Every node, or one error that names those that do not answer."""

    def note(result: NodeResult) -> None:
        phase = core_progress.CONNECTED if result.ok else core_progress.FAILED
        nodes.enter([result.node], phase, result.error)

    results = pool.connect(timeout=CONNECT_TIMEOUT, on_done=note)
    failed = [result for result in results if not result.ok]
    if failed:
        raise NodeUnreachable(
            "; ".join(fold(failed)),
            hint=f"`clusterctl up {cluster.name}` tries again,"
            f" `clusterctl down {cluster.name}` removes the cluster",
            transient=True,
        )


def bootstrap_nodes(
    pool: Pool,
    cluster: Cluster,
    features: Features,
    images: Mapping[str, NodeImage],
    folder: Path,
    host_keys: dict[str, str],
    progress: StepReporter,
) -> tuple[Node, ...]:
    """The nodes with what they say of themselves. `folder`: where the cluster's keys are."""
    key = keys.ensure_pair(folder / "mesh")
    containers = _make_containers(cluster, images, folder, key.public)
    # Nodes meet each other where jobs run: at the containers' sshd, where there are any.
    host_keys = {**host_keys, **{name: box.host_key.public for name, box in containers.items()}}
    mesh = bootstrap.Mesh(key=key, nodes=cluster.nodes, host_keys=host_keys)
    scripts = {
        node.name: _render_script(
            *(node, cluster, features, mesh, containers.get(node.name)),
            metered=progress.nodes.watched,
        )
        for node in cluster.nodes
    }

    def note(result: NodeResult) -> None:
        problem = bootstrap.find_problem(result)
        phase = core_progress.FAILED if problem else core_progress.READY
        progress.nodes.enter([result.node], phase, problem)

    compiles = any(image.recipe in catalog.COMPILED_FOR for image in images.values())
    with progress:
        results = pool.run(
            "exec /bin/sh -s",
            stdin=scripts,
            timeout=features.bootstrap_timeout + catalog.COMPILING * compiles,
            on_stdout=progress.on_stdout,
            on_done=note,
        )
    problems = [
        NodeResult(node=result.node, error=text)
        for result in results
        if (text := bootstrap.find_problem(result))
    ]
    if problems:
        raise BootstrapError(
            f"bootstrap failed: {'; '.join(fold(problems))}",
            hint=f"fix the problem, then `clusterctl up {cluster.name}` resumes",
        )
    pairs = zip(cluster.nodes, results, strict=True)
    return tuple(bootstrap.read_bootstrap(node, result) for node, result in pairs)


def _make_containers(
    cluster: Cluster, images: Mapping[str, NodeImage], folder: Path, mesh_key: str
) -> dict[str, bootstrap.NodeContainer]:
    """What each node's container is made from; none where ranks run on the machine itself."""
    found = {}
    for node in cluster.nodes if images else ():
        kind = bootstrap.find_kind(node)
        image = images[kind]
        found[node.name] = bootstrap.NodeContainer(
            image=image.reference,
            recipe=image.recipe,
            bases=image.bases,
            login=image.login,
            host_key=keys.ensure_pair(folder / "containers" / node.name),
            mesh_key=mesh_key,
            row=catalog.CONTAINER_IMAGES[kind],
            shared=cluster.shared,
        )
    return found


def _render_script(
    node: Node,
    cluster: Cluster,
    features: Features,
    mesh: bootstrap.Mesh,
    container: bootstrap.NodeContainer | None,
    metered: bool,
) -> bytes:
    if not features.fresh_machines:
        return bootstrap.render_script(node, mesh, pythons=features.pythons)
    return bootstrap.render_script(
        node,
        mesh,
        pythons=bootstrap.list_pythons(node, container),
        steps=bootstrap.list_steps(
            node,
            cluster.spec.runtime or Runtime.HOST,
            nodes=cluster.nodes,
            mesh_key=mesh.key.public,
            container=container,
            deadline_unit=features.deadline_unit,
            idle=cluster.spec.cloud.idle or 0.0,
            shared=cluster.shared,
            shared_source=cluster.shared_source,
        ),
        files=container.list_files(node) if container else None,
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
    wrong = (
        deadlines.describe_missing(cluster, kept),
        deadlines.describe_difference(cluster, {n: at for n, at in kept.items() if at is not None}),
    )
    return (*missing, *filter(None, wrong), *deadlines.describe_clocks(shown, clock()))


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
    clock: Callable[[], float] = time.time,
) -> bool:
    """After an `up` that broke off: the record keeps what really costs money, and a cluster that
    was ready and has lost and gained nothing is ready. Whether it was said what there is."""
    if not cluster.charges:
        return False
    folder = store.locate_folder(cluster.name)
    try:
        looks = providers.look(cluster, folder, clock())
    except ClusterctlError as error:
        report_unknown(cluster, error, report)
        return True
    cluster, there = replace(cluster, charges=ledger.settle(cluster, looks)), list_living(looks)
    # By machine and deadline, not by name: new ones are called as those in whose place they are.
    before = {node.name: node.machine for node in old.nodes} if old else {}
    same = old and (there, cluster.deadline) == (before, old.deadline)
    if old and old.phase is Phase.READY and same:
        store.save(old)
        report(f"cluster {old.name} is unchanged and ready")
        return True
    store.save(cluster)
    gateway = any(item.part == GATEWAY and item.until is None for item in cluster.charges)
    if there or gateway:
        report(_describe_running(cluster, len(there), gateway))
    return bool(there or gateway)


def report_left(store: Store, cluster: Cluster, report: Reporter) -> None:
    """Names what an `up` that broke off has made without any machine: a network, say."""
    provider = providers.load_provider(cluster.spec.provider)
    with suppress(ClusterctlError):  # why `up` broke off is said next, and matters more
        if left := provider.list_left(cluster, store.locate_folder(cluster.name)):
            things = describe_resources(left, ids=False)
            report(
                f"no machines are running; left over: {things}: `clusterctl up"
                f" {cluster.name}` continues, `clusterctl down {cluster.name}` removes it"
            )


def _describe_running(cluster: Cluster, machines: int, gateway: bool) -> str:
    """What goes on costing money after an `up` that broke off, until when, and what to do."""
    name = cluster.name
    parts = [count(machines, "machine")] if machines else []
    parts += ["a NAT gateway"] if gateway else []
    one = machines + gateway == 1
    running = [item for item in cluster.charges if item.until is None]
    rate = cost.render_cost(cost.sum_hourly(running), cost.is_exact(running))
    until = f" until {format_time(cluster.deadline)}" if cluster.deadline else ""
    return (
        f"{' and '.join(parts)} {'runs' if one else 'run'}, {rate}/h{until}: `clusterctl up {name}`"
        f" continues, `clusterctl down {name}` removes {'it' if one else 'them'}"
    )

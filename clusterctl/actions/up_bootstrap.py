"""What `up` does on the nodes that there are: SSH files, connections, the bootstrap."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from clusterctl import bootstrap, catalog, keys, node_phases
from clusterctl.actions import ssh_config, terminal
from clusterctl.actions.known_hosts_file import name_in_known_hosts, write_known_hosts
from clusterctl.actions.node_images import NodeImage
from clusterctl.bootstrap import steps
from clusterctl.bootstrap.progress import StepReporter
from clusterctl.errors import BootstrapError, NodeUnreachable
from clusterctl.model import Accelerator, Cluster, Node, NodeResult, Runtime
from clusterctl.node_phases import NodePhases
from clusterctl.node_results import fold
from clusterctl.providers.protocol import Features
from clusterctl.providers.shared import deadlines
from clusterctl.state import Store
from clusterctl.transport.pool import Pool

CONNECT_TIMEOUT = 20.0


def write_ssh(
    store: Store, cluster: Cluster, host_keys: Mapping[str, str]
) -> tuple[Cluster, list[str]]:
    """known_hosts and an ssh_config: for us, and for `ssh -F` by hand. Returns the record with the
    keys, and the nodes whose host key has changed since they were last written."""
    terminal.forget(store, cluster)
    before: dict[str, str] = {}
    with suppress(OSError):
        path = store.locate_folder(cluster.name) / "ssh" / "known_hosts"
        lines = path.read_text(errors="replace").splitlines()
        before = dict(line.split(" ", 1) for line in lines if " " in line)
    cluster = write_known_hosts(store, cluster, host_keys)
    ssh_config.write_config(store, cluster)
    ssh_config.write_hosts(store, cluster)
    changed = {name for name, key in cluster.host_keys.items() if before.get(name, key) != key}
    nodes = map(cluster.node, host_keys)
    return cluster, [n.name for n in nodes if name_in_known_hosts(n) in changed]


def connect(pool: Pool, cluster: Cluster, nodes: NodePhases) -> None:
    """Every node, or one error that names those that do not answer."""

    def note(result: NodeResult) -> None:
        phase = node_phases.CONNECTED if result.ok else node_phases.FAILED
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
        phase = node_phases.FAILED if problem else node_phases.READY
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
    return tuple(bootstrap.read(node, result) for node, result in pairs)


def _make_containers(
    cluster: Cluster, images: Mapping[str, NodeImage], folder: Path, mesh_key: str
) -> dict[str, steps.NodeContainer]:
    """What each node's container is made from; none where ranks run on the machine itself."""
    found = {}
    for node in cluster.nodes if images else ():
        kind = steps.find_kind(node)
        image = images[kind]
        found[node.name] = steps.NodeContainer(
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
    container: steps.NodeContainer | None,
    metered: bool,
) -> bytes:
    if not features.fresh_machines:
        return bootstrap.render_script(node, mesh, pythons=features.pythons)
    return bootstrap.render_script(
        node,
        mesh,
        pythons=steps.list_pythons(node, container),
        steps=steps.list_steps(
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
        inside=steps.enter_container(container),
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

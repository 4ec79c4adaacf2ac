"""The Docker provider: one container per node, on this machine's engine and a network of its own.

Nodes are made from the images in `docker/`, or from any image with an sshd: keys and entry point
are copied in before the start, so that host keys are known before the first connection and are
neither in the image nor in what the engine shows of a container.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from ipaddress import IPv4Network
from pathlib import Path

from clusterctl import process
from clusterctl.core import catalog, keys
from clusterctl.core.model import SHARED, Cluster, ClusterSpec, Node, Reporter, Role, Runtime
from clusterctl.core.text import list_last_lines
from clusterctl.errors import LeftoverError, NodeUnreachable, ProviderError, UsageError
from clusterctl.machines import deadlines, networks
from clusterctl.machines.docker import containers
from clusterctl.machines.docker.containers import Container, NodePlan
from clusterctl.machines.networks import probe
from clusterctl.machines.protocol import (
    LAUNCHER,
    Created,
    Features,
    Provider,
    ProviderPlan,
    describe_made,
    name_span,
)

MODE = "containers"
PULL_LIMIT = 3600.0
QUICK = {"launcher", "cpu"}
"""Images that take minutes to build, from a few hundred megabytes."""


class DockerProvider(Provider):
    """Containers of this machine."""

    # A node is its image: nothing to install.
    features = Features(
        pythons=(catalog.CONTAINER_IMAGES["cpu"].python,),
        shared_folder=f"{SHARED} on all nodes, a volume of this engine; `down` deletes it",
        subject="containers",
    )

    def __init__(self, devices: Path = Path("/dev")) -> None:
        """`devices`: where this machine shows what containers may get of it."""
        self._devices = devices

    def plan(
        self,
        spec: ClusterSpec,
        current: Cluster | None = None,
        report: Reporter = lambda line: None,
        *,
        ahead: Path | None = None,
    ) -> ProviderPlan:
        machines = containers.plan_machines(spec, self._devices)
        if spec.runtime is Runtime.DOCKER:
            raise UsageError(
                "--provider docker: its nodes are already containers",
                hint="leave out --runtime; choose the image with --image",
            )
        version = containers.require()
        to_pull, recipes = _list_absent(machines)
        todo = [f"to be pulled: {', '.join(to_pull)}"] if to_pull else []
        todo += [f"to be built, once: {', '.join(recipes)}"] if recipes else []
        shares = [
            f"{machine.name} has GPU {', '.join(machine.gpus)}"
            for machine in machines
            if machine.gpus
        ]
        deadline = deadlines.choose_deadline(spec, current)
        return ProviderPlan(
            mode=MODE,
            mode_reason=f"Docker {version}",
            one_host=False,
            lines=(
                f"{len(machines)} containers on this machine's engine: launcher,"
                f" {name_span(spec.workers)}",
                f"image {machines[-1].image}, launcher {machines[0].image}",
                *todo,
                *shares,
                "cost: free",
                *deadlines.describe_deadline(deadline),
            ),
            deadline=deadline,
            recipes=recipes,
        )

    def create(self, cluster: Cluster, folder: Path, report: Reporter) -> Created:
        machines = containers.plan_machines(cluster.spec, self._devices)
        containers.require()
        for reference in _list_absent(machines)[0]:
            report(f"pulling {reference}")
            what = f"the image {reference} could not be pulled"
            containers.need("pull", "--quiet", reference, what=what, timeout=PULL_LIMIT)
        began = time.monotonic()
        subnet = _make_network(cluster, folder)
        host_keys = {
            machine.name: keys.ensure(folder / "containers" / machine.name) for machine in machines
        }
        addresses = {m.name: networks.compute_address(subnet, m.index) for m in machines}
        authorized = [(folder / "ssh" / name).read_text().strip() for name in _LET_IN]
        digests = {
            machine.name: containers.compute_digest(
                machine, addresses[machine.name], [host_keys[machine.name], *authorized]
            )
            for machine in machines
        }
        # Before one that stands still is started: the deadline that it has may have passed.
        refused = containers.set_deadline(cluster.id, cluster.deadline, cluster.spec.ttl)
        containers.remove_containers(("rm", "--force", "--volumes"), [item.id for item in refused])
        kept, removed = containers.keep_healthy(cluster.id, digests, addresses)
        missing = [machine for machine in machines if machine.name not in kept]
        if missing:
            if cluster.spec.shared:
                # One that is there already is left as it is.
                words = ("volume", "create", *containers.label(cluster, folder))
                what = "the volume of the shared folder could not be created"
                containers.need(*words, containers.name_volume(cluster.id), what=what)
            wanted = containers.list_privileges(self._devices)
            privileges = containers.find_supported(cluster.id, missing, wanted, report)
            containers.make_container(
                cluster, folder, missing, digests, subnet, privileges, authorized
            )
            containers.wait_for_sshd(cluster, missing, addresses)
        gone = sorted(name for name in removed if name not in addresses)
        report(describe_made("container", len(missing), began, len(kept), gone))
        return Created(
            nodes=tuple(
                _build_node(cluster, machine, addresses[machine.name]) for machine in machines
            ),
            host_keys=host_keys,
            shared=SHARED if cluster.spec.shared else "",
        )

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        names = containers.name_nodes(cluster.spec.workers)
        try:
            containers.require()
            found = {item.node: item for item in containers.list_containers(cluster.id)}
        except ProviderError as error:
            return dict.fromkeys(names, f"unknown: {error.message}")
        over = bool(cluster.deadline and cluster.deadline <= time.time())
        troubles = {name: _describe_trouble(found.get(name), over) for name in names}
        endpoints = {
            name: (found[name].address, containers.PORT) for name in names if not troubles[name]
        }
        troubles |= probe(endpoints, seconds=2)
        return {name: troubles[name] or "running" for name in names}

    def list_dead(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        containers.require()
        found = {item.node: item for item in containers.list_containers(cluster.id)}
        over = bool(cluster.deadline and cluster.deadline <= time.time())
        return {
            name: _describe_trouble(found.get(name), over)
            for name in containers.name_nodes(cluster.spec.workers)
            # `docker restart` leaves one restarting, `docker pause` paused: they come back.
            if name not in found or found[name].state in ("exited", "dead", "removing")
        }

    def read_consoles(
        self, cluster: Cluster, folder: Path, names: Collection[str]
    ) -> dict[str, tuple[str, ...]]:
        mine = [item for item in containers.list_containers(cluster.id) if item.node in names]
        said = {item.node: containers.call("logs", "--tail", "50", item.id) for item in mine}
        return {name: list_last_lines(one.text + one.complaints) for name, one in said.items()}

    def find_ids(self, folder: Path) -> frozenset[str]:
        return containers.list_clusters(folder)

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        containers.require()
        if refused := containers.set_deadline(cluster.id, deadline):
            whys = sorted(f"{item.node}: {why}" for item, why in refused.items())
            raise NodeUnreachable(
                f"the old deadline still applies on {'; '.join(whys)}",
                hint="try again",
                transient=True,
            )

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        containers.require()
        found = [item.id for item in containers.list_containers(cluster.id)]
        containers.remove_containers(("rm", "--force", "--volumes"), found)
        kinds = {"network": ("rm",), "volume": ("rm", "--force")}
        for kind, words in kinds.items():
            mine = containers.list_labelled(kind, cluster.id)
            containers.remove_containers((kind, *words), mine)
        left = [f"container {c.name} ({c.state})" for c in containers.list_containers(cluster.id)]
        left += [
            f"{kind} {name}"
            for kind in kinds
            for name in containers.list_labelled(kind, cluster.id)
        ]
        if left:
            raise LeftoverError(
                f"cluster {cluster.name} was not fully removed: {', '.join(left)}",
                hint="check what uses it (docker inspect), then run down again",
            )
        label = f"{containers.CLUSTER}={cluster.id}"
        report(f"asked the engine again: no container, network or volume has the label {label}")


_LET_IN = ("user.pub", "mesh.pub")


def _list_absent(machines: Iterable[NodePlan]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Images that this engine lacks: references to pull, and recipes of ours to build. Raises
    ProviderError for those of ours that nobody wants to be built unasked."""
    ours = {catalog.name_local_image(recipe): recipe for recipe in catalog.RECIPES}
    absent = [
        reference
        for reference in dict.fromkeys(machine.image for machine in machines)
        if not containers.has_image(reference)
    ]
    recipes = tuple(ours[reference] for reference in absent if reference in ours)
    for recipe in sorted(set(recipes) - QUICK):
        public = catalog.CONTAINER_IMAGES[recipe].public
        raise ProviderError(
            f"the engine has no image {catalog.name_local_image(recipe)}",
            hint=f"clusterctl image build {recipe} (or --image {public})",
        )
    return tuple(reference for reference in absent if reference not in ours), recipes


def _make_network(cluster: Cluster, folder: Path) -> IPv4Network:
    """The cluster's network, made if it is not there. Its name is the cluster's id."""
    present = containers.list_labelled("network", cluster.id)
    if present and (found := containers.list_subnets(present)):
        return found[0]
    words = ["network", "create", "--driver", "bridge", *containers.label(cluster, folder)]
    with ExitStack() as until:
        subnet = networks.claim(cluster.id, _list_used, until)
        words += ["--subnet", str(subnet), "--gateway", str(subnet[networks.HOST])]
        containers.need(*words, cluster.id, what="the cluster's network could not be created")
    return subnet


def _list_used() -> tuple[IPv4Network, ...]:
    """What the kernel knows where `ip` tells us, and what the engine has given away."""
    texts = [
        process.run(["ip", "-4", "-j", *words], timeout=10).text
        for words in (("address",), ("route", "show", "table", "all"))
    ]
    return (*networks.parse_taken(*texts), *containers.list_subnets())


def _describe_trouble(found: Container | None, over: bool) -> str:
    """`over`: its deadline has passed."""
    if found is None:
        return "gone: no such container"
    if found.state == "running":
        return "" if found.address else "disconnected: it has left the cluster's network"
    if over and found.state == "exited" and not found.exit_code:
        return "has shut down at its deadline"
    return f"{found.state}: exit code {found.exit_code}, see docker logs {found.name}"


def _build_node(cluster: Cluster, machine: NodePlan, address: str) -> Node:
    """Workers share this machine's cores; the launcher runs no ranks."""
    launcher = machine.name == LAUNCHER
    cores = len(os.sched_getaffinity(0)) // cluster.spec.workers
    return Node(
        name=machine.name,
        role=Role.LAUNCHER if launcher else Role.WORKER,
        address=address,
        private_address=address,
        ssh_port=containers.PORT,
        job_port=containers.PORT,
        user="root",
        root=containers.name_root(cluster.id),
        slots=1 if launcher else len(machine.gpus) or max(1, cores),
        machine=containers.name_container(cluster.id, machine),
    )

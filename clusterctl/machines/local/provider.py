"""The local provider: every node is a real sshd on this machine, free and offline.

As root, nodes have namespaces of their own and behave like machines; otherwise they are loopback
addresses of one host. See `modes` for who gets which.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from threading import Timer

from clusterctl.core.model import Cluster, ClusterSpec, Node, Reporter, Role
from clusterctl.core.text import list_last_lines
from clusterctl.errors import FULL, LeftoverError, ProviderError
from clusterctl.machines import deadlines
from clusterctl.machines.local import layout, nodes, processes
from clusterctl.machines.local.nodes import (
    Loopback,
    Namespaces,
    converge,
    drop_interface,
)
from clusterctl.machines.networks import Endpoint, probe
from clusterctl.machines.protocol import (
    LAUNCHER,
    Created,
    Features,
    Provider,
    ProviderPlan,
    describe_made,
    name_span,
)

UNTOLD = 1.0
"""Seconds that files may take to be removed before that is said."""


class LocalProvider(Provider):
    """Processes of this machine."""

    features = Features(
        # They see this machine's files: the Python that runs clusterctl has what programs need.
        pythons=(sys.executable,),
        shares_machine=True,
        shared_folder="on this machine's disk; `down` deletes it",
        instant=True,
        subject="local clusters",
        if_missing="error",
    )

    def plan(
        self,
        spec: ClusterSpec,
        current: Cluster | None = None,
        report: Reporter = lambda line: None,
        *,
        ahead: Path | None = None,
    ) -> ProviderPlan:
        names = layout.name_nodes(spec.workers)
        if ahead:
            layout.check_path(ahead)  # before there is a record
        layout.find_server()
        mode = nodes.choose_mode()
        kind = (
            "each node has its own network, hostname and files"
            if mode.name == nodes.NAMESPACES
            else "all nodes share this machine's network and files"
        )
        deadline = deadlines.choose_deadline(spec, current)
        return ProviderPlan(
            mode=mode.name,
            mode_reason=mode.reason,
            one_host=mode.name == nodes.LOOPBACK,
            lines=(
                f"{len(names)} nodes on this machine: launcher, {name_span(spec.workers)}",
                f"{kind} ({mode.name} mode: {mode.reason})",
                "cost: free",
                *deadlines.describe_deadline(deadline),
            ),
            deadline=deadline,
        )

    def create(self, cluster: Cluster, folder: Path, report: Reporter) -> Created:
        names = layout.name_nodes(cluster.spec.workers)
        site = layout.make_site(cluster.id, folder)
        server = layout.find_server()
        mode = _read_mode(cluster)
        began = time.monotonic()
        if cluster.spec.shared:
            site.shared.mkdir(mode=0o700, exist_ok=True)
        with ExitStack() as until:
            network = (
                Namespaces(site, server, until) if mode == nodes.NAMESPACES else Loopback(server)
            )
            try:
                outcome = converge(site, network, names, server)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                raise ProviderError(
                    f"cannot write {site.nodes}: {error.strerror}",
                    hint=f"free some space in {folder.parent.parent}, then"
                    f" `clusterctl up {cluster.name}` resumes",
                ) from error
        kept = len(names) - len(outcome.started)
        if cluster.deadline:
            processes.set_deadline(site, cluster.name, cluster.deadline, cluster.spec.ttl)
        report(describe_made("node", len(outcome.started), began, kept, outcome.removed))
        return Created(
            nodes=tuple(
                _build_node(site, name, outcome.endpoints[name], server.user, cluster.spec.workers)
                for name in names
            ),
            host_keys=outcome.host_keys,
            shared=str(site.shared) if cluster.spec.shared else "",
        )

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        site = layout.make_site(cluster.id, folder)
        troubles = self.list_dead(cluster, folder)
        endpoints: dict[str, Endpoint] = {}
        names = layout.name_nodes(cluster.spec.workers)
        for name in names:
            if name not in troubles:
                endpoint = layout.read_endpoint(site.locate(name))
                if endpoint is None:
                    troubles[name] = f"damaged: {site.locate(name).config} is gone"
                else:
                    endpoints[name] = endpoint
        troubles |= probe(endpoints, seconds=1)
        return {name: troubles[name] or "running" for name in names}

    def list_dead(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        site = layout.make_site(cluster.id, folder)
        present = {process.node for process in processes.scan(site)}
        cut_off = cluster.mode == nodes.NAMESPACES and layout.SWITCH not in present
        dead: dict[str, str] = {}
        for name in layout.name_nodes(cluster.spec.workers):
            if name not in present:
                dead[name] = "gone: it has no process"
            elif cut_off:
                dead[name] = "disconnected: the process that holds the network is gone"
        return dead

    def read_consoles(
        self, cluster: Cluster, folder: Path, names: Collection[str]
    ) -> dict[str, tuple[str, ...]]:
        logs = {name: layout.make_site(cluster.id, folder).locate(name).log for name in names}
        return {
            name: list_last_lines(log.read_text(errors="replace").partition("\n")[2])  # its tag
            for name, log in logs.items()
            if log.exists()
        }

    def find_ids(self, folder: Path) -> frozenset[str]:
        configs = folder.glob("nodes/*/etc/sshd_config")
        return frozenset(filter(None, map(layout.read_cluster, configs))) or frozenset(
            processes.find_ids(folder)
        )

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        processes.set_deadline(layout.make_site(cluster.id, folder), cluster.name, deadline)

    def find_deadline_trouble(self, cluster: Cluster, folder: Path) -> str:
        site = layout.make_site(cluster.id, folder)
        if not cluster.deadline:
            return ""
        if not processes.is_running(site):
            return "the process that takes it down at its deadline is not running"
        if time.time() > cluster.deadline + processes.REAPER_PATIENCE:
            log = processes.locate_log(site)
            return f"it could not be taken down at its deadline ({log} has the reason)"
        return ""

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        site = layout.make_site(cluster.id, folder)
        # The network goes last: clients learn through it that their server is gone.
        stubborn = processes.end(site, lambda process: process.node != layout.SWITCH)
        drop_interface(site)
        stubborn += processes.end(site, lambda process: True)
        left = [
            f"process {process.pid} ({process.command})"
            for process in dict.fromkeys(stubborn)
            if processes.is_alive(process.pid, process.start)
        ]
        scratch = (*nodes.find_scratch_folders(site), site.scratch_link)
        telling = Timer(UNTOLD, report, ("removing the files of the nodes",))
        telling.start()
        try:
            for path in (site.nodes, site.shared, *scratch):
                try:
                    nodes.remove_tree(path)
                except OSError as error:
                    left.append(f"{path}: {error.strerror}")
        finally:
            telling.cancel()
        left += [what for what in nodes.find_remnants(site) if what not in left]
        if left:
            raise LeftoverError(
                f"cluster {cluster.name} was not fully removed: {'; '.join(left)}",
                hint="end or remove that, then run down again",
            )
        report("no process, interface or file is left on this machine")


def _read_mode(cluster: Cluster) -> str:
    """A cluster keeps the mode that it was made with."""
    if cluster.mode == nodes.NAMESPACES and (obstacle := nodes.find_obstacle()):
        raise ProviderError(
            f"cluster {cluster.name} was created with namespaces, which are not possible now:"
            f" {obstacle}",
            hint="run clusterctl as the same user as before, or take the cluster down",
        )
    return cluster.mode or nodes.choose_mode().name


def _build_node(site: layout.Site, name: str, endpoint: Endpoint, user: str, workers: int) -> Node:
    """Workers share this machine's cores; the launcher runs no ranks."""
    address, port = endpoint
    cores = len(os.sched_getaffinity(0))
    launcher = name == LAUNCHER
    return Node(
        name=name,
        role=Role.LAUNCHER if launcher else Role.WORKER,
        address=address,
        private_address=address,
        ssh_port=port,
        job_port=port,
        user=user,
        root=str(site.locate(name).root),
        slots=1 if launcher else max(1, cores // workers),
    )

"""A batch system that is there already, seen from its login node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from clusterctl.model import Cluster, Reporter
from clusterctl.providers.protocol import Features, Queue
from clusterctl.providers.shared.take_back import clean_up_hosts, render_removal
from clusterctl.transport.pool import Pool

STATUS_TIMEOUT = 30.0


class BatchSite:
    """A Provider. A batch system says what to ask its login node, and what the answers mean: all
    pure, commands are sh. `required` are programs that the login node has to have, with Debian's
    name for the package."""

    features = Features()
    name: ClassVar[str]
    title: ClassVar[str]
    """Its name for people."""
    required: ClassVar[Mapping[str, str]]

    def list_questions(self) -> dict[str, str]:
        raise NotImplementedError

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        """What the answers say, as it is kept in the cluster's record."""
        raise NotImplementedError

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        """Runs `words` on a compute node, if one is free within so many seconds."""
        raise NotImplementedError

    def build_status_command(self) -> str:
        raise NotImplementedError

    def parse_queues(self, text: str) -> tuple[Queue, ...]:
        raise NotImplementedError

    def look(self, cluster: Cluster, folder: Path) -> tuple[dict[str, str], tuple[Queue, ...]]:
        """Whether the login node answers, and its queues."""
        login = cluster.launcher
        with Pool.of(cluster, folder / "ssh") as pool:
            result = pool.find_transport(login.name).run(
                self.build_status_command(), timeout=STATUS_TIMEOUT
            )
        if not result.ok:
            return {login.name: f"no answer: {result.why}"}, ()
        return {login.name: "answers"}, self.parse_queues(result.text)

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return self.look(cluster, folder)[0]

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        clean_up_hosts(cluster, folder, report, lambda node: render_removal(node.root, cluster.id))

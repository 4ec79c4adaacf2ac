"""SSH hosts as a provider: their owner runs them, and we take our files away again."""

from __future__ import annotations

from pathlib import Path

from clusterctl.model import Cluster, Reporter
from clusterctl.providers.protocol import Features
from clusterctl.providers.shared.take_back import (
    clean_up_hosts,
    make_key_mark,
    render_removal,
    render_shut_out,
)


class HostsProvider:
    """Implements `clusterctl.providers.protocol.Provider`."""

    features = Features()

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        """They run as far as anybody knows who has not asked their SSH."""
        return dict.fromkeys((node.name for node in cluster.nodes), "running")

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        shut = render_shut_out(make_key_mark(cluster))
        clean_up_hosts(
            cluster,
            folder,
            report,
            lambda node: f"{render_removal(node.root, cluster.id)}\n{shut}",
        )

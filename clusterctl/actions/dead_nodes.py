"""Which nodes will not answer again, however long anybody waits."""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl import providers
from clusterctl.model import Cluster, Phase
from clusterctl.providers.protocol import Attesting
from clusterctl.state import Store


def find_dead(store: Store, cluster: Cluster) -> Mapping[str, str]:
    """The nodes whose machines do not run, and why, by the records and by the provider; none where
    it cannot know. May take long. Raises ProviderError, RecordError."""
    records = [found for found in store.clusters() if found.id == cluster.id]
    if not records or records[0].phase is Phase.DELETING:
        why = f"cluster {cluster.name} was taken down"
        return {node.name: why for node in cluster.nodes}
    provider = providers.load(cluster.spec.provider)
    if not isinstance(provider, Attesting):
        return {}
    return provider.list_dead(cluster, store.folder(cluster.name))

"""Which nodes will not answer again, however long anybody waits."""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl import providers
from clusterctl.model import Cluster, Phase
from clusterctl.providers.protocol import Attesting
from clusterctl.state import Store


def find_dead(store: Store, cluster: Cluster) -> Mapping[str, str]:
    """The nodes whose machines do not run, and why, by the record and by the provider; none where
    it cannot know. May take long. Raises ProviderError, and RecordError for a damaged record."""
    if _was_taken_down(store, cluster):
        why = f"cluster {cluster.name} was taken down"
        return {node.name: why for node in cluster.nodes}
    provider = providers.load(cluster.spec.provider)
    if not isinstance(provider, Attesting):
        return {}
    return provider.list_dead(cluster, store.locate_folder(cluster.name))


def _was_taken_down(store: Store, cluster: Cluster) -> bool:
    if cluster.name not in store.list_names():
        return True
    record = store.read_cluster(cluster.name)
    return record.id != cluster.id or record.phase is Phase.DELETING

"""`gc`: what runs on EC2 and belongs to no cluster that this machine knows of."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from clusterctl.actions import Tell, check_name
from clusterctl.errors import RecordError, UsageError
from clusterctl.model import Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.providers.ec2 import Ec2Provider
from clusterctl.providers.ec2.sweep import Left, describe
from clusterctl.state import ClusterLock, Store


@dataclass(frozen=True, slots=True)
class Orphan:
    """A cluster by its tags alone. `name` may be empty where the tag is gone."""

    id: str
    name: str
    region: str
    left: tuple[Left, ...]

    @property
    def text(self) -> str:
        return f"{self.id} ({self.name or 'no name'}) in {self.region}: {describe(self.left)}"


def find(store: Store, regions: Iterable[str] = ()) -> tuple[Orphan, ...]:
    """Every cluster with our tag and without a record here. Its owner may be another machine of
    yours, or a colleague: nothing is removed without being asked for."""
    provider = Ec2Provider()
    known = {cluster.id for cluster in store.clusters()}
    chosen = tuple(dict.fromkeys(regions)) or provider.regions(
        [cluster.spec.cloud.region for cluster in store.clusters()]
    )
    found = []
    for region in chosen:
        groups: dict[str, list[Left]] = {}
        for left in provider.find(region):
            groups.setdefault(left.cluster, []).append(left)
        for id, mine in groups.items():
            if id not in known:
                name = next((left.name for left in mine if left.name), "")
                found.append(Orphan(id, name, region, tuple(mine)))
    return tuple(found)


def remove(orphan: Orphan, tell: Tell) -> None:
    """Removes all of it. Raises LeftoverError if something stays."""
    Ec2Provider().remove(orphan.id, orphan.region, tell)


def adopt(store: Store, name: str, regions: Iterable[str], tell: Tell) -> Cluster:
    """Gives the cluster of that name (or id) a record again. Raises RecordError where there is
    none or the name is taken, UsageError where there are several."""
    check_name(name)
    found = [item for item in find(store, regions) if name in (item.name, item.id)]
    if not found:
        raise RecordError(
            f"no cluster {name!r} without a record is found by its tags",
            hint="`clusterctl gc` lists those that are; --region looks elsewhere",
        )
    if len(found) > 1:
        raise UsageError(
            f"several clusters are called {name!r}: {', '.join(item.id for item in found)}",
            hint="name one by its id",
        )
    orphan = found[0]
    name = orphan.name or name
    with ClusterLock(store.home, name, "gc", tell):
        if name in store.names() and (store.folder(name) / "cluster.json").exists():
            raise RecordError(
                f"there is another cluster {name!r} here", hint=f"`clusterctl down {name}` first"
            )
        provider = Ec2Provider()
        nodes, charges, created = provider.adopt(orphan.id, orphan.region)
        types: dict[str, int] = {}
        for node in nodes:
            if node.name.startswith("worker-"):
                types[node.instance_type] = types.get(node.instance_type, 0) + 1
        spec = ClusterSpec(
            name=name,
            provider="ec2",
            groups=tuple(
                NodeGroup(count=count, instance_type=kind) for kind, count in types.items()
            ),
        )
        spec = replace(spec, cloud=replace(spec.cloud, region=orphan.region))
        cluster = Cluster(
            id=orphan.id,
            spec=spec,
            phase=Phase.CREATING,
            created=created or time.time(),
            mode="ec2",
            mode_reason=f"{orphan.region}, adopted",
            nodes=nodes,
            charges=charges,
            account=provider.account(orphan.region),
        )
        store.save(cluster)
        store.event(name, "adopted", id=orphan.id)
    return cluster

"""`gc`: what runs on EC2 and belongs to no cluster that this machine knows of."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

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
    """Every cluster with our tag that nothing here knows of. Its owner may be another machine of
    yours, or a colleague: nothing is removed without being asked for."""
    found = _tagged(store, regions)
    known = _known(store)
    return tuple(item for item in found if item.id not in known)


def remove(store: Store, orphan: Orphan, tell: Tell) -> bool:
    """Removes all of it, unless it is known here by now: then it says so and returns False. Raises
    LeftoverError if something stays."""
    # A tag may hold anything, and a lock is a file.
    name = Path(orphan.name or orphan.id).name
    with ClusterLock(store.home, name, "gc", tell):
        if orphan.id in _known(store):
            tell(f"{orphan.id} has a record here by now: it stays")
            return False
        Ec2Provider().remove(orphan.id, orphan.region, tell)
    return True


def adopt(store: Store, name: str, regions: Iterable[str], tell: Tell) -> Cluster:
    """Gives the cluster of that name (or id) a record again. Raises RecordError where there is
    none or the name is taken, UsageError where there are several."""
    check_name(name)
    found = [item for item in _tagged(store, regions) if name in (item.name, item.id)]
    recorded = _recorded(store)
    found = [item for item in found if item.id not in recorded]
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
    check_name(name)  # a tag may say anything
    with ClusterLock(store.home, name, "gc", tell):
        if name in store.names() and (store.folder(name) / "cluster.json").exists():
            raise RecordError(
                f"there is another cluster {name!r} here", hint=f"`clusterctl down {name}` first"
            )
        there = Ec2Provider().adopt(orphan.id, orphan.region)
        types: dict[str, int] = {}
        for node in there.nodes:
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
            created=there.since or time.time(),
            mode="ec2",
            mode_reason=f"{orphan.region}, adopted",
            nodes=there.nodes,
            charges=there.charges,
            account=there.account,
        )
        store.save(cluster)
        store.event(name, "adopted", id=orphan.id)
    return cluster


def _tagged(store: Store, regions: Iterable[str]) -> list[Orphan]:
    """Every cluster with our tag, known or not."""
    provider = Ec2Provider()
    chosen = tuple(dict.fromkeys(regions)) or provider.regions(
        [cluster.spec.cloud.region for cluster in store.clusters()]
    )
    found = []
    for region in chosen:
        groups: dict[str, list[Left]] = {}
        for left in provider.find(region):
            groups.setdefault(left.cluster, []).append(left)
        for id, mine in groups.items():
            name = next((left.name for left in mine if left.name), "")
            found.append(Orphan(id, name, region, tuple(mine)))
    return found


def _recorded(store: Store) -> set[str]:
    """Ids, to be asked for when AWS has answered: `up` writes the record before it makes anything,
    so that no cluster which begins meanwhile is taken for an orphan."""
    return {cluster.id for cluster in store.clusters()}


def _known(store: Store) -> set[str]:
    """The same, with those whose record is damaged or gone: `down` still knows them."""
    kept = (Ec2Provider().ids(store.folder(name)) for name in store.names())
    return _recorded(store).union(*kept)

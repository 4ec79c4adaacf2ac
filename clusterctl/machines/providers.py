"""Where machines come from. One folder per provider, and one row in a table of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from clusterctl.core.model import Cluster
from clusterctl.errors import RecordError, UsageError
from clusterctl.machines import ledger
from clusterctl.machines.ledger import Sighting
from clusterctl.options.batch import BATCH_SYSTEMS
from clusterctl.options.kinds import EC2, PROVIDER_OPTIONS

if TYPE_CHECKING:  # `status` needs no provider
    from clusterctl.machines.protocol import Cloud, Provider

PROVIDERS: dict[str, str] = {
    name: f"clusterctl.machines.{name}.provider:{name.capitalize()}Provider"
    for name in PROVIDER_OPTIONS
}
"""What `up` makes, and `down` removes."""

DEFAULT = "local"
"""Of a new cluster whose options name and imply none: it costs nothing."""

ATTACHED: dict[str, str] = {
    "hosts": "clusterctl.machines.attached:HostsProvider",
    **{n: f"clusterctl.machines.attached:{n.capitalize()}Provider" for n in BATCH_SYSTEMS},
}
"""What `attach` takes over, and `detach` lets go."""


def load_provider(name: str) -> Provider:
    """The provider that a record names, imported on first use. Raises RecordError."""
    known = {**PROVIDERS, **ATTACHED}
    if name not in known:
        raise RecordError(
            f"the record of the cluster names an unknown provider, {name!r}",
            hint=f"correct `provider` in its cluster.json: {', '.join(known)}",
        )
    return _load(name, known)


def load_creator(name: str) -> Provider:
    """The provider of that name, one that `up` can use. UsageError with the names there are."""
    return _load(name, PROVIDERS)


def _load(name: str, table: Mapping[str, str]) -> Provider:
    if name not in table:
        raise UsageError(f"unknown provider {name!r}", hint=f"choose one of: {', '.join(table)}")
    module, _, attribute = table[name].partition(":")
    return cast("Provider", getattr(import_module(module), attribute)())


_KNOWN_BY_FOLDER = frozenset({"ec2"})
"""Providers that know a cluster without a record by what is in its folder, and by nothing else."""


def find_ids(folder: Path) -> Iterator[tuple[str, str]]:
    """Clusters of that folder as their machines tell it: the provider and the id of each. Raises
    RecordError where there was one, and nothing tells which."""
    kept = folder.is_dir() and any(folder.iterdir())
    for name in PROVIDERS:
        if kept or name not in _KNOWN_BY_FOLDER:
            yield from ((name, id) for id in sorted(load_provider(name).find_ids(folder)))


def load_cloud(name: str = EC2.owner) -> Cloud:
    """Who bills clusters that have charges, and finds them by their tags."""
    return cast("Cloud", load_provider(name))


def look(cluster: Cluster, folder: Path, now: float) -> tuple[Sighting, ...]:
    """Asks whoever bills a cluster what there is, and notes it: all looks so far. Raises the
    provider's error."""
    things = load_cloud(cluster.spec.provider).list_things(cluster, folder)
    return ledger.add(folder, cluster, things, now)


def settle(cluster: Cluster, folder: Path, now: float) -> Cluster:
    """The same cluster with the charges that follow from that. Raises the provider's error."""
    if not cluster.charges:
        return cluster
    return replace(cluster, charges=ledger.settle(cluster, look(cluster, folder, now)))


def list_living(cluster: Cluster, folder: Path, now: float) -> dict[str, str]:
    """The nodes whose machines there are, with what the provider calls these (as in
    `Node.machine`), from whoever bills them. Raises the provider's error."""
    return ledger.list_living(look(cluster, folder, now))

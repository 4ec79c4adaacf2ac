"""What exists in a cloud, as a provider finds it: instances, volumes, networks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.formats import count


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing that exists in a cloud. `cluster` and `name` are the values of its tags; `managed`:
    the cloud put it there on its own."""

    kind: str
    id: str
    cluster: str = ""
    name: str = ""
    managed: bool = False
    owner: str = ""
    """Who made it; "" where its tags do not say that."""
    client: str = ""
    shared: str = ""
    """The folder that the nodes of its cluster share."""
    deadline: float | None = None
    made: float | None = None
    """When it was started, of what says that: machines."""
    hourly: float | None = 0.0
    """US dollars; None: unknown."""


def describe(resources: tuple[Resource, ...], *, ids: bool = True) -> str:
    """`2 instances (i-1, i-2), 1 volume (vol-3)`; without `ids` only how many."""
    kinds: dict[str, list[str]] = {}
    for item in resources:
        kinds.setdefault(item.kind, []).append(item.id)
    return ", ".join(
        count(len(mine), kind) + (f" ({', '.join(mine)})" if ids else "")
        for kind, mine in kinds.items()
    )

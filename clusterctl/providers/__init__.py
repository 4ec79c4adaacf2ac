"""Where machines come from. One file (or folder) per provider and one row in `PROVIDERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from clusterctl.errors import UsageError
from clusterctl.model import Charge, Cluster, ClusterSpec, Node
from clusterctl.transport.pool import Pool

OnEvent = Callable[[str], None]
"""Takes one line of progress for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderPlan:
    """What `up` is about to do, printable as it stands."""

    mode: str
    mode_reason: str
    one_host: bool
    lines: tuple[str, ...]
    spec: ClusterSpec | None = None
    """The wish with what was left to the provider filled in; None: as it was."""
    charges: tuple[Charge, ...] = ()
    deadline: float | None = None
    """When the nodes will end themselves, in seconds since the epoch."""
    recipes: tuple[str, ...] = ()
    """Images that `image build` has to make first, as there is no registry to pull them from."""
    nodes: tuple[str, ...] = ()
    """The names of all nodes there will be; () where the provider numbers its workers from 1."""
    account: str = ""
    """Whose the nodes will be, by its number; "" where nobody is billed."""
    question: str = ""
    """What a person has to agree to before money is spent; "" where none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """The nodes of a cluster with their public host keys (`ssh-ed25519 AAAA…`), by node name.

    `pool` holds the connections that making them took, where it took any: the caller goes on with
    them, and closes them.
    """

    nodes: tuple[Node, ...]
    host_keys: dict[str, str]
    pool: Pool | None = field(default=None, compare=False)
    charges: tuple[Charge, ...] | None = None
    """What they cost, where that has come to be other than planned."""
    mode_reason: str = ""


class Provider(Protocol):
    """Nine verbs. `folder` is the cluster's own, 0700; its `ssh/user.pub` is the key to let in."""

    def plan(
        self,
        spec: ClusterSpec,
        current: Cluster | None = None,
        tell: OnEvent = ...,
        *,
        ahead: Path | None = None,
    ) -> ProviderPlan:
        """Says what `create` would do; `current` is the record of what there is. `ahead` is the
        state home where `create` is to follow: what is slow, costs nothing and serves every cluster
        may be begun there. Raises ProviderError where it cannot be done."""

    def create(self, cluster: Cluster, folder: Path, on_event: OnEvent) -> Created:
        """Makes what is missing, removes what is surplus; safe to repeat after any interruption."""

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        """Node name → `running` or what is wrong, from the machines and not from the record."""

    def billed(self, cluster: Cluster, folder: Path) -> Mapping[str, str]:
        """The nodes that cost money now, with what the provider calls their machines (as in
        `Node.machine`), from whoever bills them."""

    def made(self, folder: Path) -> frozenset[str]:
        """The nodes that cost money and that `folder` knows to have been made, whether or not they
        live: also those of a `create` that failed, which no record has."""

    def ids(self, folder: Path) -> frozenset[str]:
        """The ids of the clusters of `folder`, from what there is of them and without a record: so
        that one whose record was lost or damaged can be destroyed."""

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        """Moves the deadline (seconds since the epoch) wherever it is armed. Raises NodeUnreachable
        naming the nodes that keep the old one."""

    def deadline_trouble(self, cluster: Cluster, folder: Path) -> str:
        """Why the cluster would outlive its deadline, as far as this machine alone can tell; ""
        where nothing speaks against it. Asks no node."""

    def destroy(self, cluster: Cluster, folder: Path, on_event: OnEvent) -> None:
        """Removes everything from any half-built state; LeftoverError if something stays."""


PROVIDERS: dict[str, str] = {
    "local": "clusterctl.providers.local:LocalProvider",
    "docker": "clusterctl.providers.docker:DockerProvider",
    "ec2": "clusterctl.providers.ec2:Ec2Provider",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of `check`. `level`: `ok`, `warning` (something is less good) or `error` (something
    will not work)."""

    level: str
    subject: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A partition of Slurm or a queue of Grid Engine, as it is now."""

    name: str
    nodes: int = 0
    free_nodes: int = 0
    slots: int = 0
    free_slots: int = 0
    gpus: int = 0
    free_gpus: int = 0
    down: int = 0
    """Nodes that take no jobs."""


class Site(Protocol):
    """A batch system that is there already: what to ask its login node. All pure; commands are sh.

    `required` are programs that the login node has to have, with Debian's name for the package.
    """

    name: str
    required: Mapping[str, str]

    def questions(self) -> dict[str, str]: ...

    def traits(self, answers: Mapping[str, str]) -> dict[str, str]:
        """What the answers say, as it is kept in the cluster's record."""

    def node_command(self, words: Sequence[str], seconds: int) -> str:
        """Runs `words` on a compute node, if one is free within so many seconds."""

    def status_command(self) -> str: ...

    def queues(self, text: str) -> tuple[Queue, ...]: ...


SITES: dict[str, str] = {
    "slurm": "clusterctl.providers.slurm:SlurmSite",
    "sge": "clusterctl.providers.sge:SgeSite",
}
"""What `attach` takes over, and `detach` lets go."""

ATTACHED = ("hosts", *SITES)


def load_site(name: str) -> Site:
    """The batch system of that name, imported on first use."""
    module, _, attribute = SITES[name].partition(":")
    return cast(Site, getattr(import_module(module), attribute)())


def load(name: str) -> Provider:
    """The provider of that name, imported on first use."""
    if name not in PROVIDERS:
        raise UsageError(
            f"there is no provider {name!r}", hint=f"choose one of: {', '.join(PROVIDERS)}"
        )
    module, _, attribute = PROVIDERS[name].partition(":")
    return cast(Provider, getattr(import_module(module), attribute)())

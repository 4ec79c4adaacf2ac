"""What providers promise: `Provider`, and `Cloud` of those whose machines cost money."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from clusterctl.core.model import (
    Charge,
    Cluster,
    ClusterSpec,
    Node,
    NodeGroup,
    Reporter,
    Runtime,
    Thing,
)
from clusterctl.core.progress import NodePhases
from clusterctl.core.text import count
from clusterctl.errors import ClusterctlError, ProviderError, UsageError

if TYPE_CHECKING:
    from clusterctl.transport.pool import Pool

# -------------------------------------------------------------------------------------------------
# What exists in a cloud, as a provider finds it: instances, volumes, networks. Pure.


class Resource(Struct, frozen=True):
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


def describe_resources(resources: tuple[Resource, ...], *, ids: bool = True) -> str:
    """`2 instances (i-1, i-2), 1 volume (vol-3)`; without `ids` only how many."""
    kinds: dict[str, list[str]] = {}
    for item in resources:
        kinds.setdefault(item.kind, []).append(item.id)
    return ", ".join(
        count(len(mine), kind) + (f" ({', '.join(mine)})" if ids else "")
        for kind, mine in kinds.items()
    )


# -------------------------------------------------------------------------------------------------


class NoCapacity(ProviderError):
    """No machines of the wanted kind here and now; elsewhere there may be some."""


class QuotaExceeded(ProviderError):
    """The account may not start that many machines now. `fits`: how many workers it may."""

    fits = 0


class Features(Struct, frozen=True, kw_only=True):
    """The facts in which providers differ, known without asking anybody."""

    runtime: Runtime = Runtime.HOST
    """Where ranks run, unless --runtime says otherwise."""
    worker_family: str = ""
    """The row of the catalog for workers of which only the number is given."""
    fresh_machines: bool = False
    """Nodes are bare machines: bootstrap installs what jobs need."""
    deadline_unit: str = ""
    """The service that ends a fresh machine at its deadline: bootstrap sees to it that it runs."""
    bootstrap_timeout: float = 120.0
    """Seconds."""
    pythons: tuple[str, ...] = ()
    """Where nodes that are not fresh have a Python with what programs need."""
    shares_machine: bool = False
    """Nodes are names for the processor of this machine: slots are advice there, not a limit."""
    shared_folder: str = ""
    """Where a folder lies that all nodes can share, for people; "": `up --shared` is refused."""
    instant: bool = False
    """Nodes are there at once and cost nothing: `up` reports no phases and runs no smoke test."""
    subject: str = ""
    """What `check` calls the clusters that can be made on this machine."""
    if_missing: str = "warning"
    """The level of `check`'s finding where none can."""


class ProviderPlan(Struct, frozen=True, kw_only=True):
    """What `up` is about to do, printable as it stands."""

    mode: str
    mode_reason: str
    one_host: bool
    lines: tuple[str, ...]
    spec: ClusterSpec | None = None
    """The options with what was left to the provider filled in; None: as it was."""
    charges: tuple[Charge, ...] = ()
    deadline: float | None = None
    """When the nodes will end themselves, in seconds since the epoch."""
    recipes: tuple[str, ...] = ()
    """Images that `image build` has to make first, as there is no registry to pull them from."""
    kinds: tuple[str, ...] = ()
    """The kinds of nodes (rows of the catalog's images), where they are bare machines."""
    nodes: tuple[str, ...] = ()
    """The names of all nodes there will be; () where the provider numbers its workers from 1."""
    account: str = ""
    """Whose the nodes will be, by its number; "" where nobody is billed."""
    owner: str = ""
    """Who makes them, as the cloud knows them; "" where nobody is billed."""
    saved: frozenset[str] = frozenset()
    """The kinds of nodes whose machine image has all that is installed on others."""
    disks: Mapping[str, int] = field(default_factory=dict)
    """GiB of the machine image that a worker's disk begins with, by kind of node."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """MB/s of workers' disks that are faster than usual, by kind of node."""
    question: str = ""
    """What a person has to agree to before money is spent; "" where none is."""


class Created(Struct, frozen=True, kw_only=True):
    """The nodes of a cluster with their public host keys (`ssh-ed25519 AAAA…`), by node name.

    `pool` holds the connections that making them took, where it took any: the caller goes on with
    them, and closes them.
    """

    nodes: tuple[Node, ...]
    host_keys: dict[str, str]
    pool: Pool | None = None
    mode_reason: str = ""
    shared: str = ""
    """The folder that all nodes share, if one was asked for: see `Cluster`."""


MAKES_IMAGE = "image-"
"""How the clusters are called that machine images are made of, before the kind of nodes."""


class SavedImage(Struct, frozen=True, kw_only=True):
    """A machine image of the account. `kind`: of the nodes that it is for; `gib`: of the disk
    that its snapshot is of, which costs `monthly` US dollars at most (None: unknown); `owner`: who
    made it, as the cloud knows them."""

    id: str
    name: str
    kind: str
    state: str = ""
    made: str = ""
    gib: int = 0
    monthly: float | None = None
    snapshots: tuple[str, ...] = ()
    owner: str = ""


class CheckRow(Struct, frozen=True):
    """One row of `check`. `level`: `ok`, `warning` (something is less good) or `error` (something
    will not work)."""

    level: str
    subject: str
    text: str
    hint: str = ""


class RegistryLogin(Struct, frozen=True):
    """What a registry of container images asks for."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryLogin({self.user!r})"

    @property
    def basic(self) -> str:
        import base64

        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class Provider:
    """What every provider does; what has a default, only some do. `folder` is the cluster's own,
    0700. `plan` and `create` are for machines that `up` makes: attached ones are there."""

    features: Features

    def plan(
        self,
        spec: ClusterSpec,
        current: Cluster | None = None,
        report: Reporter = lambda line: None,
        *,
        ahead: Path | None = None,
    ) -> ProviderPlan:
        """Says what `create` would do; `current` is the record of what there is. `ahead` is the
        state home where `create` is to follow. Raises ProviderError where it cannot be done."""
        raise NotImplementedError

    def create(self, cluster: Cluster, folder: Path, report: Reporter) -> Created:
        """Makes what is missing, removes what is surplus; safe to repeat after any interruption.
        `ssh/user.pub` in the folder is the key to let in."""
        raise NotImplementedError

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        """Node name → `running` or what is wrong, from the machines and not from the record."""
        raise NotImplementedError

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        """Removes everything from any half-built state; LeftoverError if something stays. Of
        machines that were attached only what we have put there is removed."""
        raise NotImplementedError

    def diagnose(self, name: str) -> tuple[CheckRow, ...]:
        """What `check` says about clusters of this provider, which is called `name`: whether one
        can be planned."""
        subject = self.features.subject or name
        spec = ClusterSpec(name="check", provider=name, groups=(NodeGroup(count=2),))
        try:
            plan = self.plan(spec)
        except ClusterctlError as error:
            return (CheckRow(self.features.if_missing, subject, error.message, error.hint),)
        reason = f" ({plan.mode_reason})" if plan.mode_reason else ""
        return (CheckRow("ok", subject, plan.mode + reason),)

    def observe(self, nodes: NodePhases) -> None:
        """Takes the phases of the machines that `create` makes, to tell how far each is."""

    def list_dead(self, cluster: Cluster, folder: Path) -> Mapping[str, str]:
        """The nodes whose machines do not run, each with what is known, as `describe` says it; none
        that may only be cut off from this machine. Raises ProviderError."""
        return {}

    def read_consoles(
        self, cluster: Cluster, folder: Path, names: Collection[str]
    ) -> Mapping[str, Sequence[str]]:
        """The last lines that these nodes have written as they started, as far as they are kept;
        of few nodes where it takes long. Raises ProviderError."""
        return {}

    def find_ids(self, folder: Path) -> frozenset[str]:
        """The ids of the clusters of `folder`, from what there is of them and without a record.
        Raises RecordError where there was one, and nothing tells which."""
        return frozenset()

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        """Moves the deadline (seconds since the epoch) wherever it is armed. Raises UsageError
        where there is none, NodeUnreachable naming the nodes that keep the old one, and
        ProviderError before any node is told."""
        raise UsageError(
            f"the nodes of cluster {cluster.name} have no deadline",
            hint=f"`clusterctl down {cluster.name}` removes them",
        )

    def find_deadline_trouble(self, cluster: Cluster, folder: Path) -> str:
        """Why the cluster would outlive its deadline, as far as this machine alone can tell; ""
        where nothing speaks against it. Asks no node."""
        return ""

    def label_deadline(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        """Shows in the cloud when the cluster ends, for people and `gc`; no machine ends by it.
        Raises ProviderError."""

    def measure_clock(self, cluster: Cluster, folder: Path, report: Reporter) -> float:
        """Seconds that this machine's clock is ahead of the one that deadlines are kept by, which
        is reported where it is much. Raises ProviderError where it is too much, or nobody answers
        who has to."""
        return 0.0

    def explain_shut_out(self, cluster: Cluster, folder: Path) -> str:
        """Why this machine is not let in; "" where it is, or where that is not known."""
        return ""

    def list_left(self, cluster: Cluster, folder: Path) -> tuple[Resource, ...]:
        """What there is of a cluster beside its machines, whether or not it costs money. Raises
        ProviderError."""
        return ()

    def find_registry_login(self, host: str) -> RegistryLogin | None:
        """How to pull from that container registry; None for one that is not its own."""
        return None


class Cloud(Provider):
    """Its machines cost money, are found by their tags, and have a firewall. `region` is a part of
    the cloud."""

    def list_things(self, cluster: Cluster, folder: Path) -> Sequence[Thing]:
        """All that costs money of a cluster, or did and is still shown. Raises ProviderError."""
        raise NotImplementedError

    def list_ending(
        self, cluster: Cluster, folder: Path, reclaimed: Collection[str]
    ) -> frozenset[str]:
        """The nodes whose machines are about to end: those that have begun to, and of `reclaimed`,
        whose end was announced, those that still run. `create` would keep them."""
        raise NotImplementedError

    def check_pausing(self, cluster: Cluster, folder: Path) -> None:
        """Raises UsageError where these machines cannot be stopped, and ProviderError where AWS
        does not let us in: before a job is ended."""
        raise NotImplementedError

    def stop(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        """Stops all machines, whatever state they are in, and waits for it; `create` starts them
        again, with their disks. Raises ProviderError."""
        raise NotImplementedError

    def allow(self, cluster: Cluster, folder: Path, networks: Sequence[str]) -> tuple[str, ...]:
        """Lets connections in from these networks, or from this machine where none are given, and
        from no others. Returns them. Raises UsageError and ProviderError."""
        raise NotImplementedError

    def find_usual_region(self) -> str:
        """The one in which clusters are made, unless another one is asked for."""
        raise NotImplementedError

    def list_regions(self) -> tuple[str, ...]:
        """All that the account has enabled. Raises ProviderError where that is not told."""
        raise NotImplementedError

    def find_owner(self) -> str:
        """Who we are there, as in `Resource.owner`. Raises ProviderError."""
        raise NotImplementedError

    def find(self, region: str) -> tuple[Resource, ...]:
        """Everything in a region that carries our tag."""
        raise NotImplementedError

    def remove(self, cluster_id: str, region: str, report: Reporter) -> None:
        """Removes a cluster by its tag alone. Raises LeftoverError."""
        raise NotImplementedError

    def adopt(self, cluster_id: str, name: str, region: str) -> Cluster:
        """The record of a cluster, as far as its tags tell of it."""
        raise NotImplementedError

    def name_saved(self, options: ClusterSpec, kind: str) -> str:
        """What the machine image of one's own is called that workers of that kind would get."""
        raise NotImplementedError

    def list_saved(self, region: str) -> tuple[SavedImage, ...]:
        """All machine images of one's own. Raises ProviderError."""
        raise NotImplementedError

    def render_forgetting(self, node: Node) -> str:
        """sh that removes from a worker what is of its cluster alone."""
        raise NotImplementedError

    def save_image(
        self, cluster: Cluster, folder: Path, name: str, kind: str, report: Reporter
    ) -> SavedImage:
        """An image of the first worker, once it is complete. Raises ProviderError."""
        raise NotImplementedError

    def remove_saved(self, image: SavedImage, region: str, report: Reporter) -> None:
        """Raises ProviderError."""
        raise NotImplementedError


# -------------------------------------------------------------------------------------------------
# What nodes are called, whoever makes them.


LAUNCHER = "launcher"


def name_nodes(workers: int, *, most: int, what: str) -> tuple[str, ...]:
    """The launcher and its workers, in the order of their addresses. UsageError where `what` cannot
    have so many."""
    if not 1 <= workers <= most:
        raise UsageError(
            f"{what} has 1 to {most} workers, not {workers}",
            hint="choose another number with --workers",
        )
    return (LAUNCHER, *(f"worker-{number}" for number in range(1, workers + 1)))


def describe_made(what: str, made: int, began: float, kept: int, removed: Sequence[str]) -> str:
    """For people: `3 nodes started in 0.21 s, 1 already running, removed: worker-5`. `began`: on
    the monotonic clock."""
    text = f"all {count(kept, what)} already running"
    if made:
        text = f"{count(made, what)} started in {time.monotonic() - began:.2f} s"
        text += f", {kept} already running" if kept else ""
    return text + (f", removed: {', '.join(removed)}" if removed else "")


def name_span(workers: int) -> str:
    """For people: `worker-1 to worker-3`."""
    return "worker-1" if workers == 1 else f"worker-1 to worker-{workers}"

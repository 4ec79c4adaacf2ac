"""What clusterctl talks about: clusters, nodes and facts, as frozen values (jobs: `core.job`).

Standard library only. Times are seconds since the epoch (UTC), addresses are IPv4 in dotted form.
Paths that live on a node are `str`, paths on this machine are `Path`.
"""

from __future__ import annotations

import calendar
import math
import re
import time
from collections.abc import Callable, Container, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from shlex import quote
from signal import valid_signals

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.core.text import describe_exit, fold_runs
from clusterctl.errors import ClusterctlError, LaunchError, NodeUnreachable, make_local_error

# -------------------------------------------------------------------------------------------------
# What the parts of a cluster cost: plain values, and how providers bill them.
#
# Standard library only. Times are seconds since the epoch (UTC), prices are US dollars.


GATEWAY, GATEWAY_ADDRESS = "gateway", "gateway address"
NETWORK_PARTS = (GATEWAY, GATEWAY_ADDRESS)
"""Parts of a cluster's network that cost money by the hour: a NAT gateway, and its address."""

HOURS_PER_MONTH = 730.0
"""Of an average month. Source: AWS Pricing Calculator FAQs."""


@lru_cache(maxsize=64)
def _count_month_hours(start: float, end: float) -> float:
    """The hours between two times, as parts of their calendar months (UTC) of HOURS_PER_MONTH:
    a price per month is due in each one, however long. Source: "Amazon EBS pricing", examples."""
    hours = 0.0
    while start < end:
        year, month = time.gmtime(start)[:2]
        length = calendar.monthrange(year, month)[1] * 86400
        over = min(end, calendar.timegm((year, month, 1, 0, 0, 0)) + length)
        hours += HOURS_PER_MONTH * (over - start) / length
        start = over
    return hours


class Thing(Struct, frozen=True, kw_only=True):
    """A machine, a NAT gateway or its address, as whoever bills it shows it.

    `born`: since when it is there; `since`: when it started last; `until`: since when it has not
    run. None: that is not told. `item` and `hourly`, its type and price, only where they may differ
    from what was planned.
    """

    id: str
    node: str
    part: str = "instance"
    state: str = "on"
    """`on`, `off` (its disk is there, and costs money) or `ended`."""
    since: float | None = None
    until: float | None = None
    born: float | None = None
    lasts: bool = False
    """Whether nothing ends it at the deadline."""
    item: str = ""
    hourly: float | None = None
    source: str = ""


class Charge(Struct, frozen=True, kw_only=True):
    """What one part of one node costs. `hourly` in US dollars, None: unknown; of a disk, in a month
    of HOURS_PER_MONTH.

    `part` is `instance`, `disk` or `address`, or one of NETWORK_PARTS, which are counted as the
    launcher's and end with the cluster; `until` None: it still runs. `source` says where the
    price is from. `thing`: which one it is of, "" while it is only planned; `unseen`: nobody saw
    when it ended, and `until` is the latest that it can be.
    """

    node: str
    part: str
    item: str
    hourly: float | None
    source: str
    since: float
    until: float | None = None
    thing: str = ""
    unseen: bool = False

    def count_seconds(self, now: float) -> float:
        """How long it is billed until `now`: EC2 bills a minute of an instance at least, and every
        hour of a NAT gateway that has begun (https://aws.amazon.com/vpc/pricing/). One that ended
        as it began was removed before it was there."""
        lived = (now if self.until is None else self.until) - self.since
        if self.part == GATEWAY:
            if self.until == self.since:
                return 0.0
            return max(1, math.ceil(lived / 3600)) * 3600.0
        return max(60.0, lived)

    def compute_dollars(self, now: float) -> float:
        """What it has cost until `now`; 0 where the price is unknown."""
        return self.sum_between(self.since, self.since + self.count_seconds(now))

    def sum_between(self, start: float, end: float) -> float:
        """What it costs from one time to a later one, as long as it is billed."""
        if end <= start:
            return 0.0
        hours = _count_month_hours(start, end) if self.part == "disk" else (end - start) / 3600
        return (self.hourly or 0.0) * hours

    def end_at(self, when: float) -> Charge:
        """The same, as one that has ended then if it had not before."""
        return self if self.until is not None else replace(self, until=max(self.since, when))


# -------------------------------------------------------------------------------------------------

NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,29}")
"""Cluster names: they end up in hostnames, tags and paths, so letters, digits and dashes only."""
ID_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,49}")
"""Of a cluster's id: a person's name before its own, and a number behind."""

Reporter = Callable[[str], None]
"""Takes a line about what happens now, for people."""
Consent = Callable[[str], bool]
"""Asks a yes-or-no question; raises UsageError where there is nobody to ask and that matters."""

MEMORY = "/dev/shm"
"""Of a node: where secrets of jobs lie that a restart is to remove."""

SHARED = "/shared"
"""Of nodes that are machines or containers of ours: where the folder lies that they all share."""


def render_hostfile_mark(cluster_id: str) -> str:
    """The first line of a ~/hostfile on a node that is ours to replace and to remove."""
    return f"# Workers of cluster {cluster_id}, written by clusterctl"


class Role(str, Enum):
    """What a node is for. BOTH starts jobs and runs ranks; LOGIN is the one node of a batch system
    that we talk to."""

    LAUNCHER = "launcher"
    WORKER = "worker"
    BOTH = "launcher+worker"
    LOGIN = "login"


class Accelerator(str, Enum):
    """The vendor decides the communication library: NCCL or RCCL."""

    NONE = "none"
    NVIDIA = "nvidia"
    AMD = "amd"


class Interface(Struct, frozen=True, kw_only=True):
    """One IPv4 address on one network device of a node."""

    device: str
    address: str
    prefix: int
    up: bool = True
    alone: bool = True
    """The device has no other address, of IPv4 or IPv6, that leads beyond its link."""


class Mpi(Struct, frozen=True, kw_only=True):
    """An MPI installation on a node. `version` is dotted, as `mpirun --version` says it."""

    flavour: str
    version: str
    prefix: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


class Python(Struct, frozen=True, kw_only=True):
    """The Python that runs ranks on a node, and the packages we care about with their versions."""

    executable: str
    version: str
    packages: dict[str, str] = field(default_factory=dict)
    installed: str = ""
    """All that it has, as `name==version` words: one string, since a record has it once a node."""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What a node answered at bootstrap. Plans are made from these, never from hope."""

    hostname: str = ""
    arch: str = ""
    boot_id: str = ""
    """The kernel's boot id. Nodes that share it share one machine and its processor."""
    cores: int = 1
    """Processors a rank may use, hardware threads counted."""
    physical_cores: int = 1
    interfaces: tuple[Interface, ...] = ()
    accelerator: Accelerator = Accelerator.NONE
    gpus: tuple[str, ...] = ()
    driver: str = ""
    """The release of NVIDIA's."""
    cuda: str = ""
    """The CUDA release that an image for NVIDIA says it was made for."""
    mpi: Mpi | None = None
    mpi_components: tuple[str, ...] = ()
    """What Open MPI was built with, as `framework:component`. Asked, like the next three, only
    where there is a GPU or an RDMA device."""
    ucx: tuple[str, ...] = ()
    """What UCX can use, as `transport/device`."""
    fabrics: tuple[str, ...] = ()
    """Providers of libfabric."""
    nccl_net: str = ""
    """The plug-in through which NCCL uses libfabric."""
    python: Python | None = None
    tools: dict[str, str] = field(default_factory=dict)
    """Commands found on the node: name to absolute path."""


class Node(Struct, frozen=True, kw_only=True):
    """One machine (or what behaves like one).

    `address`:`ssh_port` is where this machine reaches the node's own sshd; `via` names the node
    to go through when there is no direct way, and `tunnel` is the command that carries SSH then.
    `private_address`:`job_port` is where the other nodes reach it. `root` is the only folder we
    write to.

    On machines of the user's own, port 0 and user "" mean what their ssh_config says.
    """

    name: str
    role: Role
    address: str
    private_address: str
    ssh_port: int
    job_port: int
    user: str
    root: str
    via: str = ""
    tunnel: str = ""
    python: str = ""
    mpi_prefix: str = ""
    slots: int = 1
    accelerator: Accelerator = Accelerator.NONE
    facts: NodeFacts = field(default_factory=NodeFacts)
    instance_type: str = ""
    machine: str = ""
    """What the provider calls it: the instance id on EC2. "": it is a machine of the user's own."""

    def __repr__(self) -> str:
        return f"<Node {self.name!r} at {self.address or 'this machine'}, slots: {self.slots}>"

    @property
    def here(self) -> bool:
        """It is the machine that clusterctl runs on: no SSH."""
        return not self.address

    @property
    def contained(self) -> bool:
        """Whether jobs run in a container of the node's, which has an sshd of its own. On machines
        of the user's own the ports may differ because of forwarding, and none does."""
        return bool(self.machine) and self.job_port != self.ssh_port

    def enter(self, command: str) -> str:
        """The command where the node's Python and its compilers are: in its container, if any."""
        if not self.contained:
            return command
        agent = quote(f"{self.root}/bin/clusterctl-ssh")
        return f"exec {agent} {quote(self.name)} {quote(command)}"


class NodeGroup(Struct, frozen=True, kw_only=True):
    """Equal workers: `family` names a row of the catalog, `instance_type` a machine size."""

    count: int
    family: str = ""
    instance_type: str = ""


class Runtime(str, Enum):
    """Where ranks run on a node that we made: in a container, or on the machine itself."""

    DOCKER = "docker"
    HOST = "host"


class CloudSpec(Struct, frozen=True, kw_only=True):
    """What a person asked of a cloud. "" and 0 leave it to us."""

    region: str = ""
    regions: tuple[str, ...] = ()
    """Where the whole cluster may be, to be tried in this order."""
    zones: tuple[str, ...] = ()
    """To be tried in this order."""
    launcher_type: str = ""
    spot: bool = False
    spot_fallback: bool = False
    """On-demand where there is no spot capacity."""
    ami: str = ""
    """For the workers."""
    disk: int = 0
    """GiB, of each worker."""
    efa: bool = False
    """Elastic Fabric Adapters for the workers."""
    vpc: str = ""
    """A network of the user's own: machines are made in its subnets."""
    subnet: tuple[str, ...] = ()
    """Those of them that may hold the cluster, in this order; (): any."""
    private: bool = False
    """Workers without public addresses, which the launcher alone has."""
    instance_connect: bool = False
    """SSH to the launcher through an EC2 Instance Connect Endpoint, and from no address. If also
    `private`, the launcher has no public address either."""
    tag: tuple[str, ...] = ()
    """`KEY=VALUE`, on all that is made."""
    ssh_cidr: str = ""
    budget: float = 0.0
    """US dollars; 0: none."""
    spent: float = 0.0
    """US dollars of the budget that went in regions which the cluster has left."""
    max_hourly: float = 0.0
    """US dollars per hour that it may cost at most; 0: any."""
    idle: float | None = None
    """Seconds without use after which the machines end; 0: never."""
    boot_timeout: float = 600.0
    """Seconds that a machine may take to answer over SSH."""


class ClusterSpec(Struct, frozen=True, kw_only=True):
    """What a person asked for."""

    name: str
    provider: str
    groups: tuple[NodeGroup, ...]
    ttl: float = 0.0
    """Seconds that the cluster may live; 0: the provider's own limit, or none."""
    runtime: Runtime | None = None
    """None: the provider's usual one."""
    image: str = ""
    """For the containers of all nodes; "": each kind has its own."""
    images: dict[str, str] = field(default_factory=dict)
    """For those of one kind (launcher, cpu, nvidia, amd), instead of `image`."""
    gpus: tuple[str, ...] = ()
    """Indices of this machine's GPUs that node containers get; ("all",): all of them."""
    shared: bool = False
    """A folder that all nodes share."""
    setup: str = ""
    """A script that root runs on each node, once."""
    cloud: CloudSpec = field(default_factory=CloudSpec)

    @property
    def workers(self) -> int:
        return sum(group.count for group in self.groups)


class Phase(str, Enum):
    """How far a cluster has come. A record in any phase can be resumed or destroyed."""

    CREATING = "creating"
    READY = "ready"
    STOPPED = "stopped"
    DELETING = "deleting"


class Cluster(Struct, frozen=True, kw_only=True):
    """The record of a cluster: written before anything is created, removed after all is gone."""

    id: str
    spec: ClusterSpec
    phase: Phase
    created: float
    mode: str = ""
    """How the provider made it, in one word for people: `namespaces`, `loopback`, …"""
    mode_reason: str = ""
    one_host: bool = False
    """The nodes are names of one host (loopback): mpirun forks, nothing crosses a network."""
    shares_machine: bool = False
    """The nodes are names for one processor, that of this machine: slots are advice, no limit."""
    nodes: tuple[Node, ...] = ()
    deadline: float | None = None
    """When the nodes end themselves; None: never."""
    charges: tuple[Charge, ...] = ()
    stopping: bool = False
    """A `stop` has begun and its end is not on record: the cloud alone knows which machines run."""
    identity: str | None = None
    """None: nodes let in the cluster's own key. For machines of the user's own: the key file to
    show, or "" for what their ssh_config and agent offer."""
    account: str = ""
    """AWS's number of the account that the nodes are in."""
    owner: str = ""
    """Who made it, as the cloud knows them: `user/ana`."""
    client: str = ""
    """Who made it on which machine: `ana@laptop`."""
    images: dict[str, str] = field(default_factory=dict)
    """What nodes pull, by their kind and with digests: a tag may have moved by the next `up`."""
    site_info: dict[str, str] = field(default_factory=dict)
    """What a batch system has told of itself when it was attached."""
    shared: str = ""
    """The folder that all nodes share, at the same path on each of them; "": none."""
    host_keys: dict[str, str] = field(default_factory=dict)
    """The keys that the nodes' sshd show, by address as in known_hosts: where that is damaged, it
    is written again from these."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def attached(self) -> bool:
        """Its machines are the user's own: their number and lifetime are not ours."""
        return self.identity is not None

    @property
    def end(self) -> str:
        """The verb that removes it."""
        return "detach" if self.attached else "down"

    @property
    def repair(self) -> str:
        """The command that looks at the nodes anew, after something was installed on them."""
        if not self.attached:
            verb = "start" if self.phase is Phase.STOPPED else "up"
            return f"clusterctl {verb} {self.name}"
        return f"clusterctl attach {self.name} --{self.spec.provider} …"

    @property
    def system(self) -> str:
        """Who runs its jobs: `direct` (we do), or the name of the batch system behind its login
        node. `batch.system` knows what that means."""
        login = any(node.role is Role.LOGIN for node in self.nodes)
        return self.spec.provider if login else "direct"

    @property
    def workers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.role in (Role.WORKER, Role.BOTH))

    @property
    def launcher(self) -> Node:
        """The node that starts jobs: the launcher, or the login node of a batch system."""
        return next(node for node in self.nodes if node.role is not Role.WORKER)

    def has(self, name: str) -> bool:
        """Whether there is such a node: a smaller `up` may have removed it since."""
        return any(node.name == name for node in self.nodes)

    def drop_nodes(self, names: Container[str]) -> Cluster:
        """The cluster as far as its other nodes go."""
        return replace(self, nodes=tuple(node for node in self.nodes if node.name not in names))

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)


class NodeResult(Struct, frozen=True, kw_only=True):
    """What one node answered to one command. Fan-out returns these; it never raises half-way."""

    node: str
    exit_code: int | None = None
    """None: the command did not end by itself (see `error`)."""
    stdout: bytes = b""
    stderr: bytes = b""
    error: str = ""
    seconds: float = 0.0
    cut: bool = False
    """The connection was lost on the way, or could not be made: another one may do better."""
    errno: int = 0
    """Of what failed on this machine, and not on the node: a file here could not be written."""
    hint: str = ""
    """What to do about `error`, where another attempt would do no better."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace")

    @property
    def complaints(self) -> str:
        """All that it wrote to stderr, without the newline at the end."""
        return self.stderr.decode(errors="replace").strip()

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it: no complaint is the cause, which may be a start file's."""
        return self.exit_code is not None and self.exit_code - 128 in valid_signals()

    @property
    def why(self) -> str:
        """Why it failed, in one line: what came between, a signal, or the last complaint."""
        if self.was_killed and not self.error:
            return f"it {describe_exit(self.exit_code or 0)}"
        return self.error or find_cause(self.complaints) or f"exit code {self.exit_code}"


_TAR_ENDS = re.compile(
    r"tar: (Exiting with failure|Error is not recoverable|Child returned status)"
)
FULL_DISK = re.compile(r"No space left|[Qq]uota exceeded|tar: .*: Wrote only \d+ of \d+ bytes")
"""In a line of a program whose disk takes no more."""


def find_cause(complaints: str) -> str:
    """The line that says why a command failed: the last one; of tar, whose last lines only say that
    it failed, the first, or the first about a full disk. "" for no complaints."""
    said = list(filter(str.strip, complaints.splitlines()))
    if not said or not _TAR_ENDS.match(said[-1]):
        return said[-1] if said else ""
    causes = [line for line in said if re.match("tar: |gzip: ", line) and not _TAR_ENDS.match(line)]
    causes.sort(key=lambda line: (not FULL_DISK.search(line), "Wrote only" in line))
    return [*causes, said[-1]][0]


# -------------------------------------------------------------------------------------------------
# Answers of nodes: equal ones of many as one line, `worker-[1-63]: ok`, and errors. Pure.


_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def fold(results: Iterable[NodeResult]) -> tuple[str, ...]:
    """One text per different answer, in the order in which the answers come.

    An answer of several lines stands below the names, indented.
    """
    nodes: dict[str, list[str]] = {}
    for result in results:
        nodes.setdefault(_describe_answer(result), []).append(result.node)
    return tuple(f"{shorten(names)}: {answer}" for answer, names in nodes.items())


def shorten(names: Sequence[str]) -> str:
    """Names in short: `launcher,worker-[1-3,5]`. Numbers with leading zeros keep their width."""
    groups: dict[tuple[str, int], list[int]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            groups.setdefault((name, 0), [])
            continue
        prefix, digits = match.groups()
        width = len(digits) if len(digits) > 1 else 0
        # node10 belongs to node[08-09] where those came first: it has the same width.
        if not (digits.startswith("0") or groups.get((prefix, width))):
            width = 0
        groups.setdefault((prefix, width), []).append(int(digits))
    texts = []
    for (prefix, width), numbers in groups.items():
        runs = [dict.fromkeys((run[0], run[-1])) for run in fold_runs(numbers)]
        ends = ",".join("-".join(f"{n:0{width}d}" for n in run) for run in runs)
        single = len(runs) == 1 and len(runs[0]) == 1
        texts.append(prefix + (ends if single or not runs else f"[{ends}]"))
    return ",".join(texts)


def _describe_answer(result: NodeResult) -> str:
    if result.error:
        return result.error
    out = result.text.strip()
    if result.ok:
        return _indent(out) or "ok"
    why = result.complaints or out
    return f"exit {result.exit_code}" + (f": {_indent(why)}" if why else "")


def _indent(text: str) -> str:
    lines = text.splitlines()
    return text if len(lines) < 2 else "\n".join(["", *("  " + line for line in lines)])


def make_error(
    doing: str, result: NodeResult, hint: str = "--verbose shows more"
) -> ClusterctlError:
    """The error for a command of ours that failed on a node, or for what it met on this machine."""
    if result.errno:
        message, local = (
            f"{doing}: {result.error}",
            "check its permissions, or choose another folder",
        )
        return make_local_error(message, result.errno, local)
    if result.exit_code is None:
        return NodeUnreachable(
            f"{doing}: {result.node}: {result.error}",
            hint=result.hint
            or "check the nodes with `clusterctl status --live`; `up` or `attach` repairs them",
            transient=True,
        )
    full = [line for line in result.complaints.splitlines() if FULL_DISK.search(line)]
    return LaunchError(
        f"{doing} failed on {result.node}: {full[-1] if full else result.why}",
        hint="free space there: `clusterctl ssh NODE -- df -h`" if full else hint,
    )

"""Hostfiles of Open MPI: of one job, of a whole cluster for a person's own mpirun, and one that a
person attaches hosts by."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from clusterctl.core import text
from clusterctl.core.job import JobSpec, Placement
from clusterctl.core.model import Cluster, Node, Role, render_hostfile_mark
from clusterctl.core.sweep import parse_concurrency
from clusterctl.errors import LaunchError, UsageError
from clusterctl.launch.launcher import Request


def render_hostfile(cluster: Cluster, counts: dict[str, int]) -> str:
    """Workers only, `address slots=ranks` in rank order: slots are what this job takes there."""
    if cluster.one_host:
        return f"localhost slots={sum(counts.values())}\n"
    return "".join(
        f"{cluster.node(name).private_address} slots={count}\n" for name, count in counts.items()
    )


def render_whole_hostfile(cluster: Cluster) -> str:
    """All workers with all their slots, for mpirun."""
    lines = [f"{node.private_address} slots={node.slots} # {node.name}" for node in cluster.workers]
    if cluster.one_host:
        lines = [f"localhost slots={sum(node.slots for node in cluster.workers)}"]
    return "\n".join((render_hostfile_mark(cluster.id), *lines, ""))


# -------------------------------------------------------------------------------------------------
# How many ranks, which node and which cores run them, and how they wait there.


MOST_ON_LOCAL = 1000
"""Ranks of a local node: more would take this machine's processes from everybody else."""

YIELD = "OMPI_MCA_mpi_yield_when_idle"
"""Whether a rank that waits for a message offers its core to other processes, as Open MPI 4 and 5
read it in every program. They wait by polling. On a core that something else runs on, too, the
waiting rank then takes the time of the rank that it waits for: with two ranks on two cores, one
other process made a training 3 to 18 times slower. Where the cores are the ranks' own, polling
without a pause answers soonest."""


def place(cluster: Cluster, spec: JobSpec) -> tuple[Placement, ...]:
    """Ranks in hostfile order, node by node.

    Default: one rank per GPU where a node has any, else one per worker. `--ranks` are spread
    evenly, the first nodes taking one more. More ranks than slots is a LaunchError, except where
    nodes share one machine with us (local): there it runs, oversubscribed.
    """
    workers = choose_workers(cluster, spec)
    counts = _count_ranks(workers, spec)
    if not cluster.shares_machine:
        for node, count in zip(workers, counts, strict=True):
            if count > node.slots:
                total = sum(node.slots for node in workers)
                raise LaunchError(
                    f"{text.count(sum(counts), 'rank')} do not fit: {node.name} has"
                    f" {text.count(node.slots, 'slot')}"
                    f" ({total} in all) and would get {count}",
                    hint=f"use at most --ranks {_find_most(workers)}, or a larger cluster",
                )
    elif max(counts) > MOST_ON_LOCAL:
        raise LaunchError(
            f"{max(counts)} ranks on one node are too many for this machine",
            hint=f"a local node takes up to {MOST_ON_LOCAL}",
        )
    return number(workers, counts)


def number(workers: Sequence[Node], counts: Sequence[int]) -> tuple[Placement, ...]:
    """So many ranks on each of them, one node after the other."""
    ends = accumulate(counts)
    return tuple(
        Placement(node=node.name, first=end - count, count=count)
        for node, count, end in zip(workers, counts, ends, strict=True)
        if count
    )


def check_sweep(spec: JobSpec) -> None:
    """Raises UsageError for what means nothing to points."""
    given = {
        "--ranks": spec.ranks,
        "--ranks-per-node": spec.ranks_per_node,
        "--retries": spec.retries,
        "--hang-timeout": spec.hang_timeout,
        "--resume-args": spec.resume_args,
        "--mpirun-arg": spec.mpirun_args,
        f"--launcher {spec.launcher}": spec.launcher in ("torchrun", "srun"),
    }
    for name, value in given.items():
        if value:
            raise UsageError(
                f"{name} cannot be combined with --sweep or --array: each point is one process",
                hint="leave one of the two out",
            )


def place_points(cluster: Cluster, spec: JobSpec) -> tuple[Placement, ...]:
    """A slot for each point, as far as there are slots, dealt out over the workers."""
    check_sweep(spec)
    workers = choose_workers(cluster, spec)
    slots = [node.slots for node in workers]
    if not sum(slots):
        raise LaunchError("the workers have no slots", hint="`clusterctl status` shows them")
    wanted = min(len(spec.points), parse_concurrency(spec.array) or sum(slots), sum(slots))
    return number(workers, deal(wanted, slots, by_turns=True))


def shares_processor(cluster: Cluster, placement: Sequence[Placement]) -> bool:
    """Two of the nodes are one machine, by its boot id: containers, or local nodes."""
    boots = [cluster.node(place.node).facts.boot_id for place in placement]
    known = [boot for boot in boots if boot]
    return cluster.shares_machine or len(set(known)) < len(known)


def is_oversubscribed(cluster: Cluster, placement: Sequence[Placement]) -> bool:
    return any(place.count > cluster.node(place.node).slots for place in placement)


class Binding(Struct, frozen=True):
    """`cores` per rank; 0: ranks are not bound. `why` is for people."""

    cores: int
    why: str


def choose_binding(request: Request) -> Binding:
    """Binding is right where a node owns its cores and runs several ranks: a rank that stays keeps
    its cache. Open MPI's daemons each start at core 0, so nodes that share a processor would share
    that core."""
    spec, cluster = request.spec, request.cluster
    if shares_processor(cluster, request.placement):
        return Binding(0, "the nodes share one processor")
    if spec.launcher == "torchrun":
        return Binding(0, "one torchrun per node: it may use all its cores")
    if spec.now:
        return Binding(0, "--now: other jobs may run on the same cores")
    if max(place.count for place in request.placement) == 1:
        return Binding(0, "one process per node: it may use all its cores")
    cores = min(
        cluster.node(place.node).facts.physical_cores // place.count for place in request.placement
    )
    if cores == 0:
        return Binding(0, "fewer cores than ranks")
    return Binding(cores, "a rank that stays on its cores keeps its cache")


def choose_waiting(request: Request) -> tuple[bool, str]:
    """Whether a rank that waits offers its core at every poll, and why."""
    cluster, placement = request.cluster, request.placement
    more = any(place.count > cluster.node(place.node).facts.cores for place in placement)
    reasons = (
        (cluster.shares_machine, "this machine runs other programs"),
        (shares_processor(cluster, placement), "the nodes share one processor"),
        (request.spec.now, "with --now, other jobs may use these cores"),
        (more, "there are more ranks than cores"),
        (cluster.attached, "these hosts may run other programs"),
    )
    why = next((why for holds, why in reasons if holds), "")
    if why:
        return True, f"waiting ranks yield: {why}"
    return False, "waiting ranks poll: the machines run nothing but this job"


def deal(ranks: int, slots: Sequence[int], *, by_turns: bool) -> list[int]:
    """How many ranks each host gets: one host is filled after the other, as mpirun does it, or
    they get one each by turns."""
    taken = [0] * len(slots)
    while ranks:
        for index, most in enumerate(slots):
            share = min(ranks, most - taken[index], 1 if by_turns else ranks)
            taken[index] += share
            ranks -= share
    return taken


def _find_most(workers: Sequence[Node]) -> int:
    """The largest number of ranks that fits when they are spread evenly, the first nodes first."""
    slots = [node.slots for node in workers]
    fewest = min(slots)
    return fewest * len(workers) + slots.index(fewest)


def choose_workers(cluster: Cluster, spec: JobSpec) -> tuple[Node, ...]:
    """The workers that the job uses, in the order of its ranks. Raises UsageError for a name that
    no worker has, LaunchError where there are not as many."""
    names = tuple(dict.fromkeys(spec.hosts))
    found = find_workers(cluster, names, f"--nodes {','.join(names)}") or cluster.workers
    workers = tuple({node.name: node for node in found}.values())
    nodes, wanted = spec.nodes, f"--nodes {spec.nodes}"
    if spec.ranks and spec.ranks_per_node and not (nodes or names):
        nodes = -(-spec.ranks // spec.ranks_per_node)
        each = text.count(spec.ranks, "rank")
        wanted = f"{each}, {spec.ranks_per_node} on each node, need {nodes} workers"
    if nodes > len(workers):
        raise LaunchError(
            f"{wanted}: cluster {cluster.name!r} has {text.count(len(workers), 'worker')}",
            hint=f"`clusterctl up {cluster.name} --workers {nodes}` adds workers"
            if not cluster.attached
            else "add hosts to the file",
        )
    return workers[:nodes] if nodes else workers


def find_workers(cluster: Cluster, hosts: Sequence[str], typed: str) -> tuple[Node, ...]:
    """The worker of each name or address. Raises UsageError for one that there is not, with
    `typed`, the option that names it."""
    return tuple(_find_worker(cluster, host, typed) for host in hosts)


def drop_unknown_hosts(spec: JobSpec, cluster: Cluster) -> tuple[JobSpec, str]:
    """A job of another cluster: with as many workers, whichever they are, where this one does not
    have all that the job has chosen; and a line that says so."""
    try:
        find_workers(cluster, spec.hosts, "--nodes")
    except UsageError:
        names = tuple(dict.fromkeys(spec.hosts))
        note = f"--nodes {len(names)} instead of {','.join(names)}, since cluster {cluster.name!r}"
        return replace(spec, hosts=(), nodes=len(names)), f"{note} does not have all of these"
    return spec, ""


def _find_worker(cluster: Cluster, host: str, typed: str) -> Node:
    named = {node.name: node for node in cluster.workers}
    if host in named:
        return named[host]
    found = [node for node in named.values() if host in _list_other_names(node)]
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"{typed}: cluster {cluster.name!r} has no worker {host}",
        hint=f"leave it out, or choose from its workers: {', '.join(named)}",
    )


def _list_other_names(node: Node) -> set[str]:
    short = (name.split(".")[0] for name in (node.name, node.facts.hostname))
    return {node.address, node.private_address, node.facts.hostname, *short}


def _count_ranks(workers: Sequence[Node], spec: JobSpec) -> list[int]:
    if len(set(spec.hosts)) < len(spec.hosts):
        return [spec.hosts.count(node.name) for node in workers]
    if spec.ranks and spec.ranks_per_node:
        if spec.ranks != spec.ranks_per_node * len(workers):
            raise UsageError(
                f"--ranks {spec.ranks} is not --ranks-per-node {spec.ranks_per_node}"
                f" x {text.count(len(workers), 'node')}",
                hint="give one of them, or add --nodes",
            )
        return [spec.ranks_per_node] * len(workers)
    if spec.ranks_per_node:
        return [spec.ranks_per_node] * len(workers)
    if spec.ranks and spec.nodes > spec.ranks:
        raise UsageError(
            f"--nodes {spec.nodes}: only {text.count(spec.ranks, 'rank')}",
            hint=f"--ranks {spec.nodes} or more, or fewer --nodes",
        )
    if spec.ranks:
        share, rest = divmod(spec.ranks, len(workers))
        return [share + (index < rest) for index in range(len(workers))]
    return [len(node.facts.gpus) or 1 for node in workers]


# -------------------------------------------------------------------------------------------------
# Files that name machines, as people have them: our own lines, or an Open MPI hostfile.
#
#     gpu1 slots=4 gpu=4 user=ana port=2222     # a line per host; what is left out is found out
#     head role=launcher                        # starts jobs and runs no ranks
#
# Open MPI: `slots=N`, `max_slots=N`; a host that comes twice has the slots of both lines
# (https://docs.open-mpi.org/en/v5.0.x/launching-apps/scheduling.html).


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_Count = Annotated[int, Meta(ge=1, le=999_999)]
_Port = Annotated[int, Meta(ge=1, le=65535)]
_Word = Annotated[str, Meta(pattern=r"^[\w.@+][\w.@+-]*\Z")]


class _Line(Struct, forbid_unknown_fields=True):
    """What a line may say of a host, beside its name."""

    slots: _Count = 0
    user: _Word = ""
    port: _Port = 0
    gpu: _Count = 0
    python: Annotated[str, Meta(pattern="^/")] = ""
    role: Literal["", "launcher", "worker"] = ""
    address: _Word = ""


_IGNORED = {"max_slots", "max"}
"""Open MPI's upper limit: we never oversubscribe machines that are not ours."""
GRAMMAR = (
    "one line per host: HOST [slots=N] [gpu=N] [user=NAME] [port=N] [address=ADDRESS]"
    " [python=/PATH] [role=launcher|worker]"
)
_EXPECTED = {
    **dict.fromkeys(("user", "address"), "a name of letters, digits and . _ @ + -"),
    "port": "a number from 1 to 65535",
    "python": "an absolute path",
    "role": "launcher or worker",
}
_ALIASES = {"gpus": "gpu", "count": "slots", "cpu": "slots", "cpus": "slots"}


def parse_hosts(text: str, source: str, user: str = "") -> tuple[Node, ...]:
    """The hosts in the file's order, but the launcher first. What the file leaves out is the
    machine's own answer, or ssh_config's business; roots, addresses among each other and facts are
    found out later. UsageError names the line (`source`:12) that is wrong."""
    found: dict[str, _Line] = {}
    # Windows editors begin a file with this mark.
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        try:
            for name, said in _parse_line(raw):
                known = found.setdefault(name, said)
                if known is not said:  # a line without a number is one slot more, as for mpirun
                    known.slots = sum(line.gpu or line.slots or 1 for line in (known, said))
                    known.gpu = 0
        except ValueError as error:
            message = f"{source}:{number}: invalid hostfile line: {raw.strip()!r}: {error}"
            raise UsageError(message, hint=GRAMMAR) from error
    if not found:
        raise UsageError(f"{source} lists no hosts", hint=GRAMMAR)
    launchers = [name for name, said in found.items() if said.role == "launcher"]
    if len(launchers) > 1:
        raise UsageError(
            f"{source}: {' and '.join(launchers)} cannot both be the launcher",
            hint="one line with role=launcher, or none: then it is the first host",
        )
    if launchers and len(found) == 1:
        raise UsageError(
            f"{source}: the only host is the launcher, so no host can run ranks",
            hint="leave out role=launcher: the first host then does both",
        )
    names = [*launchers, *(name for name in found if name not in launchers)]
    roles = [Role.LAUNCHER if launchers else Role.BOTH, *[Role.WORKER] * (len(names) - 1)]
    return tuple(
        Node(
            name=name,
            role=role,
            address=said.address or name,
            private_address=said.address or name,
            ssh_port=said.port,
            job_port=said.port,
            user=said.user or user,
            root="",
            python=said.python,
            slots=said.gpu or said.slots,
        )
        for name, role, said in zip(names, roles, map(found.__getitem__, names), strict=True)
    )


def _parse_line(raw: str) -> Iterator[tuple[str, _Line]]:
    """`[USER@]HOST [NAME=VALUE …]`; nothing in an empty line. Raises ValueError."""
    first, *words = shlex.split(raw, comments=True) or [""]
    user, _, host = first.rpartition("@")
    if not first:
        return
    name, _, port = host.rpartition(":")
    if port.isdecimal() and _NAME.fullmatch(name):
        raise ValueError(f"a port is a word of its own: {first[: -len(port) - 1]} port={port}")
    if not _NAME.fullmatch(host):
        raise ValueError(f"{host} is no name or IPv4 address (IPv6 needs a name in ssh_config)")
    said: dict[str, str] = {"user": user} if user else {}
    for word in words:
        name, _, value = word.partition("=")
        if not name or not value:
            raise ValueError("expected NAME=VALUE, without blanks around =")
        name = name.replace("-", "_")
        if name not in _IGNORED:
            said[_ALIASES.get(name, name)] = value
    try:
        yield host, msgspec.convert(said, _Line, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        if name not in said:  # it names an unknown word
            raise
        wanted = _EXPECTED.get(name, "a number from 1 to 999999")
        raise ValueError(f"{name}={said[name]}: expected {wanted}") from error

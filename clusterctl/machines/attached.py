"""Machines that are there already: SSH hosts, and the login nodes of batch systems. Their owner
runs them, and we take our files away again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import ClassVar
from xml.etree import ElementTree

from clusterctl.core import assets
from clusterctl.core.model import (
    MEMORY,
    Cluster,
    Node,
    NodeResult,
    Reporter,
    fold,
    render_hostfile_mark,
    shorten,
)
from clusterctl.errors import LeftoverError
from clusterctl.machines.protocol import Features, Provider, Queue
from clusterctl.transport.pool import Pool

# -------------------------------------------------------------------------------------------------
# Takes back what we have put on machines that are not ours.


LIMIT = 60.0


def make_key_mark(cluster: Cluster) -> str:
    """The comment by which our key is found again among those that a machine lets in."""
    return f"clusterctl:{cluster.id}"


def clean_up_hosts(
    cluster: Cluster, folder: Path, report: Reporter, script: Callable[[Node], str]
) -> None:
    """Runs `script` on each node. LeftoverError names those that did not answer: they still have
    what it removes."""

    def clean(name: str) -> NodeResult:
        return pool.find_transport(name).run(f"{script(cluster.node(name))}\n:", timeout=LIMIT)

    with Pool.of(cluster, folder / "ssh") as pool:
        results = pool.call_each(clean)
    if cleaned := [result.node for result in results if result.ok]:
        report(f"removed clusterctl's files from {shorten(cleaned)}")
    if failed := [result for result in results if not result.ok]:
        raise LeftoverError(
            f"clusterctl's folder and key could not be removed: {'; '.join(fold(failed))}",
            hint=f"`clusterctl detach {cluster.name}` again when they answer, or with --force",
        )


def render_removal(root: str, id: str) -> str:
    """sh that removes a node root, and what was made for it. "" where it cannot be ours: only a
    folder with the cluster's id as its name is, or one in such a folder."""
    path = PurePosixPath(root)
    own = next((folder for folder in (path, path.parent) if folder.name == id), None)
    if own is None:
        return ""
    return assets.render(
        "bootstrap/remove.sh.j2",
        root=root,
        own=str(own),
        workdir=str(own.parent),
        id=id,
        memory=MEMORY,
        mark=render_hostfile_mark(id),
    )


def render_shut_out(mark: str) -> str:
    """sh that removes the keys with that mark from those that the user lets in; others stay."""
    text = assets.render("bootstrap/authorized.sh.j2", mark=mark, line="")
    file = '"$HOME/.ssh/authorized_keys"'
    return f"if grep -qsF {shlex.quote(mark)} {file}; then (\n{text}\n); fi"


# -------------------------------------------------------------------------------------------------


class HostsProvider(Provider):
    """Machines that belong to somebody else, reached by SSH."""

    features = Features()

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        """They run as far as anybody knows who has not asked their SSH."""
        return dict.fromkeys((node.name for node in cluster.nodes), "running")

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        shut = render_shut_out(make_key_mark(cluster))
        clean_up_hosts(
            cluster,
            folder,
            report,
            lambda node: f"{render_removal(node.root, cluster.id)}\n{shut}",
        )


# -------------------------------------------------------------------------------------------------
# A batch system that is there already, seen from its login node.


STATUS_TIMEOUT = 30.0


class BatchSite(Provider):
    """A batch system says what to ask its login node, and what the answers mean: all pure, commands
    are sh."""

    features = Features()
    name: ClassVar[str]
    title: ClassVar[str]
    """Its name for people."""
    required: ClassVar[Mapping[str, str]]
    """Programs that the login node has to have, with Debian's name for the package."""
    questions: ClassVar[Mapping[str, str]]
    status_command: ClassVar[str]

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        """What the answers to the questions say, as it is kept in the cluster's record."""
        raise NotImplementedError

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        """Runs `words` on a compute node, if one is free within so many seconds."""
        raise NotImplementedError

    def parse_queues(self, text: str) -> tuple[Queue, ...]:
        """What `status_command` printed."""
        raise NotImplementedError

    def look(self, cluster: Cluster, folder: Path) -> tuple[dict[str, str], tuple[Queue, ...]]:
        """Whether the login node answers, and its queues."""
        login = cluster.launcher
        with Pool.of(cluster, folder / "ssh") as pool:
            result = pool.find_transport(login.name).run(
                self.status_command, timeout=STATUS_TIMEOUT
            )
        if not result.ok:
            return {login.name: f"no answer: {result.why}"}, ()
        return {login.name: "answers"}, self.parse_queues(result.text)

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return self.look(cluster, folder)[0]

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        clean_up_hosts(cluster, folder, report, lambda node: render_removal(node.root, cluster.id))


def _add_up(rows: Iterable[Queue]) -> tuple[Queue, ...]:
    """One row for each queue, with the sums."""
    found: dict[str, Queue] = {}
    for row in rows:
        old = found.get(row.name, Queue(name=row.name))
        sums = {x.name: getattr(old, x.name) + getattr(row, x.name) for x in fields(Queue)[1:]}
        found[row.name] = Queue(name=row.name, **sums)
    return tuple(found.values())


class SlurmProvider(BatchSite):
    """Commands of Slurm's own clients, which any version since 20.11 has."""

    name = "slurm"
    title = "Slurm"
    required: ClassVar = dict.fromkeys(
        ("sbatch", "squeue", "scancel", "scontrol", "srun"), "slurm-client"
    )
    questions: ClassVar = {
        "version": "sbatch --version",
        "mpi_plugins": "srun --mpi=list 2>&1",
        "sacct": "command -v sacct",
    }
    status_command = (
        "sinfo -h -e -O 'PartitionName:|,StateCompact:|,Nodes:|,CPUsState:|,Gres:|,GresUsed:|'"
    )

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        """`version`, `pmix` and `sacct`, empty where the site has none."""
        plugins = re.findall(r"[a-z]\w+", answers.get("mpi_plugins", ""))
        return {
            "version": answers.get("version", "").strip(),
            "pmix": "yes" if "pmix" in plugins else "",
            "sacct": "yes" if answers.get("sacct", "").strip() else "",
        }

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        return (
            f"srun --immediate={seconds} --nodes=1 --ntasks=1 --time=1 --job-name=clusterctl-check"
            f" {shlex.join(words)} </dev/null"
        )

    def parse_queues(self, text: str) -> tuple[Queue, ...]:
        return _add_up(filter(None, map(_read_partition, text.splitlines())))


_PARTITION = re.compile(
    r"\s*(\S+?)\s*\|\s*(\S+?)\s*\|\s*(\d+)\s*\|([^|]*)\|([^|]*)\|([^|]*)", re.ASCII
)


def _read_partition(line: str) -> Queue | None:
    """A row per partition and kind of node: `main|idle|2|0/8/0/8|gpu:a100:4|gpu:a100:0|`. The
    processors are allocated, idle, other, and all of them."""
    found = _PARTITION.match(line)
    if not found:
        return None
    name, state, nodes, cpus, gpus, used = found.groups()
    count = int(nodes)
    up = not re.match(r"down|drain|drng|fail|maint|unk|boot|pow|inval", state)
    slots = re.fullmatch(r"\d+/(\d+)/\d+/(\d+)", cpus.strip(), re.ASCII)
    there = _count_gpus(gpus) * count
    return Queue(
        name=name,
        nodes=count,
        free_nodes=count if state.startswith("idle") else 0,
        slots=int(slots[2]) if slots else 0,
        free_slots=int(slots[1]) if slots and up else 0,
        gpus=there,
        free_gpus=max(0, there - _count_gpus(used) * count) if up else 0,
        down=0 if up else count,
    )


def _count_gpus(text: str) -> int:
    """GPUs of one node: `gpu:a100:4(S:0-1),gpu:t4:2`."""
    return sum(int(n) for n in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", text))


class SgeProvider(BatchSite):
    """Commands of Sun's, Son of, Univa and Open Grid Engine alike."""

    name = "sge"
    title = "Grid Engine"
    required: ClassVar = dict.fromkeys(
        ("qsub", "qstat", "qdel", "qrsh", "qconf"), "gridengine-client"
    )
    questions: ClassVar = {"version": "qstat -help | head -n 1", "pes": "qconf -spl"}
    status_command = "qstat -f -F -xml"

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        """`version` and the names of the parallel environments in `pes`."""
        return {
            "version": answers.get("version", "").strip(),
            "pes": " ".join(answers.get("pes", "").split()),
        }

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        command = shlex.quote(shlex.join(words))
        return f"timeout {seconds} qrsh -now y -l h_rt=60 -N cctl-check {command} </dev/null"

    def parse_queues(self, text: str) -> tuple[Queue, ...]:
        return _add_up(_read_queues(text))


_GPU = ("gpu", "gpus", "ngpus")
"""What sites call the resource: Grid Engine has no name of its own for it."""


def _read_queues(text: str) -> Iterator[Queue]:
    """An entry per queue and host. A state other than a calendar's or an owner's means that no job
    starts there."""
    try:
        # What qstat prints for -F is not always closed properly; then slots are all we know.
        rows = list(ElementTree.fromstring(text).iter("Queue-List"))
    except ElementTree.ParseError:
        return
    for row in rows:
        total, used = (_round_down(row.findtext(name)) for name in ("slots_total", "slots_used"))
        up = not re.search("[aAudDEsSoc]", row.findtext("state") or "")
        gpus = sum(_round_down(r.text) for r in row.iter("resource") if r.get("name") in _GPU)
        yield Queue(
            name=(row.findtext("name") or "").partition("@")[0],
            nodes=1,
            free_nodes=int(up and used == 0),
            slots=total,
            free_slots=max(0, total - used) if up else 0,
            gpus=gpus,
            free_gpus=gpus if up else 0,
            down=int(not up),
        )


def _round_down(text: str | None) -> int:
    match = re.match(r"\d+", (text or "").strip())
    return int(match[0]) if match else 0

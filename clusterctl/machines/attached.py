"""Machines that are there already: SSH hosts, and the login nodes of batch systems. Their owner
runs them, and we take our files away again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar, cast

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
from clusterctl.machines.protocol import Features, Provider
from clusterctl.machines.providers import load_provider

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

    from clusterctl.transport.pool import Pool  # `status` only asks what kind a cluster is

    with Pool.of(cluster, folder / "ssh") as pool:
        results = pool.call_each(clean)
    if cleaned := [result.node for result in results if result.ok]:
        report(f"removed clusterctl's files from {shorten(cleaned)}")
    if failed := [result for result in results if not result.ok]:
        error = LeftoverError(
            f"clusterctl's folder and key could not be removed: {'; '.join(fold(failed))}",
            hint=f"`clusterctl detach {cluster.name}` again when they answer, or with --force",
        )
        nodes = ((cluster.node(result.node), result.why) for result in failed)
        error.left = tuple(
            {"node": n.name, "address": n.address, "folder": n.root, "why": why} for n, why in nodes
        )
        raise error


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
        pattern=re.sub(r"[][.*^$\\]", r"\\\g<0>", root),
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
QUEUE_TIMEOUT = 20
"""Seconds of these that a batch system has to answer: one that is down may be silent."""


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
    """Prints the queues, for people."""

    @property
    def status_question(self) -> str:
        """The same, in time."""
        asked = f"timeout {QUEUE_TIMEOUT} {self.status_command}"
        return f"{asked} || {{ [ $? != 124 ] || echo no answer in {QUEUE_TIMEOUT} s >&2; exit 1; }}"

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        """What the answers to the questions say, as it is kept in the cluster's record."""
        raise NotImplementedError

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        """Runs `words` on a compute node, if one is free within so many seconds."""
        raise NotImplementedError

    def look(self, cluster: Cluster, folder: Path) -> tuple[dict[str, str], str | None, list[str]]:
        """Whether the login node answers, what the batch system says of its queues (None: nothing),
        and that it does not answer."""
        from clusterctl.transport.pool import Pool

        login = cluster.launcher
        with Pool.of(cluster, folder / "ssh") as pool:
            result = pool.find_transport(login.name).run(
                self.status_question, timeout=STATUS_TIMEOUT
            )
        if result.exit_code is None:
            return {login.name: f"no answer: {result.why}"}, None, []
        if result.ok:
            return {login.name: "answers"}, result.text.rstrip(), []
        return {login.name: "answers"}, None, [f"{self.title} does not answer: {result.why}"]

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return self.look(cluster, folder)[0]

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        clean_up_hosts(cluster, folder, report, lambda node: render_removal(node.root, cluster.id))


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
        "containers": "command -v apptainer || command -v singularity ||"
        " { srun --help 2>&1 | grep -q -e --container-image && echo pyxis; }",
    }
    status_command = "sinfo"

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        """`version`, `pmix`, `sacct` and `pyxis`, empty where the site has none. pyxis: its srun
        starts containers, and nothing else does."""
        plugins = re.findall(r"[a-z]\w+", answers.get("mpi_plugins", ""))
        return {
            "version": answers.get("version", "").strip(),
            "pmix": "yes" if "pmix" in plugins else "",
            "sacct": "yes" if answers.get("sacct", "").strip() else "",
            "pyxis": "yes" if answers.get("containers", "").strip() == "pyxis" else "",
        }

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        return (
            f"srun --immediate={seconds} --nodes=1 --ntasks=1 --time=1 --job-name=clusterctl-check"
            f" {shlex.join(words)} </dev/null"
        )


class SgeProvider(BatchSite):
    """Commands of Sun's, Son of, Univa and Open Grid Engine alike."""

    name = "sge"
    title = "Grid Engine"
    required: ClassVar = dict.fromkeys(
        ("qsub", "qstat", "qdel", "qrsh", "qconf"), "gridengine-client"
    )
    questions: ClassVar = {
        "version": "qstat -help | head -n 1",
        "pes": "qconf -spl",
        "resources": "qconf -sc",
    }
    status_command = "qstat -g c"

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        """`version`, the names of the parallel environments in `pes`, and those of resources that
        count once for a job, not for each slot, in `per_job`."""
        rows = map(str.split, answers.get("resources", "").splitlines())
        whole = [row[0] for row in rows if row[5:6] == ["JOB"]]
        return {
            "version": answers.get("version", "").strip(),
            "pes": " ".join(answers.get("pes", "").split()),
            "per_job": " ".join(whole),
        }

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        command = shlex.quote(shlex.join(words))
        return f"timeout {seconds} qrsh -now y -l h_rt=60 -N cctl-check {command} </dev/null"


def load_site(name: str) -> BatchSite:
    """The batch system of that name."""
    return cast(BatchSite, load_provider(name))

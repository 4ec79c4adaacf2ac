"""WHO runs a cluster's jobs: clusterctl's own supervisor on the launcher, Slurm or Grid Engine.

All pure: argv and scripts in, text out, states parsed. `jobs` runs them. What differs by who runs
the jobs is here; nobody else asks for the name of a batch system.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import ClassVar, cast

from msgspec import Struct

from clusterctl.core.job import Job, JobSpec, LaunchPlan, Placement
from clusterctl.core.model import Cluster, Node
from clusterctl.errors import UsageError
from clusterctl.launch.launcher import Request
from clusterctl.options.batch import BATCH_SYSTEMS
from clusterctl.options.verbs import find_limit

SYSTEMS: dict[str, str] = {
    "direct": "clusterctl.batch.direct:Direct",
    **{name: f"clusterctl.batch.{name}:{name.capitalize()}" for name in BATCH_SYSTEMS},
}


class Preview(Struct, frozen=True):
    """What `--dry-run` shows of a job: texts under headings, and the fields of the document."""

    sections: tuple[tuple[str, str], ...]
    document: Mapping[str, object]


EARLIER: Mapping[str, str] = {
    "cancel": "echo cancelled >stop; if ! flock -n alive true;"
    ' then kill -TERM "$(cat supervisor.pid)" 2>/dev/null;'
    " elif [ -s state ]; then setsid /bin/sh ./clean.sh </dev/null >>clean.log 2>&1 & fi; exit 0",
    "status": "! flock -n alive true || grep -Eq '^(ended|dead) ' state ||"
    " /bin/sh ./clean.sh </dev/null >>clean.log 2>&1; exec cat state",
    "end": "[ -e processes.sh ] || { echo survivors 0; exit; }; exec /bin/sh ./processes.sh end 0",
    **{verb: f"exec /bin/sh ./outputs.sh {verb}" for verb in ("list", "link", "pack")},
}
"""How jobs are asked that clusterctl 0.1 has started, by scripts of sh and no agent: as far as it
takes to end them, and to fetch what they have made."""


SILENT = 75
"""The exit code of what ends a job, where the queue does not answer."""


def ask_agent(verb: str, *args: str) -> str:
    """The sh that asks the agent about the job in whose folder it runs."""
    asked = f"exec /bin/sh ./agent.sh {shlex.join((verb, *args))}"
    return f"if [ -e agent.sh ]; then {asked}; fi; {EARLIER[verb]}"


class BatchSystem(ABC):
    """Commands run in the job's folder on the launcher or login node, unless they say otherwise."""

    launchers: ClassVar[tuple[str, ...]]
    """What `--launcher` may name; the first is the default."""
    emits: ClassVar[str]
    """The kind of script that `emit` writes, as `--emit` names it."""
    asks_for_more: ClassVar[tuple[str, ...]] = ()
    """The options for more memory or disk, as advice names them."""
    example_size: ClassVar[str] = ""
    """Options of `run` for a job of two ranks, where they are needed."""
    places_ranks: ClassVar[bool]
    """Whether the nodes of a job are chosen here before it starts, and answer from here. Else a
    queue chooses them, and only the login node is reached."""
    start_limit: ClassVar[float]
    """Seconds that handing in a job may take."""
    slow_start: ClassVar[str] = ""
    """What to say while that takes longer than usual; "" for nothing."""
    ask_limit: ClassVar[float]
    """Seconds that a question about jobs may take."""
    poll: ClassVar[float]
    """Seconds between two looks whether a job has ended."""
    logs: ClassVar[tuple[str, ...]]
    """Files in the job's folder that say why no rank was started. The first has what mpirun or srun
    wrote to its stderr."""

    def resolve(self, spec: JobSpec, cluster: Cluster) -> tuple[JobSpec, tuple[Placement, ...]]:
        """The spec with the sizes that it left open, and where its ranks run as far as that is
        known. Raises UsageError for options that mean nothing here, LaunchError for ranks that do
        not fit."""
        for option in spec.particular:  # a stored job may have been made for another cluster
            if limit := find_limit("run", option, (cluster.system, spec.launcher)):
                hint = limit.hint
                raise UsageError(f"{option} {limit.says}", hint=hint)
        if spec.launcher not in self.launchers:
            raise UsageError(
                f"--launcher {spec.launcher} does not work on cluster {cluster.name!r}"
                f" ({cluster.spec.provider})",
                hint=f"leave it out, or choose one of: {', '.join(self.launchers)}",
            )
        return self._place(spec, cluster)

    def take_script(self, spec: JobSpec, cluster: Cluster, path: Path | None = None) -> None:
        """Raises UsageError for a batch script that it cannot hand in as it is, or not follow.
        `path`: where it lies; None: it was followed before."""
        program = spec.program
        raise UsageError(
            f"{program.target} is a batch script, and cluster {cluster.name!r} has no queue for"
            f" it{f' that reads {program.directives} lines' if program.directives else ''}",
            hint="run the program that it starts, with its options:"
            " clusterctl run --nodes 2 … PROGRAM",
        )

    @abstractmethod
    def _place(self, spec: JobSpec, cluster: Cluster) -> tuple[JobSpec, tuple[Placement, ...]]: ...

    @abstractmethod
    def plan(self, request: Request) -> LaunchPlan:
        """How the ranks are started. Raises LaunchError where that cannot work."""

    def warn_of_sharing(self, spec: JobSpec, site_info: Mapping[str, str]) -> str:
        """For people: that there are not as many ranks as GPUs, as far as the options say so."""
        return ""

    def warn_of_script(self, spec: JobSpec, text: str) -> str:
        """The same of a batch script."""
        return ""

    @abstractmethod
    def preview(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> Preview: ...

    @abstractmethod
    def locate(self, job: Job, cluster: Cluster) -> tuple[str, ...]:
        """The nodes that hold the job's files, that of rank 0 first. Some may be gone."""

    def expect_hostname(self, node: Node, cluster: Cluster) -> str:
        """The name that a rank on that node has to see as its host's; "" where any will do."""
        return ""

    @abstractmethod
    def script(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> dict[str, str]:
        """Files for the job's folder, by name."""

    @abstractmethod
    def emit(self, job: Job, cluster: Cluster, plan: LaunchPlan, *, beside: str) -> str:
        """The job as a script that needs no clusterctl, with its secrets left to whoever starts it.
        `beside` is the command that copies the program there, "" where it is there."""

    def describe_request(self, spec: JobSpec, script: str) -> Mapping[str, object]:
        """What the agent on the login node looks at before a job is sent there
        (clusterctl/agent/requests.py); {}: nothing. `script`: the text of a batch script."""
        return {}

    @abstractmethod
    def submit_argv(self, job: Job) -> tuple[str, ...]: ...

    def advise(self, refusal: str, cluster: Cluster) -> str:
        """What to do where it does not take a job, by what it wrote to its stderr."""
        return "--verbose shows more"

    @abstractmethod
    def status_commands(
        self, jobs: Sequence[Job], cluster: Cluster, age: float = 0.0
    ) -> Mapping[str, Sequence[Job]]:
        """What asks for these jobs, from any folder, and for which of them each asks. What a queue
        has said may be that old, in seconds, or AGE."""

    def describe_silence(self, answer: str) -> str:
        """For people: that the queue has not answered; "" where it has."""
        return ""

    @abstractmethod
    def parse_status(self, job: Job, text: str) -> Job:
        """The job as the answer describes it. One that means nothing changes nothing."""

    @abstractmethod
    def describe_wait(self, job: Job) -> str:
        """For people: that a job waits, and for what."""

    @abstractmethod
    def cancel_argv(self, job: Job) -> tuple[str, ...]:
        """Tells the job's own script to end everything, and returns at once. Exit code SILENT: the
        queue could not be told."""

    @abstractmethod
    def limit_end(self, spec: JobSpec) -> float:
        """Seconds that the job's own script has to end everything, before we do."""

    def end_argv(self, job: Job) -> tuple[str, ...]:
        """Ends a job that has not ended by itself after `cancel_argv`; () for nothing more."""
        return ()

    def interactive_argv(
        self, spec: JobSpec, cluster: Cluster, words: Sequence[str]
    ) -> tuple[str, ...]:
        """What gets nodes as `spec` asks for them, and runs `words`. UsageError where there are
        none to get."""
        raise UsageError(
            f"cluster {cluster.name!r} has no batch system; --interactive needs one",
            hint="`clusterctl run mpirun -n 4 python train.py` runs that line on its nodes;"
            " `clusterctl ssh` opens a shell where such lines work",
        )


def load_system(name: str) -> BatchSystem:
    """The batch system of that name (`Cluster.system`), imported on first use."""
    module, _, attribute = SYSTEMS[name].partition(":")
    return cast(BatchSystem, getattr(import_module(module), attribute)())


def list_nodes(job: Job, cluster: Cluster) -> tuple[str, ...]:
    """The launcher, then the nodes that run ranks, as far as they still exist."""
    return tuple(dict.fromkeys((cluster.launcher.name, *list_rank_nodes(job, cluster))))


def list_rank_nodes(job: Job, cluster: Cluster) -> tuple[str, ...]:
    """The nodes that have the job's files, as far as they still exist."""
    there = {node.name for node in cluster.nodes}
    return tuple(filter(there.__contains__, load_system(cluster.system).locate(job, cluster)))


def locate_folder(job: Job, cluster: Cluster, name: str) -> str:
    """The job's folder on that node."""
    return f"{cluster.node(name).root}/jobs/{job.id}"

"""Who runs a cluster's jobs: clusterctl's own supervisor, or a batch system.

Everything that differs by that is a method or a declared fact of a `JobSystem`; nobody else asks.
What is pure of it (scripts, commands, parsing) is the scheduler of the same name in `schedulers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from clusterctl.batch.scheduler import Scheduler
from clusterctl.core.clock import Deadline
from clusterctl.core.job import Job, JobSpec, LaunchPlan, Placement
from clusterctl.core.model import Cluster, Node
from clusterctl.errors import UsageError
from clusterctl.launch.launcher import Request
from clusterctl.options import jobs as options_jobs
from clusterctl.transport.pool import Pool


@dataclass(frozen=True, slots=True)
class Preview:
    """What `--dry-run` shows of a job: texts under headings, and the fields of the document."""

    sections: tuple[tuple[str, str], ...]
    document: Mapping[str, object]


class JobSystem(Protocol):
    """Runs the jobs of the one cluster that it was made for."""

    scheduler: Scheduler

    start_limit: float
    """Seconds that handing in a job may take."""
    slow_start: str
    """What to say while that takes longer than usual; "" for nothing."""
    poll: float
    """Seconds between two looks whether a job has ended."""
    backoff: float
    """By how much longer than before a follower waits until it asks again for a silent job."""
    logs: tuple[str, ...]
    """Files in the job's folder that say why no rank was started."""
    errors: str
    """The one of them with what mpirun or srun wrote to its stderr."""
    copies_outputs: bool
    """Its launcher has copies of what is on the nodes."""
    secrets_in_memory: bool
    """Whether a job starts where it was staged, before the next restart."""
    counts_survivors: bool
    """Whether the nodes of a job can be asked from here what is left of it."""

    def advise(self, refusal: str) -> str:
        """What to do where it does not take a job, by what it wrote to its stderr."""

    def resolve(self, spec: JobSpec) -> tuple[JobSpec, tuple[Placement, ...]]:
        """The spec with the sizes that it left open, and where its ranks run as far as that is
        known. Raises UsageError for options that mean nothing here, LaunchError for ranks that do
        not fit."""

    def plan(self, request: Request) -> LaunchPlan:
        """How the ranks are started. Raises LaunchError where that cannot work."""

    def preview(self, job: Job, plan: LaunchPlan) -> Preview: ...

    def locate(self, job: Job) -> tuple[str, ...]:
        """The nodes that hold the job's files, that of rank 0 first. Some may be gone."""

    def expect_hostname(self, node: Node) -> str:
        """The name that a rank on that node has to see as its host's; "" where any will do."""

    def build(self, job: Job, pool: Pool) -> None:
        """Compiles the program where it was staged, if it has to be compiled before the start.
        Raises LaunchError with what the compiler said."""

    def refresh(
        self, jobs: Sequence[Job], pool: Pool, report: Callable[[str], None], deadline: Deadline
    ) -> tuple[Job, ...]:
        """The jobs as the launcher or the queue knows them now; unchanged where there is no answer
        by the deadline."""

    def limit_end(self, spec: JobSpec) -> float:
        """Seconds that the job's own script has to end everything, before we do."""

    def make_force_argv(self, job: Job) -> tuple[str, ...]:
        """Ends a job that has not ended by itself after `cancel_argv`; () for nothing more."""

    def describe_wait(self, job: Job) -> str:
        """For people: that a job waits, and for what."""

    def make_interactive_argv(self, spec: JobSpec, words: Sequence[str]) -> tuple[str, ...]:
        """A terminal on nodes as `spec` asks for them. Raises UsageError where there is none."""


SYSTEMS: dict[str, str] = {"direct": "clusterctl.batch.direct_system:DirectSystem"}

BATCH = "clusterctl.batch.queue_system:BatchSystem"
"""Every other one, with the row of its name in `schedulers.SCHEDULERS`."""


def load_job_system(cluster: Cluster) -> JobSystem:
    """What runs the jobs of this cluster, imported on first use."""
    module, _, attribute = SYSTEMS.get(cluster.system, BATCH).partition(":")
    return cast(JobSystem, getattr(import_module(module), attribute)(cluster))


def check_options(options: Sequence[str], launcher: str, cluster: Cluster) -> None:
    """Raises UsageError for an option of `run` that means nothing on this cluster. A stored job may
    have been made for one of another kind."""
    name = cluster.system
    for option in options:
        if limit := options_jobs.find_limit("run", option, (name, launcher)):
            raise UsageError(f"{option} {limit.says}", hint=limit.suggest_instead((name,)))
    launchers = load_job_system(cluster).scheduler.launchers
    if launcher not in launchers:
        raise UsageError(
            f"--launcher {launcher} does not work on cluster {cluster.name!r}"
            f" ({cluster.spec.provider})",
            hint=f"leave it out, or choose one of: {', '.join(launchers)}",
        )

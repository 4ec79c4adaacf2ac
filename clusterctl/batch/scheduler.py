"""WHO starts a job and knows its state: our supervisor on the launcher, or a batch system.

All pure: argv and scripts in, text out, states parsed. `jobs.systems` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from clusterctl.core.job import Job, JobSpec, LaunchPlan, Reason
from clusterctl.core.model import Cluster
from clusterctl.options.batch import BATCH_SYSTEMS


class Scheduler(Protocol):
    """A batch system, or ours. Commands run in the job's folder on the launcher or login node."""

    launchers: tuple[str, ...]
    """What `--launcher` may name; the first is the default."""

    @property
    def emits(self) -> str:
        """The kind of script that `emit` writes, as `--emit` names it."""

    def script(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> dict[str, str]:
        """Files for the job's folder, by name."""

    def submit_argv(self, job: Job) -> tuple[str, ...]: ...

    def status_argv(self, job: Job) -> tuple[str, ...]: ...

    def parse_status(self, job: Job, text: str) -> Job:
        """The job as the scheduler's answer describes it."""

    def cancel_argv(self, job: Job) -> tuple[str, ...]: ...

    def emit(self, job: Job, cluster: Cluster, plan: LaunchPlan, *, beside: str) -> str:
        """The job as a script that needs no clusterctl, with its secrets left to whoever starts it.
        `beside` is the command that copies the program there, "" where it is there."""


class BatchScheduler(Scheduler, Protocol):
    """A batch system that was there before us: one question serves all jobs."""

    @property
    def example_size(self) -> str:
        """Options of `run` for a job of two ranks, as an example."""

    def check(self, spec: JobSpec) -> None:
        """Raises UsageError for a value of an option that it cannot take."""

    def resolve_size(self, spec: JobSpec) -> JobSpec:
        """The spec with the numbers of nodes and ranks that it left open. Raises UsageError where
        they contradict each other."""

    def give_time(self, spec: JobSpec) -> JobSpec:
        """The spec with the seconds that ranks have to save their work."""

    def reasons(self, spec: JobSpec) -> tuple[Reason, ...]:
        """Why variables are set for its own launcher (`srun`), if that may start the ranks."""

    def survey(self) -> str:
        """The script `bin/survey` on the login node: it answers for many jobs at once."""

    def survey_argv(self, jobs: Sequence[Job]) -> tuple[str, ...]:
        """Runs in the cluster's folder on the login node; `parse_status` finds each job's part."""

    def end_argv(self, job: Job) -> tuple[str, ...]:
        """Takes the job from the queue, where `cancel_argv` was not enough."""

    def is_silence(self, complaint: str) -> bool:
        """Whether a job was not taken because the batch system does not answer."""

    def interactive_argv(self, job: Job, words: Sequence[str]) -> tuple[str, ...]:
        """What gives a terminal on the nodes that the job asks for: a shell, or `words`."""


SCHEDULERS: dict[str, str] = {
    "direct": "clusterctl.batch.direct:Direct",
    **{name: f"clusterctl.batch.{name}:{name.capitalize()}" for name in BATCH_SYSTEMS},
}


def load_batch(name: str) -> BatchScheduler:
    """As `load`, for a batch system."""
    return cast(BatchScheduler, load_scheduler(name))


def load_scheduler(name: str) -> Scheduler:
    """The scheduler of that name, imported on first use."""
    module, _, attribute = SCHEDULERS[name].partition(":")
    return cast(Scheduler, getattr(import_module(module), attribute)())

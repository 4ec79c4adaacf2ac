"""WHO starts a job and knows its state: our supervisor on the launcher, or a batch system.

All pure: argv and scripts in, text out, states parsed. `jobs` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from clusterctl import scope
from clusterctl.errors import UsageError
from clusterctl.model import Cluster, Job, JobSpec, LaunchPlan


class Scheduler(Protocol):
    """A batch system, or ours. Commands run in the job's folder on the launcher or login node."""

    def check(self, spec: JobSpec) -> None:
        """Raises UsageError for a value of an option that it cannot take."""

    def script(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> dict[str, str]:
        """Files for the job's folder, by name."""

    def submit_argv(self, job: Job) -> tuple[str, ...]: ...

    def parse_submit(self, text: str) -> str:
        """The scheduler's own id of the job."""

    def status_argv(self, job: Job) -> tuple[str, ...]: ...

    def parse_status(self, job: Job, text: str) -> Job:
        """The job as the scheduler's answer describes it."""

    def cancel_argv(self, job: Job) -> tuple[str, ...]: ...


class BatchScheduler(Scheduler, Protocol):
    """A batch system that was there before us: one question serves all jobs."""

    def survey(self) -> str:
        """The script `bin/survey` on the login node: it answers for many jobs at once."""

    def end_argv(self, job: Job) -> tuple[str, ...]:
        """Takes the job from the queue, where `cancel_argv` was not enough."""

    def emit(
        self, job: Job, plan: LaunchPlan, version: str, secrets: Sequence[str], beside: str
    ) -> str:
        """A batch script that needs no clusterctl. `secrets` are names, set by who hands it in;
        `beside` is the command that copies the program there, "" where it is there."""

    def interactive_argv(self, job: Job, words: Sequence[str]) -> tuple[str, ...]:
        """What gives a terminal on the nodes that the job asks for: a shell, or `words`."""

    def survey_argv(self, jobs: Sequence[Job]) -> tuple[str, ...]:
        """Runs in the cluster's folder on the login node; `parse_status` finds each job's part."""


SCHEDULERS: dict[str, str] = {
    "direct": "clusterctl.schedulers.direct:Direct",
    "slurm": "clusterctl.schedulers.slurm:Slurm",
    "sge": "clusterctl.schedulers.sge:Sge",
}


def check(name: str, spec: JobSpec) -> None:
    """Raises UsageError for an option that this way of starting jobs does not have, or for a value
    that it cannot take."""
    given = {
        **{written(option): True for option in spec.native},
        "--module": spec.modules,
        "--venv": spec.venv,
        "--container": spec.container,
        "--now": spec.now,
        "--nodes": spec.nodes,
        "--ranks-per-node": spec.ranks_per_node,
    }
    for option, value in given.items():
        limit = scope.limit("run", option, (name,)) if value else None
        if limit:
            raise UsageError(f"{option} {limit.says}", hint=limit.advice((name,)))
    load(name).check(spec)


def written(name: str) -> str:
    """An option of `run` for a batch system, as a person writes it."""
    return f"-{name}" if name in ("pe", "l") else f"--{name}"


def load_batch(name: str) -> BatchScheduler:
    """As `load`, for a batch system."""
    return cast(BatchScheduler, load(name))


def load(name: str) -> Scheduler:
    """The scheduler of that name, imported on first use."""
    module, _, attribute = SCHEDULERS[name].partition(":")
    return cast(Scheduler, getattr(import_module(module), attribute)())

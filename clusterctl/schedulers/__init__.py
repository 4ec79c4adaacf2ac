"""WHO starts a job and knows its state: our supervisor on the launcher, or a batch system.

All pure: argv and scripts in, text out, states parsed. `jobs` runs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from clusterctl.model import Cluster, Job, LaunchPlan


class Scheduler(Protocol):
    """A batch system, or ours. Commands run in the job's folder on the launcher or login node."""

    def script(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> dict[str, str]:
        """Files for the job's folder, by name."""

    def submit_argv(self, job: Job) -> tuple[str, ...]: ...

    def parse_submit(self, text: str) -> str:
        """The scheduler's own id of the job."""

    def status_argv(self, job: Job) -> tuple[str, ...]: ...

    def parse_status(self, job: Job, text: str) -> Job:
        """The job as the scheduler's answer describes it."""

    def cancel_argv(self, job: Job) -> tuple[str, ...]: ...


SCHEDULERS: dict[str, str] = {
    "direct": "clusterctl.schedulers.direct:Direct",
}


def load(name: str) -> Scheduler:
    """The scheduler of that name, imported on first use."""
    module, _, attribute = SCHEDULERS[name].partition(":")
    return cast(Scheduler, getattr(import_module(module), attribute)())

"""A whole batch system: OAR, as far as its commands are like Slurm's. One row makes it known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from clusterctl.job_model import Job, JobSpec, JobState
from clusterctl.schedulers.batch import Batch, job_name


class Oar(Batch):
    """Its own agent, survey and words for nodes would be templates in `templates/oar`."""

    system = "slurm"
    prefix = "#OAR"
    submit, receipt = "oarsub", "--json"
    end = "oardel"
    down = "Connection refused"
    gone: ClassVar = {"Terminated": JobState.CANCELLED, "Error": JobState.FAILED}
    signals = (("USR1", "checkpoint"), ("TERM", "stopped"))
    ours = ("--stdout=",)
    launchers = ("mpirun",)

    def check(self, spec: JobSpec) -> None: ...

    def resolve_size(self, spec: JobSpec) -> JobSpec:
        return replace(spec, nodes=spec.nodes or 1, ranks_per_node=spec.ranks_per_node or 2)

    def directives(self, job: Job) -> list[str]:
        spec = job.spec
        size = f"-l nodes={spec.nodes}/core={spec.ranks_per_node}"
        return [f"-n {job_name(job)}", size, "--stdout=batch.out"]

    def in_queue(self, state: str, reason: str) -> tuple[JobState, str]:
        return (JobState.QUEUED if state == "Waiting" else JobState.RUNNING), reason

    def interactive_argv(self, job: Job, words: Sequence[str]) -> tuple[str, ...]:
        return ("oarsub", "-I", *words)

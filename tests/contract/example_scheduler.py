"""A whole batch system: OAR, as far as its commands are like Slurm's. One row makes it known.

Real ones have three modules: of the jobs and of the site, which are here, and of their options.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from clusterctl.batch.queue import QueueSystem, check_value, make_job_name
from clusterctl.core.job import JobSpec, JobState
from clusterctl.core.model import Cluster
from clusterctl.machines.attached import BatchSite


class Oar(QueueSystem):
    """`clusterctl/agent/oar.py` would ask its queue, and `templates/oar` start its ranks."""

    system = "slurm"
    prefix = "#OAR"
    emits = "oarsub"
    end = "oardel"
    down = "Connection refused"
    number = "OAR_JOB_ID"
    example_size = "--nodes 2"
    gone: ClassVar = {"Terminated": JobState.CANCELLED, "Error": JobState.FAILED}
    signals = (("USR1", "checkpoint"), ("TERM", "stopped"))
    ours = ("--stdout=",)
    launchers = ("mpirun",)

    def check(self, spec: JobSpec) -> None: ...

    def resolve_size(self, spec: JobSpec) -> JobSpec:
        return replace(spec, nodes=spec.nodes or 1, ranks_per_node=spec.ranks_per_node or 2)

    def list_options(self, spec: JobSpec) -> list[str]:
        return [f"--{name}={value}" for name, value in spec.native.items()]

    def directives(self, spec: JobSpec, number: int) -> list[str]:
        size = f"-l nodes={spec.nodes}/core={spec.ranks_per_node}"
        wanted = [
            f"{flag} {check_value(f'--{name}', spec.native[name])}"
            for name, flag in {"queue": "-q", "property": "-p"}.items()
            if name in spec.native
        ]
        return [f"-n {make_job_name(spec, number)}", size, "--stdout=batch.out", *wanted]

    def read_queue_state(self, state: str, reason: str) -> tuple[JobState, str]:
        return (JobState.QUEUED if state == "Waiting" else JobState.RUNNING), reason

    def interactive_argv(
        self, spec: JobSpec, cluster: Cluster, words: Sequence[str]
    ) -> tuple[str, ...]:
        return ("oarsub", "-I", *words)


class OarProvider(BatchSite):
    name = "oar"
    title = "OAR"
    required: ClassVar = {"oarsub": "oar-user"}
    questions: ClassVar = {"version": "oarsub --version"}
    status_command = "oarnodes -s"

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        return {"version": answers["version"].strip()}

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        return f"timeout {seconds} oarsub -I {shlex.join(words)}"

"""Jobs that are submitted to Slurm or Grid Engine: the queue decides when and where they run.

All that we reach is the login node, whose disk the nodes of a job share.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from clusterctl.batch import queue, scheduler
from clusterctl.batch.system import Preview, check_options
from clusterctl.core.clock import Deadline
from clusterctl.core.job import UNPLACED, Job, JobSpec, LaunchPlan, Placement, parse_concurrency
from clusterctl.core.model import Cluster, Node
from clusterctl.errors import UsageError
from clusterctl.launch import launcher, torchrun
from clusterctl.options import jobs as options_jobs
from clusterctl.transport.pool import Pool

SURVEY_TIMEOUT = 45.0
"""As long as a silent queue may take to be given up, twice, and then some."""


def _check_points(spec: JobSpec) -> None:
    """Raises UsageError for options that mean nothing to an array, whose tasks the queue starts."""
    torchrun.check_options(spec)
    for name, value in (
        ("--nodes", spec.nodes),
        ("--timeout", spec.timeout),
        ("--pass-signal", spec.pass_signal),
    ):
        if value:
            raise UsageError(
                f"{name} cannot be combined with --sweep or --array on a batch system:"
                " each point is a task of its array",
                hint="--time limits each point" if name == "--timeout" else "leave it out",
            )


class BatchSystem:
    """What differs between batch systems is the scheduler of the cluster's kind."""

    start_limit = 60.0 + queue.HAND_IN
    slow_start = (
        f"the queue has not answered yet; waiting up to {queue.HAND_IN} s"
        " (press Ctrl-C twice to give up)"
    )
    poll = 0.5
    backoff = 1.5
    logs = ("launch.err", "launch.out", "batch.out")
    errors = "launch.err"
    secrets_in_memory = False
    copies_outputs = False
    counts_survivors = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.scheduler = scheduler.load_batch(cluster.system)

    def advise(self, refusal: str) -> str:
        status = f"`clusterctl status {self._cluster.name} --live` shows"
        if self.scheduler.is_silence(refusal):
            return f"the queue does not answer; {status} when it does again"
        return f"check the options of the job; {status} partitions and queues"

    def resolve(self, spec: JobSpec) -> tuple[JobSpec, tuple[Placement, ...]]:
        check_options(spec.particular, spec.launcher, self._cluster)
        if spec.hosts:
            limit = options_jobs.find_limit("run", "--nodelist", (self._cluster.system,))
            hint = f"`run --nodelist {','.join(spec.hosts)}`" if limit is None else "leave it out"
            raise UsageError(
                f"hosts cannot be chosen here ({', '.join(spec.hosts)}): the queue chooses them",
                hint=hint,
            )
        self.scheduler.check(spec)
        spec = self.scheduler.give_time(spec)
        if spec.is_sweep:
            _check_points(spec)
            count = parse_concurrency(spec.array) or len(spec.points)
            return spec, (Placement(node=UNPLACED, first=0, count=count),)
        spec = self.scheduler.resolve_size(spec)
        count = spec.ranks or spec.nodes * spec.ranks_per_node
        return spec, (Placement(node=UNPLACED, first=0, count=count),)

    def plan(self, request: launcher.Request) -> LaunchPlan:
        plan = launcher.load_launcher("batch").plan(request)
        return replace(plan, reasons=(*plan.reasons, *self.scheduler.reasons(request.spec)))

    def preview(self, job: Job, plan: LaunchPlan) -> Preview:
        files = self.scheduler.script(job, self._cluster, plan)
        return Preview(tuple(files.items()), {"files": files, "ranks": job.ranks})

    def locate(self, job: Job) -> tuple[str, ...]:
        return (self._cluster.launcher.name,)

    def expect_hostname(self, node: Node) -> str:
        return ""

    def build(self, job: Job, pool: Pool) -> None:
        """The job compiles its program itself, where it runs and with the modules that it loads."""

    def refresh(
        self, jobs: Sequence[Job], pool: Pool, report: Callable[[str], None], deadline: Deadline
    ) -> tuple[Job, ...]:
        """One question for all of them. Where the queue does not answer, that is said."""
        if not jobs or deadline.passed:
            return tuple(jobs)
        login = self._cluster.launcher
        # Not in a job's folder: there may be none, where its client died.
        command = f"cd {shlex.quote(login.root)} && {shlex.join(self.scheduler.survey_argv(jobs))}"
        limit = min(SURVEY_TIMEOUT, deadline.left)
        result = pool.find_transport(login.name).run(command, timeout=limit)
        name = self._cluster.name
        if result.error or not result.stdout:
            report(f"{result.node} does not answer: showing the jobs of {name} as last seen")
            return tuple(jobs)
        if silence := queue.describe_silence(result.text):
            report(f"{name}: {silence}")
        return tuple(self.scheduler.parse_status(job, result.text) for job in jobs)

    def limit_end(self, spec: JobSpec) -> float:
        return 2 * spec.save_time + 20.0  # its script has to see our word first, and asks all nodes

    def make_force_argv(self, job: Job) -> tuple[str, ...]:
        return self.scheduler.end_argv(job)

    def describe_wait(self, job: Job) -> str:
        why = f": {job.reason}" if job.reason else ""
        return f"job {job.id} ({self._cluster.system} {job.native_id}) is in the queue{why}"

    def make_interactive_argv(self, spec: JobSpec, words: Sequence[str]) -> tuple[str, ...]:
        spec, placement = self.resolve(spec)
        job = Job(
            id=0,
            cluster=self._cluster.name,
            cluster_id=self._cluster.id,
            spec=spec,
            scheduler=self._cluster.system,
            placement=placement,
            stage="",
            created=time.time(),
        )
        return self.scheduler.interactive_argv(job, words)

"""`rerun`: a job as a new one, with the same program, files and options."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from clusterctl.actions import check_name, require_ready
from clusterctl.actions import earlier_files as resuming
from clusterctl.actions.follow_job import FindDeadNodes, OnJob, OnOutput
from clusterctl.actions.jobs import make_lost_cluster_error
from clusterctl.actions.run import Prepared, plan_job, run
from clusterctl.errors import RecordError, UsageError
from clusterctl.job_model import Job, JobSpec
from clusterctl.jobs.stage import Tree
from clusterctl.launch.placement import drop_unknown_hosts
from clusterctl.model import Cluster, Reporter
from clusterctl.resume_args import are_given
from clusterctl.state import Store


@dataclass(frozen=True, slots=True)
class Changes:
    """What a rerun is given: variables, of which `plain` may be recorded, `secrets` may not, and
    `files` held some; further arguments; another number of ranks (0: as before)."""

    plain: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    ranks: int = 0
    failed: bool = False
    """Of a sweep, only the points that did not succeed."""


def rerun(
    store: Store,
    number: int,
    given: Changes,
    *,
    resume: bool,
    where: str | None,
    on_start: OnJob,
    on_output: OnOutput,
    report: Reporter,
    detach: bool,
    without: Collection[str] = (),
    find_dead: FindDeadNodes | None = None,
) -> Job:
    """The same program, tree and options again, as a new job on a cluster of the same name, or on
    the cluster `where`, less the nodes `without`.

    `resume` carries the old job's outputs over, so that a program that reads its snapshot goes on.
    """
    old = store.read_job(number)
    if where is None and store.list_names() and old.cluster not in store.list_names():
        other = store.list_names()[0]
        raise make_lost_cluster_error(
            old, f"`clusterctl rerun {number} -c {other}` runs it on cluster {other}"
        )
    cluster = require_ready(store.read_cluster(old.cluster if where is None else check_name(where)))
    cluster = cluster.drop_nodes(without)
    spec, secrets = _apply_changes(old.spec, given)
    spec = replace(spec, hosts=tuple(name for name in spec.hosts if name not in without))
    if spec.hosts and cluster.name != old.cluster:
        spec, note = drop_unknown_hosts(spec, cluster)
        if note:
            report(note)
    if given.failed:
        spec = replace(spec, only=_choose_points(old))
    if detach and spec.sync:
        report(f"--sync {spec.sync} is left out: clusterctl does not follow the job")
        spec = replace(spec, sync="")
    source = None
    if resume:
        planned, _ = plan_job(cluster, spec, number=number)
        source = resuming.find(store, old, planned, cluster, report)
    archive = store.home.stages / old.stage
    if not archive.is_file():
        raise RecordError(
            f"the staged files of job {number} are no longer on this machine"
            if old.stage
            else f"job {number} was never staged: there is nothing to run again",
            hint="use `clusterctl run`",
        )
    os.utime(archive)  # it is in use again
    prepared = _prepare_again(store, old, cluster, spec, secrets)
    own = not spec.resume_args or are_given(spec.resume_args, given.arguments)
    prepared = replace(prepared, job=replace(prepared.job, resumes=resume and not own))
    carried = resuming.carry_over(store, source, prepared.job, cluster, report)
    return run(
        store,
        prepared,
        on_start=on_start,
        on_output=on_output,
        report=report,
        detach=detach,
        carried=carried,
        find_dead=find_dead,
    )


def _choose_points(old: Job) -> tuple[int, ...]:
    if not old.spec.is_sweep:
        raise UsageError(f"job {old.id} is not a sweep", hint="leave out --failed")
    if not old.state.ended:
        raise UsageError(
            f"job {old.id} is still {old.state.value}", hint=f"`clusterctl logs {old.id} -f` waits"
        )
    if not old.unfinished_points:
        raise UsageError(f"all points of job {old.id} succeeded", hint="leave out --failed")
    return old.unfinished_points


def _apply_changes(spec: JobSpec, given: Changes) -> tuple[JobSpec, dict[str, str]]:
    """The spec with these changes, and the values of its secrets. What was a secret stays one,
    however it is given this time."""
    plain = {name: value for name, value in given.plain.items() if name not in spec.secret_names}
    secrets = {**given.secrets, **{n: v for n, v in given.plain.items() if n not in plain}}
    env = {name: value for name, value in {**spec.env, **plain}.items() if name not in secrets}
    names = tuple(sorted({*spec.secret_names, *secrets}))
    program = replace(spec.program, args=(*spec.program.args, *given.arguments))
    spec = replace(spec, program=program, env=env, secret_names=names, env_files=given.files)
    if given.ranks:  # sizes that the old number led to would contradict it
        hosts = tuple(dict.fromkeys(spec.hosts))
        spec = replace(spec, ranks=given.ranks, ranks_per_node=0, nodes=0, hosts=hosts, once=False)
    return spec, secrets


def _prepare_again(
    store: Store, old: Job, cluster: Cluster, spec: JobSpec, secrets: Mapping[str, str]
) -> Prepared:
    """The job as a new one; RecordError where secrets are missing."""
    missing = [name for name in old.spec.secret_names if name not in secrets]
    if missing:
        raise RecordError(
            f"job {old.id} used secrets that are not stored: {', '.join(missing)}",
            hint="give them again with --env NAME=VALUE or --env-file",
        )
    job, plan = plan_job(cluster, spec, number=store.reserve_job_id())
    job = replace(job, stage=old.stage, rerun_of=old.id)
    tree = Tree(store.home.stages, (), 0, False)
    return Prepared(job=job, cluster=cluster, plan=plan, tree=tree, secrets=secrets)

"""`run`: stage, launch, follow. The job belongs to the cluster: whoever follows it may leave."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from clusterctl import launch
from clusterctl.actions import connect_or_report, open_pool, require_ready
from clusterctl.actions.follow_job import (
    FindDeadNodes,
    OnJob,
    OnOutput,
    follow_to_end,
    stop_on_interrupt,
)
from clusterctl.compiling import plan_compilation
from clusterctl.errors import (
    ClusterctlError,
    RecordError,
    UsageError,
)
from clusterctl.job_model import Job, JobSpec, JobState
from clusterctl.jobs import (
    archives,
    control,
    installed,
    launch_sizes,
    logs,
    mirror,
    own_project,
    package_sources,
    packages,
    provenance,
    stage,
    start,
    systems,
    tree_checks,
)
from clusterctl.jobs.interrupts import Interrupts, StartSignals
from clusterctl.jobs.launch_words import translate
from clusterctl.jobs.package_model import NONE, Wanted
from clusterctl.jobs.program import Resolved as Resolved
from clusterctl.jobs.program import (
    find_similar,
    make_missing_error,
    resolve_command,
    resolve_module,
)
from clusterctl.jobs.program import resolve as resolve_script
from clusterctl.jobs.program_text import (
    may_use_mpi,
    warn_of_backend,
    warn_of_launcher,
    warn_of_no_mpi,
)
from clusterctl.jobs.stage import Stdin as Stdin
from clusterctl.launch_plan import LaunchPlan
from clusterctl.model import Cluster, NodeResult, Reporter
from clusterctl.node_results import make_error
from clusterctl.process import Terminated as Terminated
from clusterctl.state import Store
from clusterctl.transport.pool import Pool

LARGEST_INPUT = stage.MAX_BYTES
"""Bytes of a standard input, unless more is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job that is ready to go, with everything that will be shipped: `--dry-run` prints it."""

    job: Job
    cluster: Cluster
    plan: LaunchPlan
    tree: stage.Tree
    secrets: Mapping[str, str]
    doubtful: tuple[str, ...] = ()
    """Links of its tree of which only the nodes can say whether they lead anywhere."""
    wanted: Wanted | None = None
    """Packages that are installed for it; a rerun finds them in the state home."""
    command: str = ""
    """What one of them has to bring."""

    @property
    def preview(self) -> systems.Preview:
        """What differs by who runs the job, for `--dry-run`."""
        return systems.load(self.cluster).preview(self.job, self.plan)


def resolve(
    words: list[str],
    module: str | None,
    chosen: Path | None,
    without: Sequence[Path] = (),
    sources: Sequence[Path] = (),
    limit: int = 0,
    include: Sequence[Path] = (),
    stdin: Stdin | None = None,
    once: bool = False,
) -> Resolved:
    """SCRIPT and ARGS, a module and ARGS, or `--` and a command, as a program with the tree that it
    comes in, less the files `without`, whose secrets travel another way. `sources` are compiled
    with SCRIPT. `limit`: bytes that the tree may have; 0: the usual limits. `include`: files and
    folders that are copied although git ignores them. `stdin`: what rank 0 reads. `once`: one
    process is wanted."""
    if module is not None and translate(("python", "-m", module, *words)).launcher:
        words, module = ["python", "-m", module, *words], None
    if module is not None:
        if sources:
            raise UsageError(
                "--source works only with SCRIPT, not with -m", hint="leave out --source"
            )
        found = resolve_module(module, tuple(words), chosen=chosen, limit=limit)
    elif (asked := translate(words[words[0] == "--" :], once=once)).launcher:
        found = resolve_command(asked.command, chosen=chosen, sources=sources, limit=limit)
        program = replace(found.program, local_rank=asked.local_rank)
        found = replace(found, program=program, asked=asked)
    elif words[0] == "--":
        found = resolve_command(words[1:], chosen=chosen, sources=sources, limit=limit)
    else:
        found = resolve_script(
            words[0], tuple(words[1:]), chosen=chosen, sources=sources, limit=limit
        )
    found = replace(found, tree=stage.include(found.tree, include, limit))
    secret = {path.resolve() for path in without}
    files = tuple(name for name in found.tree.files if (found.tree.root / name) not in secret)
    tree = replace(found.tree, files=files, stdin=stdin)
    return replace(found, tree=tree, findings=tree_checks.check(found.program, tree, secret))


def include(resolved: Resolved, paths: Sequence[Path], limit: int) -> Resolved:
    """The program with these files and folders of its tree, too. Raises UsageError."""
    return replace(resolved, tree=stage.include(resolved.tree, paths, limit))


def check_packages(resolved: Resolved, given: str) -> None:
    """Raises UsageError where what a program asks for is not understood, before there are nodes."""
    _find_packages(resolved, given, "")


def _find_packages(resolved: Resolved, given: str, python: str) -> _Found:
    """Raises UsageError, too, for a program that is neither here nor a command of packages."""
    wanted, word = package_sources.find(resolved, given, python), resolved.program.target
    projects = _find_projects(resolved, wanted, given)
    installed = resolved.installed and not any(word in one.commands for one in projects)
    if installed and (
        wanted is None or (find_similar(word) and not package_sources.is_named(wanted, word))
    ):
        raise make_missing_error(word)
    return _Found(wanted, projects, word if installed else "")


def _find_projects(
    resolved: Resolved, wanted: Wanted | None, given: str
) -> list[own_project.Project]:
    folders = wanted.folders if wanted else ()
    return own_project.find(resolved.program, resolved.tree, folders, given)


class _Found(NamedTuple):
    wanted: Wanted | None
    projects: list[own_project.Project]
    command: str
    """What a package has to bring."""


def prepare(
    cluster: Cluster,
    spec: JobSpec,
    resolved: Resolved,
    secrets: Mapping[str, str],
    *,
    number: int,
    requirements: str = "",
) -> Prepared:
    """Decides everything, touches nothing. Raises LaunchError where it cannot work."""
    wanted, command = None, ""
    if not (spec.venv or spec.modules or spec.container):
        wanted, projects, command = _find_packages(resolved, requirements, spec.python)
        nodes = cluster.workers or (cluster.launcher,)
        has_all = wanted and not (spec.python or command)
        if wanted and has_all and installed.has_all(wanted, nodes):
            wanted = None
        # A script of the project may do without the Python that some node lacks.
        given = spec.python or requirements or resolved.program.needs_python
        if not given and any(node.facts.python is None for node in nodes):
            wanted = None
    elif spec.python or requirements not in ("", NONE):
        given = "--python" if spec.python else "--requirements"
        raise UsageError(
            f"{given} cannot be combined with --venv, --module or --container",
            hint="leave one of the two out",
        )
    else:
        projects = _find_projects(resolved, None, requirements)
    own_project.check(projects, packages.choose(cluster, spec.python).workers)
    paths = dict.fromkeys(path for project in projects for path in project.paths)
    uses_mpi = may_use_mpi(resolved, spec.backend)
    spec = replace(spec, import_paths=tuple(paths), uses_mpi=uses_mpi)
    if wanted:
        spec = replace(spec, packages=wanted.digest)
    asked = resolved.asked
    if asked.launcher:
        launchers = systems.load(cluster).scheduler.launchers
        usual = spec.launcher == "auto"
        asked = asked.limit_to(launchers[0] if usual else spec.launcher, launchers)
        spec, asked = launch_sizes.fill(asked, spec, resolved.settings, cluster)
    job, plan = plan_job(cluster, spec, number=number)
    if asked.launcher:
        plan = replace(plan, notes=(*plan.notes, asked.note))
    if wanted:
        chosen_python = packages.choose(cluster, spec.python)
        places = [chosen_python.node(name) for name in start.list_rank_nodes(job, cluster)]
        plan = replace(plan, notes=(*plan.notes, packages.describe(wanted, places)))
    if command:
        note = f"no file {command} here: one of these packages has to bring that command"
        plan = replace(plan, notes=(*plan.notes, note))
    warnings = (
        *(own_project.explain(project) for project in projects if project.problem),
        warn_of_backend(resolved, spec.backend),
        warn_of_launcher(resolved, job.ranks),
        warn_of_no_mpi(resolved, spec.native.get("mpi", ""), job.ranks, cluster.launcher.facts.mpi),
        *resolved.findings.notes,
    )
    return Prepared(
        job=job,
        cluster=cluster,
        plan=replace(plan, warnings=tuple(filter(None, warnings))),
        tree=own_project.equip(resolved.tree, projects),
        secrets=secrets,
        doubtful=resolved.findings.doubtful,
        wanted=wanted,
        command=command,
    )


def plan_job(cluster: Cluster, spec: JobSpec, *, number: int) -> tuple[Job, LaunchPlan]:
    """The job's record before it is staged, and how its ranks are started."""
    plan_compilation(spec.program, spec.env)  # its flags may be wrong
    system = systems.load(require_ready(cluster))
    spec = replace(spec, venv=_make_absolute(cluster, spec.venv))
    if spec.launcher == "auto":
        spec = replace(spec, launcher=system.scheduler.launchers[0])
    spec, placement = system.resolve(spec)
    job = Job(
        id=number,
        cluster=cluster.name,
        cluster_id=cluster.id,
        spec=spec,
        scheduler=cluster.system,
        placement=placement,
        stage="",
        created=time.time(),
    )
    equipped = packages.equip(packages.choose(cluster, spec.python), spec.packages)
    request = launch.Request(id=number, spec=spec, cluster=equipped, placement=placement)
    return job, system.plan(request)


def _make_absolute(cluster: Cluster, venv: str) -> str:
    """`--venv` as the nodes find it, wherever ranks start: from the current folder, where that is
    the login node's, else from the home folder there."""
    if not venv or venv.startswith(("/", "~")):
        return venv
    if cluster.launcher.here:
        return str(Path.cwd() / venv)
    return f"~/{venv}"


def submit(
    store: Store,
    prepared: Prepared,
    pool: Pool,
    report: Reporter,
    *,
    carry: start.Carry | None = None,
) -> Job:
    """Ships the job and starts it. A job that cannot be started is on record as failed."""
    job = prepared.job
    if not job.stage:
        job = replace(job, stage=stage.write_archive(prepared.tree, store.home))
    if prepared.wanted:
        packages.save(prepared.wanted, store.home)
    archives.remove_old(store)
    logs.remove_old(store)
    if job.spec.sync:
        mirror.claim(job, store.locate_job_folder(job.id))
    with store.mark_handing_in(job.id), StartSignals() as signals:
        return _ship(store, replace(prepared, job=job), pool, report, carry, signals)


def _ship(
    store: Store,
    prepared: Prepared,
    pool: Pool,
    report: Reporter,
    carry: start.Carry | None,
    signals: StartSignals,
) -> Job:
    job, cluster = prepared.job, prepared.cluster
    staging = starting = started = False
    try:
        store.save_job(job)
        # Staging may take its time, a node that does not answer may not.
        for name, why in connect_or_report(pool, start.list_nodes(job, cluster), report).items():
            raise make_error(f"staging job {job.id}", NodeResult(node=name, error=why))
        names = start.list_rank_nodes(job, cluster)
        chosen = packages.choose(cluster, job.spec.python)
        packages.install(job.spec.packages, chosen, names, pool, store.home, report)
        if prepared.command and prepared.wanted:
            where = [chosen.node(name) for name in names]
            packages.check_command(prepared.command, prepared.wanted, where, pool)
        equipped = packages.equip(chosen, job.spec.packages)
        files = start.make_node_files(job, equipped, prepared.plan, prepared.secrets)
        staging = True
        port = start.put(
            *(job, cluster, files, pool, store.home),
            carry=carry,
            doubtful=prepared.doubtful,
            report=report,
        )
        with Interrupts():
            signals.start_waiting()
            starting = True
            job = start.start(job, cluster, pool, port, report)
            started = True
            store.save_job(job)
        found = provenance.describe(job, cluster, prepared.plan, prepared.tree, store)
        store.save_provenance(job.id, found)
    except BaseException as error:
        if started or (starting and isinstance(error, KeyboardInterrupt)):
            raise  # its supervisor runs, or may have started in this very moment
        reason = error.message if isinstance(error, ClusterctlError) else "interrupted"
        ended = replace(job, state=JobState.FAILED, finished=time.time(), reason=reason)
        if isinstance(error, KeyboardInterrupt):
            ended = replace(ended, state=JobState.CANCELLED)
            with Interrupts(patient=True):
                store.save_job(ended)
                report(f"job {job.id} is cancelled: it had not started")
                if staging:
                    control.forget(job, cluster, pool)
            raise
        elif staging:
            control.forget(job, cluster, pool)
        store.save_job(ended)
        raise
    store.add_event(cluster.name, "job", id=job.id, program=job.spec.program.target)
    return job


def run(
    store: Store,
    prepared: Prepared,
    *,
    on_start: OnJob,
    on_output: OnOutput,
    report: Reporter,
    detach: bool = False,
    pool: Pool | None = None,
    carried: AbstractContextManager[start.Carry | None] | None = None,
    find_dead: FindDeadNodes | None = None,
) -> Job:
    """Runs the job and returns it as it ended (or as it started, with `detach`). `pool` is left
    open; without one, connections are made for this job alone.

    KeyboardInterrupt, wherever it comes, ends the job on all nodes before it is raised again.

    Args:
        carried: Holds what another job has left for this one (see `resuming`), until it is sent.
    """
    cluster = prepared.cluster
    with (
        nullcontext(pool) if pool else open_pool(store, cluster) as pool,
        stop_on_interrupt(store, prepared.job.id, cluster, pool, report),
    ):
        with carried or nullcontext() as carry:
            job = submit(store, prepared, pool, report, carry=carry)
        on_start(job)
        if detach:
            return job
        return follow_to_end(
            store, job, cluster, pool, on_output=on_output, report=report, find_dead=find_dead
        )


def choose_number(store: Store, *, dry: bool) -> int:
    """The job's id; a dry run does not use one up."""
    if not dry:
        return store.reserve_job_id()
    return max((job.id for job in store.list_jobs()), default=0) + 1


def find_job(store: Store, number: int) -> Job | None:
    """The job's record, if it has got that far."""
    try:
        return store.read_job(number)
    except RecordError:
        return None

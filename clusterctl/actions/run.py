"""`run`: a job from its plan to its end."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterctl import process
from clusterctl.actions.access import start_ssh
from clusterctl.actions.common import Connected, connect_or_report, open_pool, require_ready
from clusterctl.actions.jobs import follow_job
from clusterctl.batch.system import (
    Preview,
    list_nodes,
    list_rank_nodes,
    load_system,
    locate_folder,
)
from clusterctl.batch.verdict import NO_RANK, has_never_started, is_disk_full
from clusterctl.core import assets
from clusterctl.core.job import (
    IN_A_TERMINAL,
    Job,
    JobSpec,
    JobState,
    LaunchPlan,
    Program,
    ProgramKind,
)
from clusterctl.core.model import Cluster, Consent, NodeResult, Reporter, make_error
from clusterctl.core.text import count
from clusterctl.core.variables import read_variables
from clusterctl.errors import (
    BootstrapError,
    ClusterctlError,
    LaunchError,
    NodeUnreachable,
    RecordError,
    UsageError,
)
from clusterctl.jobs import control, fetch, records
from clusterctl.jobs import install as jobs_install
from clusterctl.jobs import submit as jobs_submit
from clusterctl.jobs.follow import Interrupts, StartSignals
from clusterctl.jobs.records import Piece
from clusterctl.launch import launcher
from clusterctl.launch.compiling import plan_compilation
from clusterctl.options.verbs import Run
from clusterctl.project import own_project
from clusterctl.project import packages as project_packages
from clusterctl.project import program as programs
from clusterctl.project import tree as project_tree
from clusterctl.project import words as project_words
from clusterctl.project.own_project import NONE
from clusterctl.project.packages import Packages, Wanted
from clusterctl.project.program import Resolved
from clusterctl.project.tree import Stdin
from clusterctl.project.words import translate
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool

# -------------------------------------------------------------------------------------------------
# Why a job failed, and what to do, in words.


NOT_FOUND = 127
"""What a shell exits with where there is no such command."""
REMARKS = 64_000
"""Bytes at the end of a failed rank's stderr that are searched for the cause."""


def suggest(store: Store, job: Job, remarks: str = "") -> str:
    """The line in which the rank that failed first says why, with what it means and what to do;
    else, behind `remarks` of the launcher, its last words. "" for what is not known."""
    failure = job.failure
    if job.state is not JobState.FAILED or failure is None:
        return ""
    said = {"err": "", "out": ""}
    for suffix in said:
        # Of a job of a queue, all output comes by way of the login node.
        for path in store.locate_job_folder(job.id).glob(f"out/*/rank-{failure.rank}.{suffix}"):
            with suppress(OSError), path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - REMARKS))
                said[suffix] = file.read().decode(errors="replace")
    text = said["err"]
    if not text and not remarks:
        return ""
    from clusterctl.insight import messages  # its tables are of no use to a job that succeeds

    own = messages.find_known_message(text)
    found = own or messages.find_known_message(remarks)
    if (found is None or found.line in programs.find_lines(text)) and (
        why := programs.explain_missing_file(text)
    ):
        return why
    if found is None:
        why = messages.explain_exit(failure.exit_code, job)
        if failure.exit_code == NOT_FOUND:
            target = os.path.basename(job.spec.program.target)
            part = own_project.find_part(Path.cwd(), target)
            why = f"`run {part} …` installs {target}" if part else why
    else:
        advice = _find_package(job, found.package) or found.advise(job)
        files = [path.name for path in Path().glob("*.py") if path.stem != found.module]
        if found.module and (close := programs.find_closest(Path(found.module), files)):
            advice = f"did you mean {close.removesuffix('.py')}? Otherwise, {advice}"
        why = f"{found.line}\n  {found.message.cause}; {advice}"
    words = next(filter(None, map(messages.find_last_words, said.values())), "")
    last = f"rank {failure.rank} on {failure.node} said at last: {words}"
    return "\n".join(filter(None, (why, last if words and remarks and not own else "")))


def _find_package(job: Job, package: str) -> str:
    """How the job gets a package that the files here name; "" where they do not."""
    spec = job.spec
    if not package:
        return ""
    if part := own_project.find_part(Path.cwd(), package):
        return f"`run {part} …` installs {package}, as {own_project.OWN_PROJECT} says"
    given = Path("requirements.txt")
    if spec.packages or spec.venv or spec.modules or spec.container or not given.is_file():
        return ""
    listed = Wanted(str(given), text=given.read_text(errors="replace"))
    if project_packages.is_named(listed, package):
        return f"{given} lists it: leave out `--requirements {NONE}`"
    return ""


def explain_failure(job: Job, said: str = "") -> ClusterctlError | None:
    """Why a job failed or was lost without an exit code of its program's; None where it has one, or
    ended otherwise. What its launcher exits with is no code of the program's. `said`: what the
    launcher said of a job that never started."""
    again = f"then `clusterctl rerun {job.id} --resume` continues from the job's files"
    if job.spec.program.kind is ProgramKind.BATCH:
        again = f"then `clusterctl rerun {job.id}` hands the script in again"
    if job.state is JobState.LOST:
        return LaunchError(
            f"job {job.id} was lost: {job.reason}",
            hint=f"check the launcher with `clusterctl status --live`; {again}",
        )
    if job.state is not JobState.FAILED or job.program_exit_code is not None:
        return None
    lost = -1 in job.survivors.values()
    kind: type[ClusterctlError] = NodeUnreachable if lost else LaunchError
    look = "check the nodes with `clusterctl status --live`"
    if has_never_started(job):
        what = f"could not be started: {job.reason.removeprefix(f'{NO_RANK}: ') or NO_RANK}"
        hint = "`clusterctl run --dry-run …` shows the command and the reason for each flag"
        if lost or job.start_code or " was killed by " in job.reason:
            hint = f"`clusterctl rerun {job.id}` starts it again"
        if lost:
            hint = f"{look}; then {hint}"
    else:
        if job.hangs and job.hangs[-1].attempt == job.attempt:
            look = f"`clusterctl doctor {job.id}` shows where its ranks stood"
        elif "there is no folder" in job.reason:
            look = "make that folder (mkdir -p), or name one that is there"
        what = f"failed: {job.reason}"
        hint = f"{look}; {again}"
    if is_disk_full(job):
        hint = "free space there: `clusterctl ssh NODE -- df -h`"
    error = kind(f"job {job.id} {what}" + (f"\n{said}" if said else ""), hint=hint)
    error.exit_code = job.start_code or error.exit_code
    return error


def describe_attempt(job: Job) -> str:
    """That a job has begun again: it failed, or the batch system may have put it back."""
    tries = job.spec.retries + 1
    if job.attempt > tries or "requeue" in job.spec.native:
        return f"job {job.id} runs again: attempt {job.attempt}"
    why = f": {job.reason}" if job.reason else ""
    return f"job {job.id} failed{why}; attempt {job.attempt} of {tries}"


# -------------------------------------------------------------------------------------------------
# Follows a job to its end, and ends it on Ctrl-C.


REST_LIMIT = 300.0
"""Seconds that reading the rest of a job's output may take when the job has ended."""

OnOutput = Callable[[list[Piece]], None]
OnJob = Callable[[Job], None]

STARTERS = {"mpirun": "mpirun", "torchrun": "mpirun", "srun": "srun"}
"""What starts the ranks, by --launcher, as far as that is known here."""


@contextmanager
def stop_on_interrupt(at: Connected, number: int) -> Iterator[None]:
    """A Ctrl-C inside, wherever it comes, ends the job on all nodes before it is raised again."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(RecordError):  # it had not come as far as its record
            job = at.store.read_job(number)
            if not job.state.ended:
                at.store.save_job(_stop(at, job))
                if job.spec.sync:
                    folder = at.store.locate_job_folder(number)
                    at.report(fetch.describe_synced(job, folder, "interrupted"))
        raise


def follow_to_end(at: Connected, job: Job, on_output: OnOutput) -> Job:
    """Follows the job to its end. Whoever calls it ends the job if it is interrupted."""
    cluster, pool, report, attempt = at.cluster, at.pool, at.report, 1
    with follow_job(at, job) as follower:
        for pieces in follower.read_batches(limit=REST_LIMIT):
            on_output(pieces)
            if follower.job.state is not job.state:
                job = follower.job
                at.store.save_job(job)
            if follower.job.attempt > attempt:
                attempt = follower.job.attempt
                report(describe_attempt(follower.job))
        if follower.cut_short:
            report(
                f"job {job.id} has ended, but not all of its output was read within"
                f" {REST_LIMIT:g} s; `clusterctl logs {job.id}` reads the rest"
            )
    job = follower.job
    said = remarks = ""
    if has_never_started(job):
        said = control.read_messages(job, cluster, pool)
    elif job.state is JobState.FAILED and (remarks := control.read_remarks(job, cluster, pool)):
        report(f"{STARTERS.get(job.spec.launcher, 'the launcher')} said:\n{indent(remarks, '  ')}")
    if error := explain_failure(job, said):
        raise error
    if hint := suggest(at.store, job, remarks):
        report(hint)
    return job


def _stop(at: Connected, job: Job) -> Job:
    """What Ctrl-C means for a job. A second one does not wait for the end; the launcher has been
    told by then."""
    try:
        with Interrupts(patient=True):
            saving = f"; its ranks have {job.spec.save_time:g} s to save"
            if not job.started or job.spec.program.kind is ProgramKind.BATCH:
                saving = ""  # a queue ends a script of somebody's own in its own way
            at.report(f"stopping job {job.id} on all nodes{saving}")
            control.ask_to_end(job, at.cluster, at.pool)
        job = control.wait_for_end(job, at.cluster, at.pool, report=at.report)
    except KeyboardInterrupt:
        at.report(
            f"the launcher is stopping job {job.id};"
            f" `clusterctl cancel {job.id}` waits until nothing is left"
        )
        raise
    at.report(f"job {job.id} is {job.state.value}: {control.describe_survivors(job)}")
    return job


# -------------------------------------------------------------------------------------------------
# `run`: stage, launch, follow. The job belongs to the cluster: whoever follows it may leave.


FindStart = Callable[[Job, Cluster, Pool], Job | None]

LARGEST_INPUT = project_tree.MAX_BYTES
"""Bytes of a standard input, unless more is allowed."""


class Prepared(Struct, frozen=True, kw_only=True):
    """A job that is ready to go, with everything that will be shipped: `--dry-run` prints it."""

    job: Job
    cluster: Cluster
    plan: LaunchPlan
    tree: project_tree.Tree
    secrets: Mapping[str, str]
    packages: Packages | None = None
    """Those that are installed for it; a rerun finds them in the state home."""
    command: str = ""
    """What one of them, or the nodes, have to bring."""
    projects: tuple[own_project.Project, ...] = ()
    """Those of its tree, for a program that gets packages: some may have to be built."""
    typed: tuple[str, ...] = ()
    """The command line of clusterctl."""

    @property
    def preview(self) -> Preview:
        """What differs by who runs the job, for `--dry-run`."""
        return load_system(self.cluster.system).preview(self.job, self.cluster, self.plan)


def resolve_run(given: Run, stdin: Stdin | None = None, cluster: Cluster | None = None) -> Resolved:
    """SCRIPT and ARGS, a module and ARGS, or `--` and a command, as a program with the tree that it
    comes in, less the files of secrets, which travel another way. `stdin`: what rank 0 reads;
    `cluster`: where it will run, if that is known."""
    words, module = [*given.command], given.python_module or None
    if module is not None and translate(("python", "-m", module, *words)).launcher:
        words, module = ["python", "-m", module, *words], None
    if module is None:
        programs.check_quoted("".join(words[words[0] == "--" :][:1]))
    search = programs.Search(
        chosen=given.stage,
        limit=given.max_stage,
        sources=given.source,
        made_there=bool(given.setup),
        cluster=cluster,
    )
    if module is not None:
        if given.source:
            raise UsageError(
                "--source works only with SCRIPT, not with -m", hint="leave out --source"
            )
        found = programs.resolve_module(module, tuple(words), search)
    elif (asked := translate(words[words[0] == "--" :], once=given.once)).launcher:
        if not search.made_there:
            programs.check_there(asked.command[len(asked.ahead) :])
        search = replace(search, launched=asked.is_launcher)
        found = programs.resolve_command(asked.command, search)
        program = replace(found.program, local_rank=asked.local_rank)
        # `poetry run pytest`: a command of the packages, or of the nodes.
        installed = asked.launcher.endswith(" run") and programs.may_be_installed(program.target)
        program = replace(program, interpreter=program.target) if installed else program
        found = replace(found, program=program, asked=asked, installed=installed)
    elif words[0] == "--":
        found = programs.resolve_command(words[1:], search)
    else:
        found = programs.resolve_program(words[0], tuple(words[1:]), search)
    if not _stays(found.program, cluster):
        more = project_tree.include(found.tree, given.include, given.max_stage)
        found = replace(found, tree=more)
    secret = {path.resolve() for path in given.env_file}
    files = tuple(name for name in found.tree.files if (found.tree.root / name) not in secret)
    tree = replace(found.tree, files=files, stdin=stdin)
    findings = project_tree.check_tree(found.program, tree, secret)
    settings = {name for key in given.settings for name in (key, key.replace("_", "-"))}
    return replace(found, tree=tree, findings=findings, settings=settings, parts=given.parts)


def _stays(program: Program, cluster: Cluster | None) -> bool:
    """Whether it is a batch script that starts where the user stands: nothing is copied for it."""
    return program.kind is ProgramKind.BATCH and cluster is not None and cluster.launcher.here


def make_spec(given: Run, program: Program) -> tuple[JobSpec, dict[str, str]]:
    """What was given about a program, and the secrets of its files."""
    variables, secrets = read_variables(given.variables, given.env_file)
    spec = JobSpec(
        program=program,
        native=given.collect_native(),
        **given.pick_fields(JobSpec),
    )
    spec = replace(
        spec,
        env=variables,
        secret_names=tuple(sorted(secrets)),
        env_files=tuple(str(path.absolute()) for path in given.env_file),
        in_place="." if given.own_folder else "",
    )
    return replace(spec, ranks=1, ranks_per_node=0, nodes=0) if given.once else spec, secrets


def check_packages(resolved: Resolved, given: str) -> None:
    """Raises UsageError where what a program asks for is not understood, before there are nodes."""
    if resolved.program.kind is ProgramKind.BATCH:
        return
    resolved = project_packages.recognize_command(resolved, given)
    if wanted := _find_packages(resolved, given)[0]:
        project_packages.check_file(wanted)


def _find_packages(
    resolved: Resolved, given: str, python: str = ""
) -> tuple[Wanted | None, list[own_project.Project], str]:
    """The packages and projects of a program, and the command that one of them has to bring, if
    any. Raises UsageError, too, for a program that is neither here nor such a command."""
    word = resolved.program.target
    wanted = project_packages.find_package_files(resolved, given, python)
    projects = own_project.find_own_project(resolved.program, resolved.tree, (), given)
    installed = resolved.installed and not any(word in one.commands for one in projects)
    mistake = Path(word).is_dir() or programs.find_similar(word)
    if (
        not resolved.asked.launcher
        and installed
        and (wanted is None or (mistake and not project_packages.is_named(wanted, word)))
    ):
        raise programs.make_missing_error(word, resolved.program.args)
    return wanted, projects, word if installed else ""


def prepare(
    cluster: Cluster,
    spec: JobSpec,
    resolved: Resolved,
    secrets: Mapping[str, str],
    *,
    number: int,
    requirements: str = "",
    step: Reporter = lambda text: None,
) -> Prepared:
    """Decides everything, touches nothing. Raises LaunchError where it cannot work. `step` gets
    what may take its time."""
    if resolved.program.kind is ProgramKind.BATCH:
        return _prepare_script(cluster, spec, resolved, number=number)
    if spec.in_place:
        raise UsageError(
            f"--in-place works only with a batch script, which {resolved.program.target} is not",
            hint="leave it out: ranks run in a copy of the tree",
        )
    program, tree = resolved.program, resolved.tree
    packages, wanted, command, unread = None, None, "", ""
    own = project_packages.find_setup(resolved)
    if own and (not spec.setup or "setup" in resolved.settings):
        spec = replace(spec, setup=own)  # settings are for all programs
    chosen_python = project_packages.choose_packages(cluster, spec.python)
    chosen_there = spec.venv or spec.modules or spec.container
    if not chosen_there:
        if folder := own_project.find_folder(program, tree.root):
            step(f"finding what the project in {folder.name} has, by its build where that says it")
        resolved = project_packages.recognize_command(resolved, requirements)
        wanted, projects, command = _find_packages(resolved, requirements, spec.python)
        unread = "" if wanted else project_packages.find_unread(resolved, requirements)
        nodes = chosen_python.workers or (chosen_python.launcher,)
        able = [node for node in nodes if node.facts.python] or nodes
        # A script of the project may do without the Python that some node lacks.
        given = spec.python or requirements or program.needs_python
        if wanted and (given or all(node.facts.python for node in nodes)):
            step(f"resolving the packages of {wanted.source} (uv may build some for that)")
            packages, folders = project_packages.resolve_packages(
                wanted, tree, able, in_any_case=bool(spec.python or command)
            )
            projects = own_project.find_own_project(program, tree, folders, requirements)
        if spec.setup:
            packages = project_packages.add_setup(packages, spec.setup, spec.env, tree)
    elif spec.python or spec.setup or resolved.parts or requirements not in ("", NONE):
        named = ("--python" if spec.python else "", "--setup" if spec.setup else "")
        given = next(filter(None, (*named, *resolved.parts, "--requirements")))
        raise UsageError(
            f"{given} cannot be combined with --venv, --module or --container",
            hint="leave one of the two out",
        )
    else:
        projects = own_project.find_own_project(program, tree, (), requirements)
    looks = project_packages.find_script(resolved) is not None
    builds = looks and not (chosen_there or requirements == NONE)
    if looks and not builds:
        projects = [own_project.leave_out_unbuilt(tree, project) for project in projects]
    uses_mpi = programs.may_use_mpi(resolved, spec.backend)
    spec = replace(spec, import_paths=_list_paths(projects), uses_mpi=uses_mpi)
    if packages:
        spec = replace(spec, packages=packages.digest)
    asked, system = resolved.asked, load_system(cluster.system)
    if asked.launcher:
        usual = spec.launcher == "auto"
        first = system.launchers[0] if usual else spec.launcher
        asked = asked.limit_to(first, system.launchers)
        spec, asked = project_words.fill(asked, spec, resolved.settings, cluster)
    job, plan = plan_job(cluster, spec, number=number)
    _check_image(job.spec, tree)
    places = [chosen_python.node(name) for name in list_rank_nodes(job, cluster)]
    notes = [*plan.notes, *resolved.notes, asked.note if asked.launcher else ""]
    everywhere = asked.is_launcher and not (job.spec.nodes or job.spec.hosts or spec.ranks)
    if everywhere and places[1:]:
        notes.append(
            f"{asked.launcher} names no number of nodes: {count(job.ranks, 'rank')} on all"
            f" {len(places)}; `run --nodes 1 …` uses one"
        )
    if wanted and packages and packages.locks:
        notes.append(project_packages.describe_packages(packages, places))
    if spec.setup:
        lines = "; ".join(spec.setup.strip().splitlines())
        notes.append(f"once per node, before the start: {lines}")
    notes += [
        f"{project.title} has compiled parts: {places[0].name} builds it first"
        for project in projects
        if builds and project.compiled
        if not jobs_install.find_built(project, tree, places[0], spec.env)
    ]
    if command:
        notes.append(f"no file {command} here: the packages or nodes have to bring that command")
    script = "/" not in spec.setup and tree.has(os.path.join(program.folder, spec.setup))
    warnings = (
        f"--setup runs lines of sh; for that file: --setup 'sh ./{spec.setup}'" if script else "",
        *(project.warning for project in projects),
        unread,
        project_packages.warn_of_python(wanted, places) if wanted else "",
        programs.warn_of_backend(resolved, spec.backend),
        programs.warn_of_launcher(resolved, job.ranks),
        system.warn_of_sharing(job.spec, cluster.site_info),
        *resolved.findings,
    )
    said = {"notes": tuple(filter(None, notes)), "warnings": tuple(filter(None, warnings))}
    return Prepared(
        job=job,
        cluster=cluster,
        plan=replace(plan, **said),
        tree=own_project.equip_own_project(tree, projects),
        secrets=secrets,
        packages=packages,
        command=command,
        projects=tuple(projects) if builds else (),
    )


def _prepare_script(
    cluster: Cluster, spec: JobSpec, resolved: Resolved, *, number: int
) -> Prepared:
    """A batch script of the user's own, as it is: in the current folder, where that is the login
    node's, else in a copy of its tree."""
    spec = replace(spec, program=resolved.program, env={**resolved.asked.env, **spec.env})
    path = resolved.tree.root / resolved.program.folder / resolved.program.target
    system = load_system(cluster.system)
    system.take_script(spec, cluster, path)
    warning = system.warn_of_script(spec, path.read_text(errors="replace"))
    if spec.array:  # its tasks are the queue's
        spec = replace(spec, array="", native={**spec.native, "array": spec.array})
    tree = resolved.tree
    if _stays(spec.program, cluster):
        spec = replace(spec, in_place=str(tree.root))
    elif spec.in_place:
        raise UsageError(
            f"--in-place works only on the login node: the folder of {resolved.program.target} is"
            " on this machine, where no compute node sees it",
            hint="leave it out: the script starts in a copy of the tree on the login node",
        )
    job, plan = plan_job(cluster, spec, number=number)
    if warning:
        plan = replace(plan, warnings=(*plan.warnings, warning))
    return Prepared(job=job, cluster=cluster, plan=plan, tree=tree, secrets={})


def agree_to_size(store: Store, prepared: Prepared, consent: Consent) -> None:
    """Raises UsageError where packages of gigabytes are not wanted."""
    question = project_packages.make_size_question(prepared.packages, store.home)
    if question and not consent(question):
        raise UsageError(
            "aborted; nothing was started",
            hint=f"`--requirements {NONE}` uses only what the nodes have",
        )


def plan_job(cluster: Cluster, spec: JobSpec, *, number: int) -> tuple[Job, LaunchPlan]:
    """The job's record before it is staged, and how its ranks are started."""
    plan_compilation(spec.program, spec.env)  # its flags may be wrong
    system = load_system(require_ready(cluster).system)
    venv, container = _make_absolute(cluster, spec.venv), _find_image(cluster, spec.container)
    spec = replace(spec, venv=venv, container=container)
    if spec.launcher == "auto":
        spec = replace(spec, launcher=system.launchers[0])
    spec, placement = system.resolve(spec, cluster)
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
    equipped = project_packages.equip_nodes(
        project_packages.choose_packages(cluster, spec.python), spec.packages
    )
    request = launcher.Request(id=number, spec=spec, cluster=equipped, placement=placement)
    return job, system.plan(request)


def _make_absolute(cluster: Cluster, venv: str) -> str:
    """`--venv` as the nodes find it, wherever ranks start: from the current folder, where that is
    the login node's, else from the home folder there."""
    if not venv or venv.startswith(("/", "~")):
        return venv
    return str(Path.cwd() / venv) if cluster.launcher.here else f"~/{venv}"


def _find_image(cluster: Cluster, image: str) -> str:
    """`--container` as the nodes find it: from the current folder, where that is the login node's
    and has it, else from the program's folder."""
    if home := image.startswith("~/") and cluster.site_info.get("home"):
        return home + image[1:]
    if image and cluster.launcher.here and os.path.exists(image):
        return os.path.abspath(image)
    return image


def _check_image(spec: JobSpec, tree: project_tree.Tree) -> None:
    """Raises UsageError where the image of ranks was to come with the tree, and does not."""
    image = spec.container
    if not image or image.startswith(("/", "~")) or "://" in image:
        return
    name = os.path.normpath(os.path.join(spec.program.folder, image))
    if not any(f"{file}/".startswith(f"{name}/") for file in map(str, tree.files)):
        raise UsageError(
            f"--container {image}: no such file among those that are copied",
            hint="an absolute path is one of the nodes; docker://IMAGE is fetched by them",
        )


def submit(
    at: Connected,
    prepared: Prepared,
    carry: jobs_submit.Carry | None = None,
    attend: Callable[[Job], Job] | None = None,
    waits: bool = True,
    find_start: FindStart = control.find_start,
) -> Job:
    """Ships the job and starts it. A job that cannot be started is on record as failed. `attend`:
    sees it through instead. `waits`: somebody waits for its end. `find_start`: tells what became of
    a start that was not answered."""
    job, store = prepared.job, at.store
    if not job.stage:
        job = replace(job, stage=project_tree.write_archive(prepared.tree, store.home))
    if prepared.packages:
        project_packages.save(prepared.packages, store.home)
    project_tree.remove_old(store)
    records.remove_old(store)
    if job.spec.sync:
        fetch.claim(job, store.locate_job_folder(job.id))
    with store.mark_handing_in(job.id), StartSignals() as signals:
        return _ship(at, replace(prepared, job=job), carry, signals, attend, waits, find_start)


def _ship(
    at: Connected,
    prepared: Prepared,
    carry: jobs_submit.Carry | None,
    signals: StartSignals,
    attend: Callable[[Job], Job] | None,
    waits: bool,
    find_start: FindStart,
) -> Job:
    job, cluster = prepared.job, prepared.cluster
    store, pool, report = at.store, at.pool, at.report
    recorded = staging = starting = started = False
    unanswered: NodeUnreachable | jobs_submit.StartKilled | None = None
    try:
        chosen = project_packages.choose_packages(cluster, job.spec.python)
        equipped = project_packages.equip_nodes(chosen, job.spec.packages)
        # While connections are opened.
        files = jobs_submit.make_node_files(job, equipped, prepared.plan, prepared.secrets)
        # Staging may take its time, a node that does not answer may not.
        for name, why in connect_or_report(pool, list_nodes(job, cluster), report).items():
            raise make_error(f"staging job {job.id}", NodeResult(node=name, error=why))
        script = _read_script(job.spec, prepared.tree)
        jobs_submit.check_request(job, cluster, pool, script, waits, report)
        store.save_job(job)
        recorded = True
        names = list_rank_nodes(job, cluster)
        by = jobs_install.Delivery(pool, store.home, report, cluster.id, job.spec.env)
        where = [chosen.node(name) for name in names]
        if job.spec.packages:
            jobs_install.install(job.spec.packages, where, by)
        if any(project.compiled for project in prepared.projects):
            tree = prepared.tree
            projects = jobs_install.build_projects(prepared.projects, tree, where, by)
            tree = own_project.equip_own_project(tree, projects)
            spec = replace(job.spec, import_paths=_list_paths(projects))
            stage = project_tree.write_archive(tree, store.home)
            job = replace(job, spec=spec, stage=stage)
            store.save_job(job)
            files = jobs_submit.make_node_files(job, equipped, prepared.plan, prepared.secrets)
        if prepared.command and prepared.packages and not job.spec.setup:  # which may bring it
            jobs_install.check_command(prepared.command, prepared.packages, where[0], pool)
        staging = True
        put = partial(
            jobs_submit.put,
            *(job, cluster, files, pool, store.home),
            carry=carry,
            report=report,
        )
        at_once = attend is None and jobs_submit.is_brief(job, carry, store.home)
        port = "" if at_once else put()
        if job.spec.setup:
            outputs = store.locate_job_folder(job.id)
            jobs_submit.set_up(job, chosen, names, pool, outputs, report)
        if attend:
            return attend(job)
        with Interrupts():
            signals.start_waiting()
            starting = True
            start = partial(jobs_submit.start, job, cluster, pool, port, report)
            try:
                said = put(starts=True) if at_once else start()
            except (NodeUnreachable, jobs_submit.StartKilled) as error:
                unanswered = error
            else:
                job = load_system(cluster.system).parse_status(job, said)
            started = True  # or may have
            store.save_job(job)
        if unanswered:
            job = _find_out(at, job, unanswered, find_start)
            if control.was_never_staged(job):
                started = False
                raise unanswered
            store.save_job(job)
        found = records.describe_provenance(
            *(job, cluster, prepared.plan, prepared.tree, store), prepared.typed
        )
        store.save_provenance(job.id, found)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if started or (starting and interrupted):
            raise  # its supervisor runs, or may have started in this very moment
        if isinstance(error, UsageError) and not recorded:
            raise
        reason = error.message if isinstance(error, ClusterctlError) else "interrupted"
        state = JobState.CANCELLED if interrupted else JobState.FAILED
        code = 0 if interrupted else getattr(error, "exit_code", 1)
        job = replace(job, state=state, finished=time.time(), reason=reason, start_code=code)
        with Interrupts(patient=True) if interrupted else nullcontext():
            store.save_job(job)
            if interrupted:
                report(f"job {job.id} is cancelled: it had not started")
            if staging:
                jobs_submit.remove_secrets(job, cluster, pool)
        raise
    store.add_event(cluster.name, "job", id=job.id, program=job.spec.program.target)
    return job


def _find_out(at: Connected, job: Job, unanswered: ClusterctlError, find_start: FindStart) -> Job:
    """The job to whose hand-in no answer came: as handed in, for who follows it sees the rest, or
    as never staged. NodeUnreachable where its launcher does not say: it may run, and nothing that
    it needs is removed."""
    name = at.cluster.launcher.name
    at.report(f"{unanswered.message}; asking {name} whether the job is there")
    found = find_start(job, at.cluster, at.pool)
    if found is None:
        raise NodeUnreachable(
            f"{unanswered.message}; {name} has not said since whether the job is there",
            hint=f"`clusterctl jobs` asks again; `clusterctl cancel {job.id}` ends it if it is",
            transient=True,
        ) from unanswered
    if found.state.ended and not control.was_never_staged(found):
        return replace(job, native_id=found.native_id)
    return found


def _read_script(spec: JobSpec, tree: project_tree.Tree) -> str:
    """The text of a batch script of the user's own."""
    if spec.program.kind is not ProgramKind.BATCH:
        return ""
    try:
        path = tree.root / spec.program.folder / spec.program.target
        return path.read_text(errors="replace")
    except OSError:  # of an earlier job, whose tree is packed
        return ""


def _list_paths(projects: Iterable[own_project.Project]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for project in projects for path in project.paths))


def run(
    store: Store,
    prepared: Prepared,
    *,
    on_start: OnJob,
    on_output: OnOutput,
    report: Reporter,
    detach: bool = False,
    pool: Pool | None = None,
    carried: AbstractContextManager[jobs_submit.Carry | None] | None = None,
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
        stop_on_interrupt(at := Connected(store, cluster, pool, report), prepared.job.id),
    ):
        with carried or nullcontext() as carry:
            job = submit(at, prepared, carry, waits=not detach)
        on_start(job)
        if detach:
            return job
        return follow_to_end(at, job, on_output)


def claim_number(store: Store, planned: Prepared, plan: Callable[[int], Prepared]) -> Prepared:
    """The job under a number that is its own: planned again where another command has got it."""
    number = store.reserve_job_id()
    return planned if planned.job.id == number else plan(number)


def find_job(store: Store, number: int) -> Job | None:
    """The job's record, if it has got that far."""
    try:
        return store.read_job(number)
    except RecordError:
        return None


# -------------------------------------------------------------------------------------------------
# `run --emit`: a job as a script that needs no clusterctl.


def emit(prepared: Prepared, kind: str = "sh") -> str:
    """The job as a script that needs no clusterctl. Secrets are left for the caller."""
    cluster = prepared.cluster
    system = load_system(cluster.system)
    if kind != system.emits:
        raise UsageError(
            f"--emit {kind} does not fit cluster {cluster.name!r} ({cluster.spec.provider})",
            hint=f"--emit {system.emits}",
        )
    return system.emit(prepared.job, cluster, prepared.plan, beside=make_copy_command(prepared))


def warn_of_packages(prepared: Prepared, resolved: Resolved, given: str) -> str:
    """That an emitted script does not install what the program asks for; "" where nodes have it."""
    job, cluster = prepared.job, prepared.cluster
    if job.spec.venv or job.spec.modules or job.spec.container:
        return ""
    nodes = [cluster.node(name) for name in list_rank_nodes(job, cluster)]
    resolved = project_packages.recognize_command(resolved, given)
    wanted = project_packages.find_package_files(resolved, given)
    if not wanted or project_packages.have_packages(wanted, resolved.tree, nodes):
        return ""
    return (
        f"the script uses only the packages of the nodes, which may lack some of {wanted.source}:"
        " install them there"
    )


def make_copy_command(prepared: Prepared) -> str:
    """The command that copies here what an emitted script does not hold of a bundled program; ""
    where the program is the user's own."""
    what = prepared.job.spec.program
    if not what.bundled:
        return ""
    root = assets.find_folder("workloads")
    path = project_tree.find_bundled(what.source or what.target) or root
    library = ("trainlib", "data", "cpp") if what.kind is ProgramKind.PYTHON else ()
    beside = path.parent.glob("*.hpp") if what.source else ()
    names = [path, *beside, *(root / name for name in library)]
    return shlex.join(("cp", "-r", *map(str, names), "."))


# -------------------------------------------------------------------------------------------------
# `run --interactive`: a shell or a command of a batch system that takes over the terminal.


def open_terminal(at: Connected, prepared: Prepared, words: Sequence[str]) -> int:
    """A shell, or `words`, in the folder of a job, on nodes that the batch system gives for it:
    takes over this terminal, and returns its exit code. The files that it leaves are outputs."""

    def attend(job: Job) -> Job:
        argv, folder = plan_terminal(at.store, prepared, words)
        at.report(f"job {job.id}: waiting for nodes")
        at.store.save_job(replace(job, reason=IN_A_TERMINAL))
        started = time.time()
        code = process.run_in_foreground(argv, cwd=folder)
        jobs_submit.remove_secrets(job, at.cluster, at.pool)
        state = JobState.FAILED if code else JobState.SUCCEEDED
        ended = replace(job, state=state, started=started, finished=time.time())
        ended = replace(ended, program_exit_code=code)
        at.store.save_job(ended)
        return ended

    return submit(at, prepared, attend=attend).program_exit_code or 0


def plan_terminal(
    store: Store, prepared: Prepared, words: Sequence[str]
) -> tuple[tuple[str, ...], Path]:
    """The command that takes over this terminal, and the folder that it starts in."""
    cluster, job = prepared.cluster, prepared.job
    script = f"{locate_folder(job, cluster, cluster.launcher.name)}/job.sh"
    words = ("/bin/sh", script, "granted", *words)
    argv = load_system(cluster.system).interactive_argv(job.spec, cluster, words)
    if cluster.launcher.here:
        return argv, Path.cwd()
    argv = (*start_ssh(cluster, cluster.launcher, "-t"), shlex.join(argv))
    return argv, store.locate_folder(cluster.name) / "ssh"


# -------------------------------------------------------------------------------------------------
# A job that measures: followed like any other, with its output kept instead of shown.


Printed = dict[tuple[int | None, str], bytes]
"""By rank (None: the launcher) and stream: `stdout` or `stderr`."""


def run_quietly(at: Connected, prepared: Prepared, purpose: str) -> tuple[Job, Printed]:
    """The job as it ended, and all that it wrote. `purpose`: the verb that it is for; its outputs
    are no result."""
    prepared = replace(prepared, job=replace(prepared.job, purpose=purpose, fetched=True))
    printed: Printed = {}

    def listen(pieces: list[Piece]) -> None:
        for piece in pieces:
            source = (piece.rank, piece.stream)
            printed[source] = printed.get(source, b"") + piece.data

    seen: Any = {"on_output": listen, "report": at.report, "pool": at.pool}
    return run(at.store, prepared, on_start=lambda job: None, **seen), printed


def run_bundled(
    at: Connected, purpose: str, program: str, args: tuple[str, ...] = (), **options: Any
) -> tuple[Job, Printed]:
    """A bundled program as a job that measures; `options` are fields of JobSpec."""
    resolved = resolve_run(Run({"command": (program,)}))
    program_with = replace(resolved.program, args=args)
    spec = JobSpec(program=program_with, allow_cpu=True, now=True, **options)
    prepared = prepare(at.cluster, spec, resolved, {}, number=at.store.reserve_job_id())
    return run_quietly(at, prepared, purpose)


# -------------------------------------------------------------------------------------------------
# The last step of `up` on machines that cost money: all ranks reduce, and the sum is right.


PROGRAM = "reduce_all.py"
TIMEOUT = 120.0
"""Seconds that the ranks may take: they sum four numbers."""


def run_all_reduce(at: Connected, program: str = PROGRAM) -> None:
    """Every rank has to hold the sum. Raises BootstrapError with what the ranks said."""
    job, printed = run_bundled(at, "up", program, timeout=TIMEOUT)
    texts = (text.decode(errors="replace") for text in printed.values())
    said = [line for text in texts for line in text.splitlines()]
    proof = next((text for text in said if text.startswith("ok:")), "")
    if job.state is not JobState.SUCCEEDED or not proof:
        raise BootstrapError(
            f"the all-reduce over {count(job.ranks, 'rank')} failed"
            f" (job {job.id}, {job.state.value}):"
            f" {said[-1] if said else job.reason or 'no rank printed anything'}",
            hint=f"`clusterctl logs {job.id}` shows it, `clusterctl up {job.cluster}` tries again",
        )
    at.report(f"all-reduce {proof}")

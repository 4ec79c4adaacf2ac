"""Verbs that start jobs: run, rerun."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from clusterctl.cli.console import Console, plain
from clusterctl.cli.job_output import announce, finish, reporting
from clusterctl.cli.options import (
    ClusterOption,
    JobArgument,
    JsonLines,
    Quiet,
    Verbose,
    applicable,
    duration,
    provider_of,
    values_taken,
)
from clusterctl.cli.rank_output import Printer
from clusterctl.cli.variables import Env, EnvFile, environment
from clusterctl.errors import UsageError
from clusterctl.model import Job, JobSpec, Program, ProgramKind
from clusterctl.scope import limit

BATCH: dict[str, Any] = {"rich_help_panel": "Batch systems"}
Native = Annotated[str | None, typer.Option(help="As Slurm's option of that name.", **BATCH)]
NativeFlag = Annotated[bool, typer.Option(help="As Slurm's option of that name.", **BATCH)]
NATIVE = (
    "queue",
    "project",
    "account",
    "constraint",
    "cpus_per_task",
    "exclude",
    "exclusive",
    "gpu_bind",
    "gpus",
    "gpus_per_node",
    "gpus_per_task",
    "gres",
    "job_name",
    "mail_type",
    "mail_user",
    "mem",
    "mem_per_cpu",
    "mem_per_gpu",
    "nodelist",
    "partition",
    "qos",
    "requeue",
    "reservation",
    "signal",
    "time",
)
"""Parameters of `run` that go to the batch system as they are."""

SLURM_SHORT = {"-N": "--nodes", "-p": "--partition", "-t": "--time"}
"""Short options of sbatch that we do not have, and what to write."""

QUEUES = ("--queue", "--qos")
"""What qsub and sbatch mean by -q."""

Detach = Annotated[bool, typer.Option("--detach", "-d", help="Start it and return.")]


class RunCommand(TyperCommand):
    """Options before SCRIPT are ours, the rest is the script's; `-m MODULE` ends ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = values_taken(self)
        index = 0
        while index < len(args):
            word = args[index]
            joined = re.fullmatch(r"-m.+", word)
            if joined or word == "-m":
                index += 1 if joined else 2
                args = [*args[:index], "--", *args[index:]]
                break
            if word == "--" or not word.startswith("-"):
                break
            if word[:2] in SLURM_SHORT and word not in takes_value:
                raise UsageError(f"there is no option {word[:2]}", hint=SLURM_SHORT[word[:2]])
            index += 1 + takes_value.get(word, 0)
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    app.command(
        cls=RunCommand,
        context_settings={"allow_interspersed_args": False},
        options_metavar="[OPTIONS]",
    )(run)
    app.command()(rerun)


def run(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGS...]", help="A path, or a bundled program's name."),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="A Python module, not SCRIPT.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", min=1, help="How many, in all.")
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option("--ranks-per-node", "--ntasks-per-node", min=1)
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Use this many workers.")] = None,
    backend: Annotated[str, typer.Option(help="auto, gloo, nccl or mpi.")] = "auto",
    launcher: Annotated[
        str | None, typer.Option(help="mpirun, torchrun, or srun in a Slurm job.")
    ] = None,
    env: Env = None,
    env_file: EnvFile = None,
    stage: Annotated[Path | None, typer.Option(help="The folder to copy to the nodes.")] = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(help="Compile this file with SCRIPT; repeatable. Flags: -e CFLAGS=..."),
    ] = None,
    detach: Detach = False,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for other jobs.")] = False,
    timeout: Annotated[str | None, typer.Option(help="End it after this time, e.g. 30m.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="Start again after a failure.")] = 0,
    allow_cpu: Annotated[
        bool, typer.Option("--allow-cpu", help="Let GPU programs run without a GPU.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be run, and why.")
    ] = False,
    emit: Annotated[
        str | None, typer.Option(help="sh, sbatch or qsub: print a script without clusterctl.")
    ] = None,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", help="A shell (or SCRIPT as a command) on nodes.", **BATCH),
    ] = False,
    environment_module: Annotated[
        list[str] | None,
        typer.Option("--module", metavar="NAME", help="Environment module; repeatable.", **BATCH),
    ] = None,
    venv: Annotated[str, typer.Option(help="Virtual environment on the nodes.", **BATCH)] = "",
    container: Annotated[
        str, typer.Option(help="Apptainer image that ranks run in.", **BATCH)
    ] = "",
    pe: Annotated[
        tuple[str, int] | None,
        typer.Option("-pe", metavar="NAME SLOTS", help="Grid Engine: as qsub's -pe.", **BATCH),
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option("-l", metavar="NAME=VALUE", help="Grid Engine: as qsub's -l.", **BATCH),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Grid Engine: as qsub's -q.", **BATCH)] = None,
    project: Annotated[str | None, typer.Option(help="Grid Engine: as qsub's -P.", **BATCH)] = None,
    account: Native = None,
    constraint: Native = None,
    cpus_per_task: Native = None,
    exclude: Native = None,
    exclusive: NativeFlag = False,
    gpu_bind: Native = None,
    gpus: Native = None,
    gpus_per_node: Native = None,
    gpus_per_task: Native = None,
    gres: Native = None,
    job_name: Native = None,
    mail_type: Native = None,
    mail_user: Native = None,
    mem: Native = None,
    mem_per_cpu: Native = None,
    mem_per_gpu: Native = None,
    nodelist: Native = None,
    partition: Native = None,
    qos: Native = None,
    requeue: NativeFlag = False,
    reservation: Native = None,
    signal: Native = None,
    time: Native = None,
    cluster: ClusterOption = None,
    json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a program on all ranks of the cluster and follow it."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    _one_of("--backend", backend, ("auto", "gloo", "nccl", "mpi"))
    if launcher is not None:
        _one_of("--launcher", launcher, ("mpirun", "torchrun", "srun"))
    if emit is not None:
        _one_of("--emit", emit, ("sh", "sbatch", "qsub"))
    words = list(command or [])
    if module is None and not words and not interactive:
        raise UsageError("there is nothing to run", hint="clusterctl run SCRIPT [ARGS...]")

    from clusterctl import actions
    from clusterctl.actions import run as action

    store = actions.open_store()
    if cluster is not None and cluster.isdigit():
        raise UsageError(
            f"-c {cluster}: -c names a cluster", hint=f"Slurm's -c: --cpus-per-task {cluster}"
        )
    chosen = actions.choose(store, cluster)
    doing = {"interactive": interactive, "emit": emit, "terminal": interactive and not dry_run}
    ways = [word for word, wanted in doing.items() if wanted]
    circumstances = {chosen.system, *ways, *(f"{word} {chosen.system}" for word in ways)}
    place = provider_of(chosen.name, chosen.spec.provider)
    given = applicable(context, circumstances, place)
    native = _native(given)
    if interactive:
        shape = JobSpec(
            program=Program(kind=ProgramKind.BINARY, target="interactive"),
            ranks=ranks or 0,
            ranks_per_node=given["ranks_per_node"] or 0,
            nodes=given["nodes"] or 0,
            native=native,
        )
        terminal = action.interactive(store, chosen, shape, words)
        if not dry_run:
            raise typer.Exit(terminal.open())
        console.result(terminal.text)
        console.document({"dry_run": True, "folder": str(terminal.folder), "argv": terminal.argv})
        return
    try:
        resolved = action.resolve(words, module, stage, env_file or [], source or [])
    except UsageError as error:
        queues = [name for name in QUEUES if limit("run", name, circumstances) is None]
        if queues and quiet and words and "no script" in error.message:
            error.hint = f"-q is --quiet; did you mean {queues[0]} {shlex.quote(words[0])}?"
        raise
    variables, secrets = environment(env or [], env_file or [])
    spec = JobSpec(
        program=resolved.program,
        ranks=ranks or 0,
        ranks_per_node=given["ranks_per_node"] or 0,
        nodes=given["nodes"] or 0,
        backend=backend,
        launcher=launcher or "",
        env=variables,
        secret_names=tuple(sorted(secrets)),
        env_files=tuple(str(path.absolute()) for path in env_file or []),
        now=given["now"],
        timeout=0.0 if timeout is None else duration(timeout, "--timeout"),
        retries=retries,
        allow_cpu=allow_cpu,
        native=native,
        modules=tuple(given["environment_module"] or []),
        venv=given["venv"],
        container=given["container"],
    )
    dry = dry_run or emit is not None
    number = action.next_number(store, dry=True)
    prepared = action.prepare(chosen, spec, resolved, secrets, number=number)
    if not dry:
        number = action.next_number(store, dry=False)
        prepared = action.prepare(chosen, spec, resolved, secrets, number=number)
    if emit:
        script = action.emit(prepared, emit)
        console.result(script, raw=True)
        if copying := action.beside(prepared):
            console.note(f"the script expects the program beside it: {copying}")
        console.document({"emit": emit, "script": script})
        return
    if dry_run:
        _print_plan(console, prepared, detach)
        return
    for note in prepared.plan.notes:
        console.note(note)
    if large := resolved.tree.large_files():
        console.tell(f"staging {resolved.tree.describe()}; {large}")
    else:
        console.detail(f"staging {resolved.tree.describe()}")
    with reporting(console, lambda: action.recorded(store, number)), Printer(console) as printer:
        job = action.run(
            store,
            prepared,
            on_start=lambda started: announce(console, started, detach),
            on_output=printer,
            tell=console.tell,
            detach=detach,
        )
    if not detach:
        raise typer.Exit(finish(console, job))


def rerun(
    job: JobArgument,
    resume: Annotated[bool, typer.Option("--resume", help="With the job's outputs.")] = False,
    env: Env = None,
    env_file: EnvFile = None,
    detach: Detach = False,
    cluster: ClusterOption = None,
    json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a job again as it was: same program, files and options."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    from clusterctl import actions
    from clusterctl.actions import jobs as action
    from clusterctl.actions import run as run_action

    store = actions.open_store()
    stored = [Path(name) for name in store.job(job).spec.env_files]
    files = [*(path for path in stored if path.is_file()), *(env_file or [])]
    variables, secrets = environment(env or [], files)
    kept = dict.fromkeys(str(path.absolute()) for path in (*stored, *(env_file or [])))
    given = action.Variables(variables, secrets, tuple(kept))
    number = 0

    def on_start(started: Job) -> None:
        nonlocal number
        number = started.id
        announce(console, started, detach)

    with (
        reporting(console, lambda: run_action.recorded(store, number)),
        Printer(console) as printer,
    ):
        ended = action.rerun(
            store,
            job,
            given,
            resume=resume,
            where=cluster,
            on_start=on_start,
            on_output=printer,
            tell=console.tell,
            detach=detach,
        )
    if not detach:
        raise typer.Exit(finish(console, ended))


def _native(given: dict[str, Any]) -> dict[str, str]:
    """What was given of the batch system's own options; a flag has no value."""
    found = {name.replace("_", "-"): given[name] for name in NATIVE if given[name]}
    if given["pe"]:
        found["pe"] = "{} {}".format(*given["pe"])
    if given["resource"]:
        found["l"] = ",".join(given["resource"])
    return {name: "" if value is True else value for name, value in found.items()}


def _conditions(spec: JobSpec, detach: bool) -> list[str]:
    """What a job is subject to that its command does not show."""
    tries = "1 more time" if spec.retries == 1 else f"{spec.retries} more times"
    rows = (
        (spec.now, "does not wait for other jobs"),
        (spec.timeout, f"ends after {spec.timeout:g} s"),
        (spec.retries, f"starts again after a failure, up to {tries}"),
        (detach, "runs detached: clusterctl returns when it has been handed in"),
    )
    return [text for holds, text in rows if holds]


def _print_plan(console: Console, prepared: Any, detach: bool) -> None:
    job, plan = prepared.job, prepared.plan
    secrets = dict.fromkeys(prepared.secrets, "***")
    conditions, stage = _conditions(job.spec, detach), prepared.tree.describe()
    preview = prepared.preview
    placed = {place.node for place in job.placement}
    lines = [f"# {note}" for note in (*plan.notes, *conditions)]
    lines += [f"# stage: {stage}", ""]
    for title, text in preview.sections:
        lines += [f"# {title}", text]
    lines += ["# every rank"]
    for node, argv in plan.programs.items():
        lines.append(f"{node}: {shlex.join(argv)}" if node in placed else shlex.join(argv))
    lines += ["", "# environment"]
    lines += [f"{name}={value}" for name, value in sorted({**plan.env, **secrets}.items())]
    for node in plan.programs:
        values = plan.node_env[node]
        lines += [f"{node}: {name}={value}" for name, value in sorted(values.items())]
    lines += ["", "# why"]
    lines += [f"{reason.item}: {reason.why}" for reason in plan.reasons]
    console.result("\n".join(lines))
    console.document(
        {
            "dry_run": True,
            "cluster": job.cluster,
            "stage": stage,
            "conditions": conditions,
            "env": {**plan.env, **secrets},
            "programs": plan.programs,
            "reasons": [plain(reason) for reason in plan.reasons],
            **preview.document,
        }
    )


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value in known:
        return
    from difflib import get_close_matches

    close = get_close_matches(value, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose one of: {', '.join(known)}"
    raise UsageError(f"{option} {value!r} is unknown", hint=hint)

"""Verbs about jobs: run, jobs, logs, cancel, fetch, rerun."""

from __future__ import annotations

import json as json_module
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from clusterctl.cli.console import SECRET, Console, ago, plain, table
from clusterctl.cli.options import (
    ClusterOption,
    JobArgument,
    Json,
    Quiet,
    Verbose,
    duration,
)
from clusterctl.errors import UsageError
from clusterctl.model import Job, JobSpec, JobState

EXIT_TIMEOUT = 124
"""As coreutils' timeout(1)."""
EXIT_CANCELLED = 130

Env = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="Variable for all ranks; repeatable."),
]
EnvFile = Annotated[
    list[Path] | None, typer.Option("--env-file", help="NAME=VALUE lines, treated as secrets.")
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Start it and return.")]


class RunCommand(TyperCommand):
    """Options before SCRIPT are ours, the rest is the script's; `-m MODULE` ends ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = {
            name
            for parameter in self.params
            if not getattr(parameter, "is_flag", False)
            for name in parameter.opts
            if name.startswith("-")
        }
        index = 0
        while index < len(args):
            word = args[index]
            if word in ("-m", "--module") and index + 1 < len(args):
                args = [*args[: index + 2], "--", *args[index + 2 :]]
                break
            if word == "--" or not word.startswith("-"):
                break
            index += 2 if word in takes_value else 1
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    app.command(
        cls=RunCommand,
        context_settings={"allow_interspersed_args": False},
        options_metavar="[OPTIONS]",
    )(run)
    for verb in (jobs, logs, cancel, fetch, rerun):
        app.command()(verb)


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGS…]", help="A path, or a bundled program's name."),
    ] = None,
    module: Annotated[
        str | None, typer.Option("--module", "-m", metavar="MODULE", help="Instead of SCRIPT.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", min=1, help="How many, in all.")
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option("--ranks-per-node", "--ntasks-per-node", min=1)
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Use this many workers.")] = None,
    backend: Annotated[str, typer.Option(help="auto, gloo, nccl or mpi.")] = "auto",
    launcher: Annotated[str, typer.Option(help="mpirun or torchrun.")] = "mpirun",
    env: Env = None,
    env_file: EnvFile = None,
    stage: Annotated[Path | None, typer.Option(help="The folder to copy to the nodes.")] = None,
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
    emit: Annotated[str | None, typer.Option(help="sh: print a script without clusterctl.")] = None,
    cluster: ClusterOption = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a program on all ranks of the cluster and follow it."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    _one_of("--backend", backend, ("auto", "gloo", "nccl", "mpi"))
    _one_of("--launcher", launcher, ("mpirun", "torchrun"))
    if emit is not None:
        _one_of("--emit", emit, ("sh",))
    words = list(command or [])
    if module is None and not words:
        raise UsageError("there is nothing to run", hint="clusterctl run SCRIPT [ARGS…]")

    from clusterctl import actions
    from clusterctl.actions import run as action

    store = actions.open_store()
    chosen = actions.choose(store, cluster)
    resolved = action.resolve(words, module, stage)
    variables, secrets = _environment(env or [], env_file or [])
    spec = JobSpec(
        program=resolved.program,
        ranks=ranks or 0,
        ranks_per_node=ranks_per_node or 0,
        nodes=nodes or 0,
        backend=backend,
        launcher=launcher,
        env=variables,
        secret_names=tuple(sorted(secrets)),
        env_files=tuple(str(path.absolute()) for path in env_file or []),
        now=now,
        timeout=duration(timeout, "--timeout") if timeout else 0.0,
        retries=retries,
        allow_cpu=allow_cpu,
    )
    dry = dry_run or emit is not None
    number = action.next_number(store, dry=True)
    prepared = action.prepare(chosen, spec, resolved, secrets, number=number)
    if not dry:
        number = action.next_number(store, dry=False)
        prepared = action.prepare(chosen, spec, resolved, secrets, number=number)
    if emit:
        console.result(action.emit(prepared))
        console.document({"emit": emit, "script": action.emit(prepared)})
        return
    if dry_run:
        _print_plan(console, prepared)
        return
    for note in prepared.plan.notes:
        console.note(note)
    console.detail(f"staging {resolved.tree.describe()}")
    printer = Printer(console)
    job = action.run(
        store,
        prepared,
        on_start=lambda started: _announce(console, started, detach),
        on_lines=printer,
        tell=console.tell,
        detach=detach,
    )
    if not detach:
        raise typer.Exit(_finish(console, job))


def jobs(
    cluster: ClusterOption = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """All jobs, also those of clusters that are gone."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    from clusterctl import actions
    from clusterctl.actions import jobs as action

    found = action.jobs(actions.open_store(), cluster, console.note)
    rows: list[tuple[str, ...]] = [
        ("job", "cluster", "state", "exit", "ranks", "started", "took", "program")
    ]
    for job in found:
        rows.append(
            (
                str(job.id),
                job.cluster,
                job.state.value,
                "-" if job.program_exit_code is None else str(job.program_exit_code),
                str(job.ranks),
                time.strftime("%m-%d %H:%M", time.localtime(job.started or job.created)),
                _took(job),
                " ".join((job.spec.program.target, *job.spec.program.args))[:60],
            )
        )
    if found:
        console.result(table(rows))
    else:
        console.note("no jobs yet; `clusterctl run SCRIPT` makes one")
    console.document({"jobs": [_job(job) for job in found]})


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """A job's output; -f attaches to a running one (Ctrl-C detaches)."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    from clusterctl import actions
    from clusterctl.actions import jobs as action

    printer = Printer(console, only=rank)
    try:
        for lines in action.logs(actions.open_store(), job, follow=follow):
            printer(lines)
    except KeyboardInterrupt:
        console.note(f"\ndetached from job {job}; it goes on")
        raise typer.Exit(130) from None


def cancel(
    job: JobArgument, json: Json = False, quiet: Quiet = False, verbose: Verbose = False
) -> None:
    """End a job on all nodes, and check that nothing of it is left."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    from clusterctl import actions
    from clusterctl.actions import jobs as action

    ended = action.cancel(actions.open_store(), job)
    left = {name: count for name, count in ended.survivors.items() if count}
    console.result(f"job {job} is {ended.state.value}: {action.survivors_text(ended)}")
    console.document({"job": _job(ended)})
    if left:
        raise typer.Exit(4)


def fetch(
    job: JobArgument,
    to: Annotated[Path | None, typer.Option(help="Folder (default: job-N here).")] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Bring the files that a job made, from all its nodes."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    from clusterctl import actions
    from clusterctl.actions import jobs as action

    got = action.fetch(actions.open_store(), job, to)
    if got.outputs:
        console.result("\n".join(f"{got.folder}/{item.node}/{item.path}" for item in got.outputs))
    else:
        console.note(f"job {job} has made no files")
    console.document(
        {"job": job, "folder": str(got.folder), "files": [plain(item) for item in got.outputs]}
    )


def rerun(
    job: JobArgument,
    resume: Annotated[bool, typer.Option("--resume", help="With the job's outputs.")] = False,
    env: Env = None,
    env_file: EnvFile = None,
    detach: Detach = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a job again as it was: same program, files and options."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    from clusterctl import actions
    from clusterctl.actions import jobs as action

    store = actions.open_store()
    stored = [Path(name) for name in store.job(job).spec.env_files]
    files = [*(path for path in stored if path.is_file()), *(env_file or [])]
    variables, secrets = _environment(env or [], files)
    ended = action.rerun(
        store,
        job,
        {**variables, **secrets},
        resume=resume,
        on_start=lambda started: _announce(console, started, detach),
        on_lines=Printer(console),
        tell=console.tell,
        detach=detach,
    )
    if not detach:
        raise typer.Exit(_finish(console, ended))


class Printer:
    """Ranks' lines: tagged with the rank, stdout to stdout and stderr to stderr."""

    def __init__(self, console: Console, only: int | None = None) -> None:
        self._json = console.json
        self._only = only
        self._streams = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}

    def __call__(self, lines: Iterable[Any]) -> None:
        if self._json:
            self._documents(lines)
            return
        touched: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        for line in lines:
            if self._only is None or line.rank == self._only:
                tag = b"agent" if line.rank is None else b"%d" % line.rank
                touched[line.stream].append(b"[%s] %s\n" % (tag, line.text))
        for stream, parts in touched.items():
            if parts:
                self._streams[stream].write(b"".join(parts))
                self._streams[stream].flush()

    def _documents(self, lines: Iterable[Any]) -> None:
        rows = [
            json_module.dumps(
                {
                    "rank": line.rank,
                    "stream": line.stream,
                    "line": line.text.decode(errors="replace"),
                }
            )
            for line in lines
            if self._only is None or line.rank == self._only
        ]
        if rows:
            sys.stdout.write("\n".join(rows) + "\n")
            sys.stdout.flush()


def _announce(console: Console, job: Job, detach: bool) -> None:
    where = ", ".join(
        f"{place.count} on {place.node}" if place.count > 1 else place.node
        for place in job.placement
    )
    plural = "rank" if job.ranks == 1 else "ranks"
    console.tell(f"job {job.id}: {job.ranks} {plural} ({where}), {job.state.value}")
    if detach:
        console.note(f"follow it with `clusterctl logs {job.id} -f`")
        console.document({"id": job.id, "cluster": job.cluster, "state": job.state})


def _finish(console: Console, job: Job) -> int:
    """The summary, and the exit code of `run`."""
    code = job.program_exit_code
    how = job.state.value
    failure = job.failure
    if job.state is JobState.SUCCEEDED:
        console.tell(f"job {job.id} succeeded in {_took(job)}")
        result = 0
    elif job.state is JobState.FAILED:
        if failure:
            how = f"rank {failure.rank} on {failure.node} {_exit_text(failure.exit_code)}"
        else:
            how = _exit_text(code or 1)
        console.tell(f"job {job.id} failed after {_took(job)}: {how}")
        result = code or 1
    elif job.state is JobState.TIMEOUT:
        console.tell(f"job {job.id} was ended after its --timeout of {job.spec.timeout:g} s")
        result = EXIT_TIMEOUT
    else:
        console.tell(f"job {job.id} was {how}")
        result = EXIT_CANCELLED
    if console.json:
        sys.stdout.write(json_module.dumps({"schema": 1, **_job(job), "exit_code": result}) + "\n")
        sys.stdout.flush()
    return result


def _exit_text(code: int) -> str:
    if code > 128:
        import signal

        try:
            return f"was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exited {code}"


def _took(job: Job) -> str:
    if job.started is None:
        return "-"
    return ago((job.finished or time.time()) - job.started)


def _job(job: Job) -> dict[str, Any]:
    took = (job.finished or time.time()) - job.started if job.started else None
    return {
        "id": job.id,
        "cluster": job.cluster,
        "cluster_id": job.cluster_id,
        "state": job.state.value,
        "program": job.spec.program.target,
        "args": list(job.spec.program.args),
        "ranks": job.ranks,
        "placement": {place.node: list(place.ranks) for place in job.placement},
        "program_exit_code": job.program_exit_code,
        "failure": plain(job.failure),
        "reason": job.reason,
        "created": job.created,
        "started": job.started,
        "finished": job.finished,
        "seconds": None if took is None else round(took, 3),
        "attempt": job.attempt,
        "survivors": job.survivors,
        "rerun_of": job.rerun_of,
        "env": job.spec.env,
        "secrets": dict.fromkeys(job.spec.secret_names, "***"),
    }


def _print_plan(console: Console, prepared: Any) -> None:
    job, plan = prepared.job, prepared.plan
    secrets = dict.fromkeys(prepared.secrets, "***")
    lines = [f"# {note}" for note in plan.notes]
    lines += [f"# stage: {prepared.tree.describe()}", "", "# hostfile", plan.files["hostfile"]]
    lines += ["# on " + prepared.cluster.launcher.name, prepared.command, ""]
    if plan.agents:
        lines += ["# torchrun, on each node", *(f"{n}: {a}" for n, a in plan.agents.items()), ""]
    lines += ["# every rank", *(f"{n}: {shlex.join(p)}" for n, p in plan.programs.items()), ""]
    lines += ["# environment"]
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
            "argv": plan.argv,
            "env": {**plan.env, **secrets},
            "node_env": plan.node_env,
            "programs": plan.programs,
            "agents": plan.agents,
            "files": plan.files,
            "reasons": [plain(reason) for reason in plan.reasons],
            "notes": plan.notes,
            "placement": {place.node: list(place.ranks) for place in job.placement},
        }
    )


def _environment(pairs: list[str], files: list[Path]) -> tuple[dict[str, str], dict[str, str]]:
    """Variables and secrets: from a file, all are secrets; else the name decides."""
    variables: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for path in files:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--env-file {path}: {error}", hint="name a readable file") from error
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip().removeprefix("export ")
            if line and not line.startswith("#"):
                name, sign, value = line.partition("=")
                _check_variable(name, sign, f"{path}, line {number}")
                secrets[name] = _unquote(value)
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            if name not in os.environ:
                raise UsageError(f"--env {name}: it is not set here", hint=f"--env {name}=VALUE")
            value = os.environ[name]
        _check_variable(name, "=", "--env")
        secrets.pop(name, None)
        variables.pop(name, None)
        (secrets if SECRET.search(name) else variables)[name] = value
    return variables, secrets


def _check_variable(name: str, sign: str, where: str) -> None:
    if not sign or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"{where}: {name!r} is not NAME=VALUE", hint="letters, digits and _")


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value in known:
        return
    from difflib import get_close_matches

    close = get_close_matches(value, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose one of: {', '.join(known)}"
    raise UsageError(f"{option} {value!r} is unknown", hint=hint)

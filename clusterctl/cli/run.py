"""`run` and `rerun`: the job's input, its plan and its start, and what is shown of it.

Of standard input: the shell's `< FILE` is for this command alone. Anything else may belong to a
loop of the shell, to cron or to a terminal: without --stdin not one byte of it is read.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import sys
import termios
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import typer
from msgspec.structs import replace

from clusterctl.actions import common, node_loss
from clusterctl.actions import run as actions_run
from clusterctl.actions.common import Connected
from clusterctl.actions.run import LARGEST_INPUT, Prepared
from clusterctl.cli import output
from clusterctl.cli.console import Console, make_plain
from clusterctl.core.job import Job, JobSpec
from clusterctl.core.model import Cluster
from clusterctl.core.text import count, format_bytes
from clusterctl.core.variables import read_variables
from clusterctl.errors import UsageError
from clusterctl.options import batch_systems
from clusterctl.options.verbs import Rerun, Run
from clusterctl.project.program import Resolved
from clusterctl.project.tree import Stdin, suggest_limit
from clusterctl.state.store import Store

FILE = 0
SHELL = "sh"
"""Stands for the user's own."""
CHUNK = 1 << 20
"""Bytes that are read at a time."""


def read_input(given: Run) -> Stdin | None:
    """What `run` gives to rank 0. Raises UsageError for more than --max-stage allows."""
    return read_stdin(piped=given.stdin, limit=given.max_stage or LARGEST_INPUT)


def read_stdin(*, piped: bool, limit: int = LARGEST_INPUT) -> Stdin | None:
    """A file that the shell has opened for this command; with `piped`, all that comes until its
    end. None: rank 0 gets nothing. `limit`: bytes.

    Raises UsageError for more than that, and for `piped` where there is nothing to read from.
    """
    mode = _find_mode()
    if not mode or (piped and os.isatty(FILE)):
        if piped:
            what = "a terminal" if mode else "closed"
            raise UsageError(
                f"--stdin: standard input is {what}",
                hint="redirect a file or a pipe to it, or leave --stdin out",
            )
        return None
    name = _find_name()
    if not stat.S_ISREG(mode):
        return Stdin(name, _read_rest(name, limit)) if piped else None
    at = os.lseek(FILE, 0, os.SEEK_CUR)
    if at and not piped:
        return None  # a loop of the shell reads from it, too
    size = os.fstat(FILE).st_size - at
    if size > limit:
        raise _make_too_large_error(name, format_bytes(size), limit, suggest_limit(size))
    data = _read_rest(name, limit, None if piped else 0)
    return Stdin(name, data) if data or piped else None


def warn_of_pipe(console: Console) -> None:
    """That bytes wait in a pipe which nobody is going to read. They stay there."""
    mode = _find_mode()
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        with suppress(OSError):
            if any(fcntl.ioctl(FILE, termios.FIONREAD, bytes(4))):
                console.warn(
                    "standard input is a pipe and is not passed to the program;"
                    " `run --stdin` passes it"
                )


def _find_mode() -> int:
    """The type of what is there; 0 if it is closed, or open for writing alone (nohup)."""
    with suppress(OSError):
        writes = fcntl.fcntl(FILE, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        if sys.__stdin__ is not None and not writes:  # else its number may be that of our own file
            return os.fstat(FILE).st_mode
    return 0


def _find_name() -> str:
    """The file that it is, as seen from here; "a pipe" for what has no name."""
    with suppress(OSError):
        path = os.readlink(f"/proc/self/fd/{FILE}")
        if os.path.exists(path):
            here = os.path.relpath(path)
            return path if here.startswith("../") else here
    return "a pipe"


def _read_rest(name: str, limit: int, start: int | None = None) -> bytes:
    """From `start`, without a trace: a loop of the shell may give one file to many commands."""
    found = bytearray()
    try:
        while data := (
            os.read(FILE, CHUNK) if start is None else os.pread(FILE, CHUNK, start + len(found))
        ):
            found += data
            if len(found) > limit:
                raise _make_too_large_error(name, f"more than {format_bytes(limit)}", limit)
    except OSError as error:
        raise UsageError(
            f"standard input ({name}) cannot be read: {error.strerror}",
            hint="redirect a file or a pipe to it",
        ) from error
    return bytes(found)


def _make_too_large_error(name: str, size: str, limit: int, fits: str = "") -> UsageError:
    return UsageError(
        f"standard input ({name}) is too large to copy: {size} (limit: {format_bytes(limit)})",
        hint=f"raise the limit with --max-stage{fits}, copy the file with `clusterctl data push`,"
        " or give no input: </dev/null",
    )


# -------------------------------------------------------------------------------------------------
# Verbs that start jobs: run, rerun.


def run(given: Run, console: Console, stdin: Stdin | None = None) -> None:
    """`stdin`: what was read from standard input already."""
    if not (given.python_module or given.command or given.interactive):
        raise UsageError("nothing to run", hint="clusterctl run SCRIPT [ARGS...]")
    store, chosen = common.open_cluster(given.cluster)
    place = f"the provider of cluster {chosen.name!r} is {chosen.spec.provider}"
    given = given.apply_limits(_list_circumstances(given, chosen), console.note, place)
    if given.interactive and not given.command:
        given = Run({**given.values, "command": ("--", SHELL)}, given.typed, given.settings)
    resolved = actions_run.resolve_run(
        given, stdin or (None if given.interactive else read_input(given)), chosen
    )
    spec, secrets = actions_run.make_spec(given, resolved.program)
    if given.once:
        _check_once(given, resolved)
    node_loss.check_node_loss(spec.on_node_loss, chosen)
    needs = "none" if given.emit else given.requirements

    def plan(number: int) -> Prepared:
        found = actions_run.prepare(
            *(chosen, spec, resolved, secrets),
            number=number,
            requirements=needs,
            step=console.step,
        )
        return replace(found, typed=console.arguments)

    if given.interactive and resolved.program.source:
        raise UsageError(
            f"--interactive does not compile {resolved.program.source}",
            hint="open a shell, and compile it there: mpicc or mpicxx",
        )
    with ExitStack() as opened:
        pool = None
        if not (given.emit or given.dry_run):
            pool = opened.enter_context(common.open_pool(store, chosen))
            common.connect_ahead(pool, chosen)
        with console.show_waiting():
            console.step("preparing the program")
            prepared = plan(store.read_next_job_id())
        if pool:
            consent = (lambda question: True) if given.yes else console.consent
            actions_run.agree_to_size(store, prepared, consent)
            prepared = actions_run.claim_number(store, prepared, plan)
            if given.interactive:
                at = Connected(store, chosen, pool, console.report)
                raise typer.Exit(actions_run.open_terminal(at, prepared, _list_words(prepared)))
            start = partial(actions_run.run, store, prepared, pool=pool)
            _start(console, store, prepared, given, start)
    if given.emit:
        if stdin := resolved.tree.stdin:
            raise UsageError(
                f"an emitted script does not hold standard input: {stdin.describe()}",
                hint="give it to the program in the script, and none to this command: </dev/null",
            )
        script = actions_run.emit(prepared, given.emit)
        console.result(script, raw=True)
        if copying := actions_run.make_copy_command(prepared):
            console.note(f"the script expects the program in its folder: {copying}")
        if lacks := actions_run.warn_of_packages(prepared, resolved, given.requirements):
            console.warn(lacks)
        console.document(emit=given.emit, script=script)
    elif given.dry_run:
        terminal: dict[str, Any] = {}
        if given.interactive:
            argv, folder = actions_run.plan_terminal(store, prepared, _list_words(prepared))
            terminal = {"folder": str(folder), "argv": argv}
        _print_plan(console, prepared, given, terminal)


def _list_circumstances(given: Run, chosen: Cluster) -> set[str]:
    """Which of those of `limits` hold for this command line."""
    doing = {
        "interactive": given.interactive,
        "emit": given.emit,
        "detach": given.detach,
        "once": given.once,
        "array": given.array,
        "terminal": given.interactive and not given.dry_run,
    }
    ways = [word for word, wanted in doing.items() if wanted]
    return {chosen.system, given.launcher, *ways, *(f"{word} {chosen.system}" for word in ways)}


def _check_once(given: Run, resolved: Resolved) -> None:
    """Raises UsageError for another number of ranks on the command line."""
    flags = ("--ranks", "--ranks-per-node", "--nodes", *batch_systems.SIZES, "--sweep", "--array")
    options = Run.spellings()
    others = [flag for flag in flags if options[flag].key in given.typed]
    asked = resolved.asked
    others += [
        asked.typed[name] for name in ("ranks", "ranks_per_node", "nodes") if asked.sizes.get(name)
    ]
    if others:
        raise UsageError(
            f"--once cannot be combined with {others[0]}", hint="leave one of the two out"
        )


def _list_words(prepared: Prepared) -> tuple[str, ...]:
    """What takes over the terminal; () for a shell."""
    [words] = prepared.plan.programs.values()
    return () if words == (SHELL,) else tuple(words)


def _start(
    console: Console, store: Store, prepared: Prepared, given: Run, start: Callable[..., Job]
) -> None:
    """Runs the job; exits with its code, unless it runs detached."""
    for note in prepared.plan.notes:
        console.note(note)
    for warning in prepared.plan.warnings:
        console.warn(warning)
    console.detail(f"copying {prepared.tree.describe()}")
    if not prepared.tree.stdin:
        warn_of_pipe(console)
    _follow(
        *(console, store, given.detach, prepared.job.id, prepared.secrets),
        start,
        given.notify,
    )


def _follow(
    console: Console,
    store: Store,
    detach: bool,
    number: int,
    secrets: Mapping[str, str],
    start: Callable[..., Job],
    notify: str = "",
) -> None:
    """Starts a job and shows what it does; exits with its code, unless it runs detached. `number`:
    its own, 0 where `start` chooses it. `notify`: whom to tell that it has ended."""
    copying = output.show_staging(console)

    def on_start(started: Job) -> None:
        nonlocal number
        number = started.id
        copying.close()
        output.announce(console, started, detach)

    def tell_end() -> None:
        """However this command ends: a job that has not ended may still run."""
        from clusterctl.actions.notify import notify as tell  # for few jobs

        job = actions_run.find_job(store, number)
        if (
            job
            and job.state.ended
            and (failed := tell(notify, output.describe_end(job), output.document(job)))
        ):
            console.warn(f"--notify: {failed}")

    with (
        ExitStack() as ending,
        copying,
        output.report_result(console, lambda: actions_run.find_job(store, number)),
        output.Printer(console) as printer,
    ):
        if notify:
            ending.callback(tell_end)
        seen: Any = {"on_output": printer, "report": console.report}
        first = partial(start, detach=detach, **seen)
        if detach:
            first(on_start=on_start)
            return
        ended = node_loss.run_again(
            *(store, number, lambda note: first(on_start=note), secrets), on_start=on_start, **seen
        )
    raise typer.Exit(output.finish(console, ended))


def rerun(given: Rerun, console: Console) -> None:
    from clusterctl.actions import rerun as actions_rerun

    if other := read_stdin(piped=False):
        raise UsageError(
            f"rerun gives the program the standard input of the earlier job, not {other.name}",
            hint="use `clusterctl run`, or leave it out",
        )
    store, job = output.choose_number(given, console)
    stored = [Path(name) for name in store.read_job(job).spec.env_files]
    files = [*(path for path in stored if path.is_file()), *given.env_file]
    variables, secrets = read_variables(given.variables, files)
    kept = dict.fromkeys(str(path.absolute()) for path in (*stored, *given.env_file))
    changed = actions_rerun.Changes(
        variables, secrets, tuple(kept), given.arguments, given.ranks, given.failed
    )
    _follow(
        *(console, store, given.detach, 0, secrets),
        lambda **seen: actions_rerun.rerun(
            store, job, changed, resume=given.resume, where=given.cluster, **seen
        ),
    )


def _describe_conditions(spec: JobSpec, detach: bool, stdin: Stdin | None) -> list[str]:
    """What a job is subject to that its command does not show."""
    later = "by the next `clusterctl logs -f`"
    by = later if detach else f"by this command, or {later} if this one has ended"
    if detach and spec.on_node_loss == "shrink":
        by = f"by the job's supervisor on the launcher, or {later}"
    tries = count(spec.retries, "more time")
    reader = "each point" if spec.is_sweep else "rank 0"
    rows = (
        (stdin, f"{reader} reads {stdin.describe() if stdin else ''} from its standard input"),
        (spec.now, "does not wait for other jobs"),
        (spec.timeout, f"ends after {spec.timeout:g} s"),
        (spec.hang_timeout, f"ends an attempt that prints nothing for {spec.hang_timeout:g} s"),
        (spec.grace, f"gives ranks {spec.grace:g} s to save after SIGTERM"),
        (spec.pass_signal, "gives ranks the site's own signal before its time limit, not SIGTERM"),
        (spec.on_node_loss, f"if nodes are lost: {spec.on_node_loss}, {by}"),
        (spec.keep_files, f"copies {', '.join(spec.keep_files)} to the launcher while it runs"),
        (spec.sync, f"copies outputs to {spec.sync} while it runs"),
        (spec.retries, f"starts again after a failure, up to {tries}"),
        (spec.resume_args, f"adds {spec.resume_args} when it continues from a snapshot"),
        (detach, "runs detached: clusterctl returns once the job is submitted"),
    )
    return [text for holds, text in rows if holds]


def _print_plan(console: Console, prepared: Any, given: Run, terminal: Mapping[str, Any]) -> None:
    job, plan = prepared.job, prepared.plan
    secrets = dict.fromkeys(prepared.secrets, "***")
    stage, stdin = prepared.tree.describe(), prepared.tree.stdin
    conditions = _describe_conditions(job.spec, given.detach, stdin)
    if given.notify:
        conditions.append(f"tells of its end: {given.notify}")
    preview = prepared.preview
    placed = {place.node for place in job.placement}
    lines = [f"# {note}" for note in (*plan.notes, *plan.warnings, *conditions)]
    lines += [] if job.spec.in_place else [f"# stage: {stage}", ""]
    if terminal:
        line = f"cd {shlex.quote(terminal['folder'])} && {shlex.join(terminal['argv'])}"
        lines += ["# takes over this terminal", line, ""]
    for title, text in preview.sections:
        lines += [f"# {title}", text]
    if plan.programs:
        lines.append("# every rank")
        for node, argv in plan.programs.items():
            lines.append(f"{node}: {shlex.join(argv)}" if node in placed else shlex.join(argv))
        lines += ["", "# environment"]
        lines += [f"{name}={value}" for name, value in sorted({**plan.env, **secrets}.items())]
        for node in plan.programs:
            own = sorted(plan.node_env[node].items())
            lines += [f"{node}: {name}={value}" for name, value in own]
        lines += ["", "# why", *(f"{reason.item}: {reason.why}" for reason in plan.reasons)]
    console.result("\n".join(lines))
    console.document(
        dry_run=True,
        cluster=job.cluster,
        stage=stage,
        stdin=stdin and {"name": stdin.name, "bytes": len(stdin.data)},
        conditions=conditions,
        notes=(*plan.notes, *plan.warnings),
        env={**plan.env, **secrets},
        programs=plan.programs,
        reasons=[make_plain(reason) for reason in plan.reasons],
        **preview.document,
        **terminal,
    )

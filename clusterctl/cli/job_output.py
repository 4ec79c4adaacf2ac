"""A job as people and programs see it: its start, its end, its record."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from clusterctl.cli.console import Console, ago, escape, make_plain, pick, redact, redact_arguments
from clusterctl.errors import ClusterctlError, ProviderError, UsageError
from clusterctl.formats import count
from clusterctl.job_model import UNPLACED, Job, JobState, describe_exit

if TYPE_CHECKING:
    from clusterctl.actions import Store
    from clusterctl.actions.jobs import Fetched
    from clusterctl.options.jobs import Cancel, Doctor, Fetch, Logs, Top
    from clusterctl.options.run import Rerun

EXIT_TIMEOUT = 124
"""As coreutils' timeout(1)."""
EXIT_CANCELLED = 130


def show_staging(console: Console) -> ExitStack:
    """Tells how far the copies of a job's files are. Close it when the job starts: from then on,
    the screen is the job's."""
    from clusterctl import actions

    stack = ExitStack()
    # Lines in a pipe are about copies alone.
    moved = actions.count_moved if sys.stderr.isatty() else actions.count_copied
    stack.enter_context(console.show_waiting(moved=moved, only_copies=True))
    return stack


def announce(console: Console, job: Job, detach: bool) -> None:
    where = ", ".join(
        f"{place.count} on {place.node}" if place.count > 1 else place.node
        for place in job.placement
        if place.node != UNPLACED
    )
    places = f" ({where})" if where else ""
    native = f" ({job.scheduler} {job.native_id})" if job.native_id else ""
    size = "1 process" if job.spec.once else count(job.ranks, "rank")
    if job.spec.is_sweep:
        size = f"{count(len(job.processes), 'point')}, {job.ranks} at a time"
    console.report(f"job {job.id}: {size}{places}, {job.state.value}{native}")
    if detach:
        console.note(f"follow it with `clusterctl logs {job.id} -f`")
        console.document(pick(job, "id", "cluster", "state", "native_id"))


def finish(console: Console, job: Job) -> int:
    """The summary, and the exit code of `run`."""
    from clusterctl.actions.job_failure import explain_failure

    code, error = job.program_exit_code, explain_failure(job)
    how = job.state.value
    failure = job.failure
    if job.state is JobState.SUCCEEDED:
        console.report(f"job {job.id} succeeded in {format_duration(job)}")
        if job.never_met:
            console.note(
                f"none of the {job.ranks} ranks joined a process group of torch.distributed or used"
                " MPI: unless they share the work in another way, each did all of it; to train"
                " together, call init_process_group() in every rank"
                ' (Lightning: Trainer(strategy="ddp", num_nodes=…)); for one process: --once'
            )
        result = 0
    elif job.state is JobState.FAILED:
        if failure and job.spec.is_sweep:
            how = f"{job.reason}; `clusterctl rerun {job.id} --failed` runs them again"
        elif failure:
            how = failure.text + (f"; {job.reason}" if job.reason else "")
        else:
            how = job.reason or describe_exit(code or 1)
        console.report(f"job {job.id} failed after {format_duration(job)}: {how}")
        result = error.exit_code if error else code or 1
    elif job.state is JobState.TIMEOUT:
        from clusterctl.actions.jobs import describe_survivors

        limit = f"--timeout of {job.spec.timeout:g} s"
        if not job.spec.timeout:
            limit = "time limit in the queue"
        console.report(f"job {job.id} was stopped after its {limit}: {describe_survivors(job)}")
        result = EXIT_TIMEOUT
    else:
        why = f": {job.reason}" if job.reason else ""
        console.report(f"job {job.id} was {how}{why}")
        result = error.exit_code if error else EXIT_CANCELLED
    _write_result(console, job, result)
    return result


def note_fetched(console: Console, fetched: Fetched) -> None:
    """What a person has to know of files that were brought, or were not."""
    brought, folder = fetched.brought, fetched.folder
    copied = {output.node for output in brought.outputs if output.copied}
    for name, why in fetched.missing.items():
        what = "later files were not copied" if name in copied else "its files were not copied"
        console.note(f"{name} does not answer; {what}: {why}")
    for line in brought.left_out:
        console.note(line)
    for place in brought.kept:
        console.note(
            f"kept {folder}/{place}, which has changed since it was"
            " fetched; to get the node's file, move it away and fetch again"
        )
    for place in brought.core_dumps:
        console.note(
            f"warning: {folder}/{place} is a core dump: it contains the program's memory,"
            " including its secrets"
        )


def document_fetched(fetched: Fetched) -> dict[str, Any]:
    brought = fetched.brought
    return {
        **pick(fetched, "job", "folder", "missing"),
        "files": brought.outputs,
        **pick(brought, "kept", "left_out", "core_dumps"),
        "failed": [error.message for error in fetched.failed],
    }


@contextmanager
def report_result(console: Console, latest: Callable[[], Job | None]) -> Iterator[None]:
    """With --json, a run that ends by an error or by Ctrl-C still ends with a result object.

    One that is told to end (SIGTERM, a closed terminal), or that can no longer write, leaves its
    job alone, and says so.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        _say_it_goes_on(console, latest())
        os._exit(128 + number)  # raising here could leave locks of the SSH library held

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, leave)
    try:
        yield
    except OSError as error:
        if not isinstance(error, ClusterctlError):
            _say_it_goes_on(console, latest())
            raise
        if job := latest():
            _write_result(console, job, error.exit_code)
        raise
    except (ClusterctlError, KeyboardInterrupt) as error:
        job = latest()
        if job and isinstance(error, (UsageError, ProviderError)) and not job.state.ended:
            # The record could not be written, so it does not tell how the job is.
            console.note(
                f"no longer following job {job.id}; `clusterctl jobs` shows whether it still runs"
            )
        elif job and isinstance(error, ClusterctlError):
            _say_it_goes_on(console, job)
        if job:
            _write_result(console, job, getattr(error, "exit_code", EXIT_CANCELLED))
        raise


def _say_it_goes_on(console: Console, job: Job | None) -> None:
    if job and not job.state.ended:
        doing = "stays queued" if job.state is JobState.QUEUED else "keeps running"
        console.note(f"job {job.id} {doing}; follow it with `clusterctl logs {job.id} -f`")


def _write_result(console: Console, job: Job, code: int) -> None:
    if console.json:
        sys.stdout.write(json.dumps({"schema": 1, **document(job), "exit_code": code}) + "\n")
        sys.stdout.flush()
        console.reported = True


def _count_points(job: Job) -> dict[str, Any]:
    return {
        "total": len(job.processes),
        "ended": len(job.points_ended),
        "failed": [int(number) for number, code in job.points_ended.items() if code],
    }


def describe_size(job: Job) -> str:
    """The number of ranks; of a sweep, how many of its points have ended, and failed."""
    if not job.spec.is_sweep:
        return str(job.ranks)
    failed = sum(code != 0 for code in job.points_ended.values())
    text = f"{len(job.points_ended)}/{len(job.processes)}"
    return f"{text} ({failed} failed)" if failed else text


def format_duration(job: Job) -> str:
    seconds = _measure_seconds(job)
    return "-" if seconds is None else ago(seconds)


def _measure_seconds(job: Job) -> float | None:
    """How long the job has run; None: it has not, or nobody knows when it ended."""
    if job.started is None:
        return None
    now = None if job.state.ended else time.time()
    end = job.finished or now
    return end - job.started if end else None


def document(job: Job) -> dict[str, Any]:
    seconds = _measure_seconds(job)
    found = {
        **pick(job, "id", "cluster", "cluster_id", "state", "native_id"),
        "program": job.spec.program.target,
        "args": redact_arguments(job.spec.program.args),
        "ranks": job.ranks,
        **({"points": _count_points(job)} if job.spec.is_sweep else {}),
        "placement": {place.node: list(place.ranks) for place in job.placement},
        **pick(job, "program_exit_code", "failure", "reason", "created", "started", "finished"),
        "seconds": None if seconds is None else round(seconds, 3),
        **pick(job, "attempt", "survivors", "rerun_of", "purpose"),
        "env": {name: redact(value) for name, value in job.spec.env.items()},
        "secrets": dict.fromkeys(job.spec.secret_names, "***"),
    }
    return {name: make_plain(value) for name, value in found.items()}


def choose_number(
    given: Logs | Cancel | Fetch | Doctor | Top | Rerun,
    store: Store,
    console: Console,
) -> int:
    """That of the job that is meant; which one it is is said where none was named."""
    if given.job is not None:
        return given.job
    from clusterctl.actions import jobs as action
    from clusterctl.options.jobs import Cancel
    from clusterctl.options.run import Rerun

    # `rerun` names the cluster where it is to run, not the one where it ran.
    where = None if isinstance(given, Rerun) else given.cluster
    last = action.find_last_job(store, where, open_first=isinstance(given, Cancel))
    console.report(f"job {last.id}: {quote_command(last)}")
    return last.id


def quote_command(job: Job) -> str:
    """In one cell: nothing in a command line can reach the terminal as a command."""
    return format_cell(shlex.join((job.spec.program.target, *job.spec.program.args)))


def format_cell(text: str) -> str:
    text = escape(text)
    return text if len(text) <= 60 else f"{text[:59]}…"

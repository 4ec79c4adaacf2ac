"""Verbs about jobs that exist: jobs, logs, cancel, fetch."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping

import typer

from clusterctl import actions
from clusterctl.actions import Store, cost
from clusterctl.actions import jobs as action
from clusterctl.actions.jobs import Choice
from clusterctl.cli.console import Console, printable, table
from clusterctl.cli.job_output import (
    document,
    fetched_document,
    finish,
    format_duration,
    note_fetched,
)
from clusterctl.cli.rank_output import Printer
from clusterctl.job_model import Job, JobState
from clusterctl.options.jobs import Cancel, Doctor, Fetch, Jobs, Logs
from clusterctl.options.run import Rerun


def jobs(given: Jobs, console: Console) -> None:
    store = actions.open_store()
    found = action.list_jobs(store, given.cluster, console.note)
    dollars = cost.of_jobs(store, found)
    batch = any(job.native_id for job in found)
    waiting = any(_waits_for(job) for job in found)
    head = ["job", "cluster", *["queue id"] * batch, "state", *["waits for"] * waiting]
    head += ["exit", "ranks", "started", "took", *["$"] * bool(dollars), "program"]
    if found:
        money = {job.id: [_money(dollars, job)] if dollars else [] for job in found}
        rows = (_row(job, batch, waiting, money[job.id]) for job in found)
        console.result(table([head, *rows]))
    else:
        console.note("no jobs yet; start one with `clusterctl run SCRIPT`")
    console.document({"jobs": [{**document(job), "dollars": dollars.get(job.id)} for job in found]})


def _money(dollars: Mapping[int, float], job: Job) -> str:
    return f"{dollars[job.id]:.4f}" if job.id in dollars else "-"


def _row(job: Job, batch: bool, waiting: bool, money: list[str]) -> list[object]:
    code = "-" if job.program_exit_code is None else job.program_exit_code
    started = time.strftime("%m-%d %H:%M", time.localtime(job.started or job.created))
    command = _command(job)
    where = [job.id, job.cluster, *[job.native_id or "-"] * batch, job.state.value]
    waits = [_waits_for(job) or "-"] * waiting
    return [*where, *waits, code, job.ranks, started, format_duration(job), *money, command]


def number_of(
    given: Logs | Cancel | Fetch | Doctor | Rerun,
    store: Store,
    console: Console,
) -> int:
    """That of the job that is meant; which one it is is said where none was named."""
    if given.job is not None:
        return given.job
    # `rerun` names the cluster where it is to run, not the one where it ran.
    last = action.last_job(store, None if isinstance(given, Rerun) else given.cluster)
    console.report(f"job {last.id}: {_command(last)}")
    return last.id


def _command(job: Job) -> str:
    """In one cell: nothing in a command line can reach the terminal as a command."""
    return _cell(shlex.join((job.spec.program.target, *job.spec.program.args)))


def _waits_for(job: Job) -> str:
    """What the queue says of a job that is in it, in one cell."""
    return _cell(job.reason) if job.state is JobState.QUEUED else ""


def _cell(text: str) -> str:
    text = printable(text)
    return text if len(text) <= 60 else f"{text[:59]}…"


def logs(given: Logs, console: Console) -> None:
    given = given.within({"follow"} if given.follow else (), console.note)
    store, follow, rank = actions.open_store(), given.follow, given.rank
    choice = Choice(given.tail, given.grep)
    job = number_of(given, store, console)
    try:
        with Printer(console, only=rank, exact=not follow) as printer:
            for pieces in action.logs(
                store, job, given.cluster, console.report, follow=follow, rank=rank, choice=choice
            ):
                printer(pieces)
    except KeyboardInterrupt:
        runs = "" if store.job(job).state.ended else "; it keeps running"
        console.note(f"\ndetached from job {job}{runs}")
        raise typer.Exit(130) from None
    ended = store.job(job)
    if follow or (given.json and ended.state.ended):
        finish(console, ended)
    else:
        console.document({**document(ended), "exit_code": None})


def cancel(given: Cancel, console: Console) -> None:
    store = actions.open_store()
    job = number_of(given, store, console)
    ended = action.cancel(store, job, given.cluster, console.report)
    left = {name: count for name, count in ended.survivors.items() if count}
    before = "was" if ended.state is JobState.CANCELLED else "had already ended:"
    counted = ended.survivors or not ended.reason
    how = action.describe_survivors(ended) if counted else ended.reason
    console.result(f"job {job} {before} {ended.state.value}; {how}")
    console.document({"job": document(ended)})
    if left:
        raise typer.Exit(4)


def fetch(given: Fetch, console: Console) -> None:
    store = actions.open_store()
    job = number_of(given, store, console)
    got = action.fetch(store, job, given.cluster, given.to, console.report)
    brought = got.brought
    if brought.outputs:
        names = (f"{got.folder}/{item.place}" for item in brought.outputs)
        console.result("\n".join(printable(name) for name in names))
    elif not (brought.kept or brought.left_out or got.failed):
        console.note(f"job {job} wrote no files")
    note_fetched(console, got)
    console.document(fetched_document(got))
    console.raise_first(got.failed)
    if got.missing:
        raise typer.Exit(4)

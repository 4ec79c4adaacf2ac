"""Verbs about jobs that exist: jobs, logs, cancel, fetch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from clusterctl import actions
from clusterctl.actions import Store, cost, metrics, node_loss
from clusterctl.actions import jobs as action
from clusterctl.actions.dead_nodes import find_dead
from clusterctl.actions.jobs import Choice
from clusterctl.cli import job_columns, sweep_points
from clusterctl.cli.console import Console, escape, format_table
from clusterctl.cli.job_output import (
    announce,
    choose_number,
    describe_size,
    document_fetched,
    finish,
    format_cell,
    format_duration,
    note_fetched,
    quote_command,
)
from clusterctl.cli.job_output import document as job_document
from clusterctl.cli.rank_output import Printer
from clusterctl.errors import NodeUnreachable
from clusterctl.job_model import Job, JobState
from clusterctl.options.jobs import Cancel, Fetch, Jobs, Logs
from clusterctl.user_variables import read_variables


def jobs(given: Jobs, console: Console) -> None:
    store = actions.open_store()
    with console.show_waiting():
        found = action.list_jobs(store, given.cluster, console.note)
    if not (given.all or given.job is not None):
        found = action.choose_own(found)
    if given.job is not None:
        wanted = action.find_job(store, given.job, given.cluster).id
        found = tuple(job for job in found if job.id == wanted)
    dollars = cost.sum_by_job(store, found)
    chosen = (
        job_columns.collect_values(store, found, dollars, given.columns) if given.columns else None
    )
    document = _document_jobs(found, dollars, chosen)
    if chosen:
        console.result(job_columns.show(chosen, given.columns))
        console.document(document)
        return
    batch = any(job.native_id for job in found)
    waiting = any(_describe_wait(job) for job in found)
    head = ["job", "cluster", *["queue id"] * batch, "state", *["waits for"] * waiting]
    head += ["exit", "ranks", "started", "took", *["$"] * bool(dollars), "program"]
    if found:
        money = {job.id: [_format_money(dollars, job)] if dollars else [] for job in found}
        rows = (_list_cells(job, batch, waiting, money[job.id]) for job in found)
        console.result(format_table([head, *rows]))
    else:
        console.note("no jobs yet; start one with `clusterctl run SCRIPT`")
    if given.job is not None and found[0].spec.is_sweep:
        document["jobs"][0]["points"]["table"] = _list_points(store, found[0], console)
    console.document(document)


def _list_points(store: Store, job: Job, console: Console) -> list[dict[str, Any]]:
    """Of a sweep, what became of each point, with the last value of each metric."""
    found = sweep_points.list_rows(job, metrics.find_last_by_rank(store, job, console.report))
    console.result("\n" + format_table(sweep_points.render_cells(found)))
    return sweep_points.document_points(found)


def _document_jobs(
    jobs: Sequence[Job], dollars: Mapping[int, float], chosen: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    found = [{**job_document(job), "dollars": dollars.get(job.id)} for job in jobs]
    for item, columns in zip(found, chosen or (), strict=False):
        item["columns"] = columns
    return {"jobs": found}


def _format_money(dollars: Mapping[int, float], job: Job) -> str:
    return f"{dollars[job.id]:.4f}" if job.id in dollars else "-"


def _list_cells(job: Job, batch: bool, waiting: bool, money: list[str]) -> list[object]:
    code = "-" if job.program_exit_code is None else job.program_exit_code
    started = time.strftime("%m-%d %H:%M", time.localtime(job.started or job.created))
    command = f"{job.purpose}: " * bool(job.purpose) + quote_command(job)
    where = [job.id, job.cluster, *[job.native_id or "-"] * batch, job.state.value]
    waits = [_describe_wait(job) or "-"] * waiting
    return [
        *where,
        *waits,
        code,
        describe_size(job),
        started,
        format_duration(job),
        *money,
        command,
    ]


def _describe_wait(job: Job) -> str:
    """What the queue says of a job that is in it, in one cell."""
    return format_cell(job.reason) if job.state is JobState.QUEUED else ""


def logs(given: Logs, console: Console) -> None:
    ways = {way for way in ("follow", "metrics", "json", "export") if getattr(given, way)}
    given = given.apply_limits(ways, console.note)
    store, follow = actions.open_store(), given.follow
    job = choose_number(given, store, console)
    try:
        if given.metrics:
            _show_metrics(given, store, job, console)
        else:
            with Printer(console, only=given.rank, exact=not follow) as printer:
                job = _print(given, store, job, console, printer)
    except KeyboardInterrupt:
        state = store.read_job(job).state
        runs = "; it stays queued" if state is JobState.QUEUED else "; it keeps running"
        console.note(f"\ndetached from job {job}{'' if state.ended else runs}")
        raise typer.Exit(130) from None
    ended = store.read_job(job)
    for hang in ended.hangs:
        console.note(action.describe_hang(ended, hang))
    if follow or (given.json and ended.state.ended):
        finish(console, ended)
    else:
        console.document({**job_document(ended), "exit_code": None})


def _print(given: Logs, store: Store, number: int, console: Console, printer: Printer) -> int:
    """The output of the job, and with --follow of the one that continues it; the number of the
    last."""
    choice, where = Choice(given.tail, given.grep), (given.cluster, console.report)
    try:
        for pieces in action.read_logs(
            store,
            number,
            *where,
            follow=given.follow,
            rank=given.rank,
            choice=choice,
            find_dead=find_dead,
        ):
            printer(pieces)
    except NodeUnreachable:
        if not (given.follow and node_loss.is_due(store, store.read_job(number))):
            raise
    job = store.read_job(number)
    if given.follow and node_loss.is_due(store, job):
        return _continue(store, job, console, printer).id
    return number


def _continue(store: Store, job: Job, console: Console, printer: Printer) -> Job:
    """A job that may have lost nodes while nobody followed it, as its --on-node-loss says."""
    files = [path for name in job.spec.env_files if (path := Path(name)).is_file()]
    return node_loss.run(
        store,
        job.id,
        lambda note: job,
        read_variables((), files)[1],
        on_start=lambda started: announce(console, started, detach=False),
        on_output=printer,
        report=console.report,
    )


def _show_metrics(given: Logs, store: Store, job: int, console: Console) -> None:
    """One line for each line of metrics; a table with --csv, files with --export."""
    where = (store, job, given.cluster, console.report)
    if given.export:
        points = metrics.collect(*where, rank=given.rank)
        written = metrics.export(store.read_job(job), points, given.export) if points else ()
        console.document({"job": job, "points": len(points), "files": list(written)})
        if points:
            console.result("\n".join(map(str, written)))
        else:
            console.note(_explain_no_metrics(job))
        return
    if given.csv:
        console.result(metrics.to_csv(metrics.collect(*where, rank=given.rank)).rstrip("\n"))
        return
    found = metrics.follow(*where, follow=given.follow, rank=given.rank)
    none = True
    for point in (point for points in found for point in points):
        none = False
        if console.json:
            print(json.dumps(metrics.to_json(point)), flush=True)
        else:
            shown = {name: v for name, v in point.values.items() if name != "time"}
            texts = (f"{name} {metrics.render(value)}" for name, value in shown.items())
            console.result(f"[{point.rank}] {'  '.join(texts)}")
    if none:
        console.note(_explain_no_metrics(job))


def _explain_no_metrics(job: int) -> str:
    return f"job {job} printed no metrics; docs/jobs.md (Metrics) says which lines count"


def cancel(given: Cancel, console: Console) -> None:
    store = actions.open_store()
    job = choose_number(given, store, console)
    with console.show_waiting():
        ended = action.cancel(store, job, given.cluster, console.report)
    left = {name: count for name, count in ended.survivors.items() if count}
    before = "was" if ended.state is JobState.CANCELLED else "had already ended:"
    counted = ended.survivors or not ended.reason
    how = action.describe_survivors(ended) if counted else ended.reason
    console.result(f"job {job} {before} {ended.state.value}; {how}")
    console.document({"job": job_document(ended)})
    if left:
        raise typer.Exit(4)


def fetch(given: Fetch, console: Console) -> None:
    store = actions.open_store()
    job = choose_number(given, store, console)
    with console.show_waiting(moved=actions.count_copied):
        got = action.fetch(store, job, given.cluster, given.to, console.report)
    brought = got.brought
    if brought.outputs:
        names = (f"{got.folder}/{item.place}" for item in brought.outputs)
        console.result("\n".join(escape(name) for name in names))
    elif not (brought.kept or brought.left_out or got.failed):
        console.note(f"job {job} wrote no files")
    note_fetched(console, got)
    console.document(document_fetched(got))
    console.raise_first(got.failed)
    if got.missing:
        raise typer.Exit(4)

"""Verbs about jobs that exist: jobs, logs, cancel, fetch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from clusterctl.actions import common, costs
from clusterctl.actions import jobs as actions_jobs
from clusterctl.actions import metrics as actions_metrics
from clusterctl.cli import output
from clusterctl.cli.console import BAD, GOOD, Console, escape, format_records, paint
from clusterctl.cli.output import document as job_document
from clusterctl.core.job import Job, JobState, ProgramKind, format_duration
from clusterctl.core.variables import read_variables
from clusterctl.errors import ClusterctlError, NodeUnreachable
from clusterctl.insight import metrics as insight_metrics
from clusterctl.options.verbs import Cancel, Fetch, Jobs, Logs
from clusterctl.state.store import Store


def jobs(given: Jobs, console: Console) -> None:
    store = common.open_store()
    with console.show_waiting():
        found = actions_jobs.list_jobs(store, given.cluster, console.note)
    if not (given.all or given.job is not None):
        found = actions_jobs.choose_own(found)
    if given.job is not None:
        wanted = actions_jobs.find_job(store, given.job, given.cluster).id
        found = tuple(job for job in found if job.id == wanted)
    dollars = costs.sum_by_job(store, found)
    if not found:
        console.note("no jobs yet; start one with `clusterctl run SCRIPT`")
    elif not console.json:  # there may be thousands
        table = format_records(_list_cells(job, dollars) for job in found)
        console.result("\n".join(_paint_states(table, found)), raw=True)
    wants_points = given.job is not None and found[0].spec.is_sweep
    points = _list_points(store, found[0], console) if wants_points else []
    if console.json:
        documents = [{**job_document(job), "dollars": dollars.get(job.id)} for job in found]
        if wants_points:
            documents[0]["points"]["table"] = points
        console.document(jobs=documents)


def _paint_states(table: str, jobs: Iterable[Job]) -> Iterator[str]:
    """The lines of a table of jobs, with what has become of each in a colour."""
    head, *lines = table.splitlines()
    yield head
    for line, job in zip(lines, jobs, strict=True):
        start, word = head.index("state"), job.state.value
        colour = GOOD if job.state is JobState.SUCCEEDED else BAD if job.state.ended else ""
        end = start + len(word)
        yield line[:start] + paint(word, colour, sys.stdout) + line[end:]


def _list_points(store: Store, job: Job, console: Console) -> list[dict[str, Any]]:
    """Of a sweep, what became of each point, with the last value of each metric."""
    last = actions_metrics.find_last_by_rank(store, job, console.report)
    found: list[dict[str, Any]] = [
        {
            "point": point.number,
            "values": point.settings,
            "exit_code": job.points_ended.get(str(point.number)),
            "metrics": {n: v for n, v in last.get(point.number, {}).items() if n != "time"},
        }
        for point in job.spec.points
    ]
    rows = (
        {
            "point": row["point"],
            **row["values"],
            "exit": "-" if row["exit_code"] is None else row["exit_code"],
            **{n: insight_metrics.render_metrics(v) for n, v in row["metrics"].items()},
        }
        for row in found
    )
    console.result("\n" + format_records(rows))
    return found


def _list_cells(job: Job, dollars: Mapping[int, float]) -> dict[str, object]:
    code, waits = job.program_exit_code, job.state is JobState.QUEUED and job.reason
    return {
        "job": job.id,
        "cluster": job.cluster,
        "queue id": job.native_id or None,
        "state": job.state.value,
        "waits for": output.format_cell(job.reason) if waits else None,
        "exit": "-" if code is None else code,
        "ranks": output.describe_size(job),
        "started": time.strftime("%m-%d %H:%M", time.localtime(job.started or job.created)),
        "took": format_duration(job),
        "$": f"{dollars[job.id]:.4f}" if job.id in dollars else None,
        "program": f"{job.purpose}: " * bool(job.purpose) + output.quote_command(job),
    }


def logs(given: Logs, console: Console) -> None:
    ways = {way for way in ("follow", "metrics", "json") if getattr(given, way)}
    given = given.apply_limits(ways, console.note)
    store, job = output.choose_number(given, console)
    try:
        if given.metrics:
            _show_metrics(given, store, job, console)
        else:
            with output.Printer(console, only=given.rank) as printer:
                job = _print(given, store, job, console, printer)
    except KeyboardInterrupt:
        state = store.read_job(job).state
        runs = "; it stays queued" if state is JobState.QUEUED else "; it keeps running"
        console.note(f"\ndetached from job {job}{'' if state.ended else runs}")
        raise typer.Exit(130) from None
    ended = store.read_job(job)
    for hang in ended.hangs:
        console.note(actions_jobs.describe_hang(ended, hang))
    if given.follow or (given.json and ended.state.ended):
        code = output.finish(console, ended)
        if given.follow:  # as `run` would
            raise typer.Exit(code)
    else:
        console.document(**job_document(ended), exit_code=None)


def _print(
    given: Logs, store: Store, number: int, console: Console, printer: output.Printer
) -> int:
    """The output of the job, and with --follow of the one that continues it; the number of the
    last."""
    from clusterctl.actions import node_loss  # with all of `run`

    where, follow = (given.cluster, console.report), given.follow
    silent, cut = True, None
    try:
        for pieces in actions_jobs.read_logs(store, number, *where, follow=follow, rank=given.rank):
            printer(pieces)
            silent = silent and not pieces
    except NodeUnreachable as error:
        cut = error
    job = store.read_job(number)
    if given.follow and node_loss.is_due(store, job):
        job = _continue(store, job, console, printer)
    if cut and job.id == number:
        raise cut
    if silent and job.program_exit_code is not None and job.spec.program.kind is ProgramKind.BATCH:
        console.note(f"job {number} has no output where its script sends it")
    return job.id


def _continue(store: Store, job: Job, console: Console, printer: output.Printer) -> Job:
    """A job that may have lost nodes while nobody followed it, as its --on-node-loss says."""
    from clusterctl.actions import node_loss

    files = [path for name in job.spec.env_files if (path := Path(name)).is_file()]
    return node_loss.run_again(
        store,
        job.id,
        lambda note: job,
        read_variables((), files)[1],
        on_start=lambda started: output.announce(console, started, detach=False),
        on_output=printer,
        report=console.report,
    )


def _show_metrics(given: Logs, store: Store, job: int, console: Console) -> None:
    """One line for each line of metrics; a table with --csv."""
    where = (store, job, given.cluster, console.report)
    found: Iterable[insight_metrics.MetricPoint]
    if given.follow:
        found = chain.from_iterable(actions_metrics.follow(*where, rank=given.rank))
    else:
        found = actions_metrics.collect_metrics(*where, rank=given.rank)
        if given.csv:
            console.result(insight_metrics.to_csv(found).rstrip("\n"))
    none = True
    for point in found:
        none = False
        if given.csv:
            break
        if console.json:
            print(json.dumps(insight_metrics.to_json(point)), flush=True)
        else:
            shown = {n: insight_metrics.render_metrics(v) for n, v in point.values.items()}
            shown.pop("time", None)
            console.result(f"[{point.rank}] {'  '.join(f'{n} {v}' for n, v in shown.items())}")
    if none:
        console.note(f"no metrics found in job {job}; docs/outputs.md (Metrics) says what counts")


def cancel(given: Cancel, console: Console) -> None:
    store, where, numbers = common.open_store(), given.cluster, list(dict.fromkeys(given.jobs))
    if not numbers:
        store, last = output.choose_number(given, console)
        numbers = [last]
    for number in numbers[1:] and numbers:  # one that is wrong ends no other job
        actions_jobs.find_job(store, number, where)
    done, failed = list[Job](), list[ClusterctlError]()
    for number in numbers:
        try:
            with console.show_waiting():
                done.append(actions_jobs.cancel(store, number, where, console.report))
        except ClusterctlError as error:
            failed.append(error)
            continue
        console.result(_describe_cancelled(done[-1]))
    found = [job_document(job) for job in done]
    if len(numbers) > 1:
        console.document(jobs=found)
    elif found:
        console.document(job=found[0])
    else:
        raise failed[0]
    console.raise_first(failed)
    if any(count for job in done for count in job.survivors.values()):
        raise typer.Exit(4)


def _describe_cancelled(job: Job) -> str:
    cancelled = job.state is JobState.CANCELLED
    counted = job.survivors or (cancelled and not job.reason)
    how = actions_jobs.describe_survivors(job) if counted else job.reason
    before = "was" if cancelled else "had already ended:"
    return "; ".join(filter(None, (f"job {job.id} {before} {job.state.value}", how)))


def fetch(given: Fetch, console: Console) -> None:
    store, job = output.choose_number(given, console)
    with console.show_waiting(moved=common.count_copied):
        got = actions_jobs.fetch(store, job, given.cluster, given.to, console.report)
    brought = got.brought
    if brought.outputs:
        names = (f"{got.folder}/{item.place}" for item in brought.outputs)
        console.result("\n".join(escape(name) for name in names))
    elif not (brought.kept or brought.left_out or got.failed or got.gone):
        place = store.read_job(job).spec.in_place
        at = f"ran in {escape(place)}: its files are there" if place else "wrote no files"
        console.note(f"job {job} {at}")
    for line in got.describe():
        console.note(line)
    console.document(**output.document_fetched(got))
    console.raise_first(got.failed)
    if got.missing or got.gone:
        raise typer.Exit(4)

"""Verbs that look at clusters and jobs: verify, doctor, diff."""

from __future__ import annotations

from typing import Any

import typer

from clusterctl import actions
from clusterctl.actions import diff as comparing
from clusterctl.actions import doctor as action
from clusterctl.actions import verify as measuring
from clusterctl.cli.clusters import document_checks
from clusterctl.cli.console import Console, format_table, pick, redact
from clusterctl.cli.jobs import choose_number
from clusterctl.formats import count
from clusterctl.options.clusters import Verify
from clusterctl.options.jobs import Diff, Doctor

SHOWN = 12
"""Frames of a stack that are shown without --verbose."""


def doctor(given: Doctor, console: Console) -> None:
    store = actions.open_store()
    number = choose_number(given, store, console)
    found = action.diagnose(
        *(store, number, given.cluster, console.report),
        bundle=given.bundle,
        redact=redact,
        whole_command=True,
    )
    job = found.job
    console.report(f"job {job.id}, {count(job.ranks, 'rank')}: {job.state.value}")
    console.result("\n\n".join([*_render_findings(found), *_render_stacks(found, console.verbose)]))
    if given.bundle:
        console.note(f"wrote {given.bundle}: review it before you publish it")
    console.document(
        {
            "job": job.id,
            "state": job.state,
            "summary": found.summary,
            "seconds": found.seconds,
            "findings": [
                pick(item, "kind", "serious", "text", "advice", "lines", "ranks", "nodes")
                for item in found.findings
            ],
            "stacks": [_document_stack(item) for item in found.stacks],
            "bundle": given.bundle,
        }
    )


def _render_findings(found: action.Diagnosis) -> list[str]:
    texts = [found.summary] if found.summary else []
    for number, item in enumerate(found.findings):
        word = "also" if item.serious else "note"
        if item.serious and number == 0:
            word = "cause"
        lines = [f"{word}: {item.text}", *(f"    {line}" for line in item.lines)]
        texts.append("\n".join([*lines, *[f"  → {item.advice}"] * bool(item.advice)]))
    return texts


def _render_stacks(found: action.Diagnosis, all_frames: bool) -> list[str]:
    texts = []
    for item in found.stacks:
        frames = item.stack.shown
        shown = frames if all_frames else frames[:SHOWN]
        more = [f"    … {len(frames) - len(shown)} more (--verbose)"] * (len(shown) < len(frames))
        head = f"{action.name_ranks(item.ranks)}: {item.stack.describe()}"
        texts.append("\n".join([head, *(f"    {frame}" for frame in shown), *more]))
    return texts


def _document_stack(item: Any) -> dict[str, Any]:
    stack = item.stack
    frames = [pick(frame, "name", "file", "line") for frame in stack.frames]
    return {"ranks": item.ranks, "collective": stack.collective, "frames": frames}


def verify(given: Verify, console: Console) -> None:
    store = actions.open_store()
    cluster = actions.choose(store, given.choose_name())
    found = measuring.measure(
        *(store, cluster, console.report),
        quick=given.quick,
        now=given.now,
        whole_command=True,
    )
    console.result(format_table((v.state, v.subject, v.what, v.text) for v in found.verdicts))
    low = len(found.low)
    text = f"{count(low, 'line')} below the limit" if low else "all within limits"
    console.report(text + "; the notes name what was not measured" * bool(found.left_out))
    console.document(
        {
            "cluster": cluster.name,
            **document_checks(found),
            "nodes": found.nodes,
            "links": found.links,
            "reductions": found.reductions,
            "left_out": found.left_out,
        }
    )
    if low:
        raise typer.Exit(8)


def diff(given: Diff, console: Console) -> None:
    store = actions.open_store()
    found = comparing.compare_jobs(store, given.first, given.second, given.cluster, console.note)
    texts = []
    if found.changes:
        head = ("", f"job {found.first.id}", f"job {found.second.id}")
        rows = ((c.what, c.first or "-", c.second or "-") for c in found.changes)
        texts.append(format_table([head, *rows]))
    texts += ("\n".join([f"{file.how} {file.path}", *file.lines]) for file in found.files)
    console.result(redact("\n\n".join(texts)) if texts else "no difference")
    console.document(
        {
            "jobs": [found.first.id, found.second.id],
            "changes": [pick(item, "what", "first", "second") for item in found.changes],
            "files": [pick(item, "path", "how", "lines") for item in found.files],
        }
    )

"""`doctor`: why a job hangs or has failed. It loads little, for the sake of busy machines."""

from __future__ import annotations

from typing import Any

from clusterctl import actions
from clusterctl.actions import doctor as action
from clusterctl.cli.console import Console, pick, redact
from clusterctl.cli.job_output import choose_number
from clusterctl.formats import count
from clusterctl.options.jobs import Doctor

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

"""Verbs that look at clusters and jobs: verify, diff."""

from __future__ import annotations

import typer

from clusterctl import actions
from clusterctl.actions import diff as comparing
from clusterctl.actions import verify as measuring
from clusterctl.cli.clusters import document_checks
from clusterctl.cli.console import Console, format_table, pick, redact
from clusterctl.formats import count
from clusterctl.options.clusters import Verify
from clusterctl.options.jobs import Diff


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

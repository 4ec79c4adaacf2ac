"""`report`: one page about a cluster or a job."""

from __future__ import annotations

from pathlib import Path

from clusterctl import actions
from clusterctl.actions import report as action
from clusterctl.cli.console import Console, redact
from clusterctl.options.jobs import Report


def report(given: Report, console: Console) -> None:
    store, kind = actions.open_store(), given.format
    text = action.make(store, given.wanted, given.cluster, redact, console.report, kind)
    name = given.wanted or action.find_cluster(store, given.cluster).name
    path = given.output or Path(f"report-{name}.{kind}")
    if str(path) == "-":
        console.result(text.rstrip("\n"), raw=True)
        console.document({"format": kind, "text": text})
        return
    action.write(text, path)
    console.note(f"wrote {path}")
    console.document({"format": kind, "path": path})

"""Verbs about data sets: data get, push, list, index."""

from __future__ import annotations

from typing import Any

import typer

from clusterctl import actions
from clusterctl.actions import data as action
from clusterctl.actions import download
from clusterctl.cli.console import Console, format_table
from clusterctl.cli.progress import Transfer
from clusterctl.errors import UsageError
from clusterctl.formats import format_bytes
from clusterctl.options.data import DataGet, DataIndex, DataList, DataPush


def data_get(given: DataGet, console: Console) -> None:
    urls = [name for name in given.names if download.is_url(name)]
    words = {"url"} if urls else set()
    given = given.apply_limits({*words, "no-push"} if given.no_push else words, console.note)
    if len(given.names) > 1 and (given.name or given.sha256):
        option = "--name" if given.name else "--sha256"
        raise UsageError(f"{option} works with one URL", hint="get them one by one")
    store, bar = actions.open_store(), Transfer(console)
    options = action.GetOptions(
        given.mirror, given.cluster, not given.no_push, given.name, given.sha256
    )
    with console.show_waiting(moved=actions.count_copied):
        got = [
            (download.get if name in urls else action.get)(
                store, name, options, bar, console.report
            )
            for name in given.names
        ]
    _report(console, got)


def data_push(given: DataPush, console: Console) -> None:
    if given.name is not None and len(given.names) > 1:
        raise UsageError("--name works with one folder", hint="push the folders one by one")
    store, name, cluster = actions.open_store(), given.name, given.cluster
    with console.show_waiting(moved=actions.count_copied):
        got = [action.push(store, n, name, cluster, console.report) for n in given.names]
    _report(console, got)


def _report(console: Console, copies: list[Any]) -> None:
    for copy in copies:
        console.result(f"{copy.name}: {copy.path}")
    console.document({"data": copies})


def data_list(given: DataList, console: Console) -> None:
    given.apply_limits((), console.note)
    found = action.list_data(actions.open_store())
    console.result(
        format_table(
            (entry.name, format_bytes(entry.size), "here" if entry.here else "-", entry.title)
            for entry in found
        )
    )
    console.document({"data": list(found)})


def data_index(given: DataIndex, console: Console) -> None:
    given.apply_limits((), console.note)
    raise typer.Exit(action.write_index(list(given.words)))

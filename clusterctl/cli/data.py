"""Verbs about data sets: data get, push, list, index."""

from __future__ import annotations

import sys
from typing import Any

import typer

from clusterctl import actions
from clusterctl.actions import data as action
from clusterctl.cli.console import Console, table
from clusterctl.errors import UsageError
from clusterctl.options.data import DataGet, DataIndex, DataList, DataPush

_BAR = 30  # characters


def data_get(given: DataGet, console: Console) -> None:
    given = given.within({"no-push"} if given.no_push else (), console.note)
    store, bar = actions.open_store(), Bar(console)
    options = action.GetOptions(given.mirror, given.cluster, not given.no_push)
    names = given.names
    _report(console, [action.get(store, name, options, bar, console.report) for name in names])


def data_push(given: DataPush, console: Console) -> None:
    if given.name is not None and len(given.names) > 1:
        raise UsageError("--name works with one folder", hint="push the folders one by one")
    store, name, cluster = actions.open_store(), given.name, given.cluster
    _report(console, [action.push(store, n, name, cluster, console.report) for n in given.names])


def _report(console: Console, copies: list[Any]) -> None:
    for copy in copies:
        console.result(f"{copy.name}: {copy.path}")
    console.document({"data": copies})


def data_list(given: DataList, console: Console) -> None:
    given.within((), console.note)
    found = action.list_data(actions.open_store())
    console.result(
        table(
            (entry.name, f"{entry.size / 1e6:.0f} MB", "here" if entry.here else "-", entry.title)
            for entry in found
        )
    )
    console.document({"data": list(found)})


def data_index(given: DataIndex, console: Console) -> None:
    given.within((), console.note)
    raise typer.Exit(action.write_index(list(given.words)))


class Bar:
    """A download's progress: a bar that moves on a terminal, else a line for each tenth."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ("", -1)

    def __call__(self, name: str, done: int, size: int) -> None:
        moving = sys.stderr.isatty() and not self._console.quiet
        percent = min(100, 100 * done // max(1, size))
        step = (name, percent if moving else percent // 10)
        if step == self._last:
            return
        self._last = step
        text = f"{name} {percent:3} % of {size / 1e6:.1f} MB"
        if not moving:
            self._console.report(text)
            return
        full = _BAR * percent // 100
        end = "\n" if done >= size else ""
        sys.stderr.write(f"\r[{'#' * full}{'.' * (_BAR - full)}] {text}{end}")
        sys.stderr.flush()

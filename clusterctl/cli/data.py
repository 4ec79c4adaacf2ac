"""The verb `data`: get, push, list and index data sets."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clusterctl.cli.console import Console, table
from clusterctl.cli.options import ClusterOption, Json, Quiet, Verbose, applicable
from clusterctl.errors import UsageError

_BAR = 30  # characters


def register(app: typer.Typer) -> None:
    # The words after `index` are its program's, options too.
    app.command(context_settings={"ignore_unknown_options": True})(data)


def data(
    context: typer.Context,
    what: Annotated[str, typer.Argument(help="get, push, list or index.", metavar="WHAT")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="get: names of data sets. push: names, or a folder. index: TRAIN VALIDATION ...",
            metavar="[NAME]...",
        ),
    ] = None,
    mirror: Annotated[
        str,
        typer.Option(
            envvar="CLUSTERCTL_MIRROR", help="URL of a folder that holds the data sets' files."
        ),
    ] = "",
    name: Annotated[
        str | None, typer.Option(help="push FOLDER: what it is called on the workers.")
    ] = None,
    no_push: Annotated[
        bool, typer.Option("--no-push", help="get: leave the workers alone.")
    ] = False,
    cluster: ClusterOption = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Data sets: `get mnist` downloads one and copies it to $CLUSTERCTL_DATA on every worker.

    get NAME...: mnist, cifar10 or imagenette; once, resumed where it broke off, checked.
    push NAME or FOLDER: copies it to the workers (again, or to a new cluster).
    list: what there is, and what is here. index TRAIN VALIDATION: a YAML of image folders.
    """
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    from clusterctl import actions
    from clusterctl.actions import data as action

    store, rest = actions.open_store(), words or []
    if what not in ("get", "push", "list", "index"):
        raise UsageError(
            f"data {what!r} is not a thing to do", hint="get, push, list or index: data --help"
        )
    applicable(context, {what, *(["no-push"] if no_push else [])})
    if what == "index":
        raise typer.Exit(action.index(rest))
    if what == "list":
        if rest:
            raise UsageError("`data list` takes no names", hint="leave them out")
        found = action.entries(store)
        rows: list[tuple[str, ...]] = [
            (entry.name, f"{entry.size / 1e6:.0f} MB", "here" if entry.here else "-", entry.title)
            for entry in found
        ]
        console.result(table(rows))
        console.document({"data": list(found)})
        return
    for word in rest:
        if word.startswith("-"):
            raise UsageError(f"there is no option {word}", hint="`clusterctl data --help` explains")
    if not rest:
        raise UsageError(f"data {what} needs a name", hint="`data list` shows the names")
    if name is not None and len(rest) > 1:
        raise UsageError("--name goes with one folder", hint="leave it out, or push one by one")
    if what == "get":
        bar = Bar(console)
        options = action.GetOptions(mirror, cluster, not no_push)
        done = [action.get(store, word, options, bar, console.tell) for word in rest]
    else:
        done = [action.push(store, word, name, cluster, console.tell) for word in rest]
    for copy in done:
        console.result(f"{copy.name}: {copy.path}")
    console.document({"data": done})


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
            self._console.tell(text)
            return
        full = _BAR * percent // 100
        end = "\n" if done >= size else ""
        sys.stderr.write(f"\r[{'#' * full}{'.' * (_BAR - full)}] {text}{end}")
        sys.stderr.flush()

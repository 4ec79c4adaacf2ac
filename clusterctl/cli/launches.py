"""After a command: what earlier launches have made is brought here, and their clusters go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from clusterctl.cli.console import Console
from clusterctl.errors import ClusterctlError, describe_reason
from clusterctl.options.clusters import CLUSTERS, Down
from clusterctl.options.run import Launch
from clusterctl.options.table import JOBS, Verb

if TYPE_CHECKING:
    from clusterctl.state.store import Store


@contextmanager
def collect_afterwards(given: Verb, console: Console) -> Iterator[None]:
    """Around a command. One about clusters or jobs that has answered goes on with what there is to
    collect."""
    try:
        yield
    except typer.Exit:
        _collect(given, console)
        raise
    else:
        _collect(given, console)


def _collect(given: Verb, console: Console) -> None:
    """Never raises: what cannot be brought now stays, and is said. `given`: the command that has
    just answered."""
    own = isinstance(given, Launch) and given.detach
    if own or given.heading not in (CLUSTERS, JOBS) or given.values.get("dry_run"):
        return
    from clusterctl.actions import common, launch_mark

    store = common.open_store()
    names = launch_mark.list_marked(store)
    if names:
        _bring(store, names, given, console)


def _bring(store: Store, names: tuple[str, ...], given: Verb, console: Console) -> None:
    from clusterctl.actions import common, launch

    console.set(json=False, quiet=console.quiet, verbose=console.verbose)  # the document is out
    for name in names:
        console.after_interrupt = "the next command continues"
        try:
            with console.show_waiting(moved=common.count_copied):
                ended = launch.bring(store, name, console.report)
            if ended:
                _remove_launch(store, name, given, console)
        except ClusterctlError as error:
            console.report(f"cluster {name} was not removed: {describe_reason(error)}")
            if error.hint:
                console.note(f"  → {error.hint}")


def _remove_launch(store: Store, name: str, given: Verb, console: Console) -> None:
    """What it has is here by now; of one that ended at its deadline nothing was brought."""
    from clusterctl.cli import clusters

    cluster = store.find(name)
    ended = bool(cluster and cluster.deadline and cluster.deadline <= time.time())
    wanted = given.pick_options(Down, name=name, cluster=None, yes=True, discard=not ended)
    clusters.down(wanted, console)

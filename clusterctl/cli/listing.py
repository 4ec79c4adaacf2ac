"""The verb `list`: the clusters on record, and those of the whole account."""

from __future__ import annotations

from clusterctl import verbs
from clusterctl.cli.clusters import list_here
from clusterctl.cli.console import Console


def list_clusters(given: verbs.List, console: Console) -> None:
    document = list_here(given, console)
    if given.everywhere:
        from clusterctl.cli import money

        document |= money.list_all(console)
    console.document(document)

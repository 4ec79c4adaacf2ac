"""The verb `list`: the clusters on record, and those of the whole account."""

from __future__ import annotations

from clusterctl.cli.clusters import list_here
from clusterctl.cli.console import Console
from clusterctl.options.clusters import List


def list_clusters(given: List, console: Console) -> None:
    document = list_here(given, console)
    if given.everywhere:
        from clusterctl.cli import gc

        document |= gc.list_all(console)
    console.document(document)

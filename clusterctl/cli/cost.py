"""The verb `cost`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Any

from clusterctl.actions import common, costs
from clusterctl.cli.console import Console, format_table, make_plain
from clusterctl.core.text import format_time
from clusterctl.options.verbs import Cost


def show(given: Cost, console: Console) -> None:
    with console.show_waiting():
        found = costs.sum_spending(common.open_store(), given.since, given.cluster)
    rows: dict[str, Sequence[Any]] = {
        "day": [item for item in found.days if item.dollars or not item.exact],
        "cluster": found.clusters,
        "job": found.jobs,
    }
    chosen = [make_plain(row) for row in rows[given.by]]
    if given.csv:
        if chosen and not given.json:
            writer = csv.DictWriter(sys.stdout, list(chosen[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(chosen)
    elif chosen:
        head = [name for name in chosen[0] if name not in ("exact", "dollars")]
        cells = ([*(row[name] for name in head), _format_money(row)] for row in chosen)
        console.result(format_table([[*head, "$"], *cells]))
    for line in found.warnings:
        console.note(f"warning: {line}")
    least = "" if found.exact else "at least "
    sum_of_all = f"{least}${found.dollars:.2f}{' so far' * found.running}"
    console.note(
        f"{sum_of_all} since {format_time(found.since)}, without traffic to the internet;"
        " from the records on this machine"
    )
    console.document(**make_plain(found), dollars=found.dollars, exact=found.exact)


def _format_money(row: dict[str, Any]) -> str:
    return f"{'' if row['exact'] else '>= '}{row['dollars']:.4f}"

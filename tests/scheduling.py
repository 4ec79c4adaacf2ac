"""Which tests are costly, and how `pytest -n` hands tests out.

Most tests wait for machines more than they compute. So there are more processes than cores, the
long pieces of work come first, and short ones fill the gaps.
"""

from __future__ import annotations

import re
from typing import Any

import pytest


def _uses(*names: str) -> str:
    """Tests for each kind of cluster whose parameters have one of these names."""
    return rf"tests/(attach/|contract/test_providers).*[\[-]({'|'.join(names)})[-\]]"


GROUPS = {
    # One engine, and one firewall that it and its tests change.
    "engine": r"tests/(docker/|images/test_(images|private)|ec2/test_full|sim/test_ec2_full)|"
    + _uses("docker", "containers"),
    # Started in seconds, once; and tests look at the whole queue.
    "slurm": _uses("slurm"),
    "sge": _uses("sge"),
    "instances": r"tests/attach/.*[\[-]ec2[-\]]",  # one cluster
}
"""Group → what the names of its tests contain. One process does all of them."""

ON_EC2 = r"tests/ec2/|" + _uses("ec2")

ALONE = (
    r"tests/(chaos|e2e)/|tests/workloads/test_(programs|training)|"
    r"tests/unit/test_(supervise|batch_scripts)|" + ON_EC2
)
"""Tests that take long and share nothing that does not start fast in every process."""

COSTLY = (
    r"tests/unit/test_(batch_scripts|bootstrap|buckets|completing|cut_copies|download|down)\.|"
    r"tests/unit/test_(encoding|follower\w*|idle|logging|mutation|node_loss|outputs|package\w*)\.|"
    r"tests/unit/test_(properties|rank|report|rerun|resume|shellcheck|silent_queue|skips)\.|"
    r"tests/unit/test_(supervise\w*|survey|warm|whole_snapshots)\.|"
    r"tests/unit/test_templates\.py::test_scripts_please_shellcheck"
)
"""Unit tests of scripts, shells, queues and files on nodes, and those that start other tests."""

ORDER = (
    *("engine", "slurm", "sge", "instances", ON_EC2),
    *("tests/attach", "tests/contract", "tests/chaos", "tests/e2e", "tests/workloads"),
    *(
        "tests/sim",
        "tests/packaging",
        r"tests/unit/test_(supervise|batch_scripts)",
        "tests/local",
        "",
    ),
)
"""Beginnings of pieces of work, the longest first."""


def piece(nodeid: str) -> str:
    """The piece of work that a test belongs to: its group, itself or its file."""
    for group, pattern in GROUPS.items():
        if re.search(pattern, nodeid):
            return group
    return nodeid if re.search(ALONE, nodeid) else nodeid.partition("::")[0]


def rank(piece: str) -> int:
    return next(number for number, start in enumerate(ORDER) if re.match(start, piece))


def pytest_itemcollected(item: pytest.Item) -> None:
    """`scripts/test.sh --fast` leaves out what is costly among the unit tests."""
    if re.match(COSTLY, item.nodeid):
        item.add_marker("slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from xdist.scheduler import LoadScopeScheduling

    class LongFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return piece(nodeid)

        def _assign_work_unit(self, node: object) -> None:
            self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
            super()._assign_work_unit(node)

    return LongFirst(config, log)


def seldom(row: Any) -> Any:
    """The row of a table of parameters, for `scripts/test.sh --all` alone."""
    return pytest.param(*row.values, marks=[*row.marks, pytest.mark.all], id=row.id)

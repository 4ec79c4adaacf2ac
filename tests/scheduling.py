"""Which tests are costly, and how `pytest -n` hands tests out.

Most tests wait for machines more than they compute. So there are more processes than cores, the
long pieces of work come first, and short ones fill the gaps.
"""

from __future__ import annotations

import re

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
    r"tests/(attach|chaos|docker|ec2|images|local|packaging|sim)/|"
    r"tests/e2e/(?!test_plan.py::test_an_emitted_script_(runs|passes))|"
    r"tests/workloads/test_(epochs|gradients|mnist|optimizers|programs|pytagi|readers|sgd|signals|tagi|training)|"
    r"tests/unit/test_(batch_scripts|block_copies|bootstrap|buckets|completing|download|down)\.|"
    r"tests/unit/test_(encoding|follower\w*|idle|logging|mutation|node_loss|outputs|package\w*)\.|"
    r"tests/unit/test_(properties|rank|report|rerun|resume|shellcheck|silent_queue|skips)\.|"
    r"tests/unit/test_(supervise\w*|survey|whole_snapshots)\.|tests/transport/test_(copy|run)\.|"
    r"tests/contract/test_example_provider|" + _uses("docker", "ec2")
)
"""Tests that start engines, simulators, batch systems, nodes or other tests, those of scripts,
shells, queues and files on nodes, and those that train. Emitted scripts stay: they show that a job
runs at all."""

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
    """`scripts/test.sh --fast` leaves out what is costly."""
    if re.search(COSTLY, item.nodeid):
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

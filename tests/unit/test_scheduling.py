"""How `pytest -n` hands the tests of this suite out."""

from __future__ import annotations

import re

import pytest

from tests.scheduling import COSTLY, ORDER, piece, rank


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/docker/test_cluster.py::test_it_trains", "engine"),
        ("tests/ec2/test_full.py::test_the_three_commands", "engine"),
        ("tests/images/test_private.py::test_a_node_pulls", "engine"),
        ("tests/contract/test_providers.py::test_plan[docker]", "engine"),
        ("tests/attach/test_conformance.py::test_record[containers-good]", "engine"),
        ("tests/attach/test_conformance.py::test_record[good-slurm]", "slurm"),
        ("tests/attach/test_sites.py::test_ctrl_c_cancels[sge]", "sge"),
        ("tests/attach/test_conformance.py::test_record[ec2-good]", "instances"),
        ("tests/contract/test_schedulers.py::test_script[slurm]", "tests/contract/test_schedulers"),
        ("tests/ec2/test_check.py::test_one", "tests/ec2/test_check.py::test_one"),
        ("tests/contract/test_providers.py::test_plan[ec2]", "tests/contract/test_providers.py::"),
        ("tests/unit/test_cli.py::test_one", "tests/unit/test_cli.py"),
        ("tests/unit/test_wish.py::test_one[docker]", "tests/unit/test_wish.py"),
    ],
)
def test_what_is_started_once_is_used_by_one_process(nodeid: str, expected: str) -> None:
    assert piece(nodeid).startswith(expected)


def test_long_pieces_come_first() -> None:
    pieces = ("tests/unit/test_cli.py", "tests/e2e/test_run.py::test_one", "sge", "engine")
    assert sorted(pieces, key=rank) == list(reversed(pieces))
    assert rank("anything/else.py") == len(ORDER) - 1


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/unit/test_cli.py::test_one", False),
        ("tests/e2e/test_plan.py::test_an_emitted_script_runs_anywhere", False),
        ("tests/workloads/test_metrics.py::test_one", False),
        ("tests/unit/test_job_state.py::test_one", False),
        ("tests/transport/test_pure.py::test_one", False),
        ("tests/contract/test_providers.py::test_plan[local]", False),
        ("tests/contract/test_providers.py::test_plan[ec2]", True),
        ("tests/e2e/test_run.py::test_one", True),
        ("tests/e2e/test_plan.py::test_one", True),
        ("tests/local/test_loopback.py::test_one", True),
        ("tests/unit/test_supervise.py::test_one", True),
        ("tests/unit/test_report.py::test_one", True),
        ("tests/unit/test_reports.py::test_one", False),
        ("tests/workloads/test_mnist.py::test_the_cnn_learns", True),
    ],
)
def test_a_fast_run_leaves_out_what_starts_nodes_or_runs_on_them_or_trains(
    nodeid: str, expected: bool
) -> None:
    assert bool(re.search(COSTLY, nodeid)) is expected

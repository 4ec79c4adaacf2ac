"""How `pytest -n` hands the tests of this suite out."""

from __future__ import annotations

import pytest

from tests.scheduling import ORDER, piece, rank


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/docker/test_cluster.py::test_it_trains", "engine"),
        ("tests/contract/test_providers.py::test_plan[docker]", "engine"),
        ("tests/attach/test_conformance.py::test_record[containers-good]", "engine"),
        ("tests/attach/test_conformance.py::test_record[good-slurm]", "slurm"),
        ("tests/attach/test_conformance.py::test_record[ec2-good]", "instances"),
        ("tests/contract/test_schedulers.py::test_script[slurm]", "tests/contract/test_schedulers"),
        ("tests/ec2/test_check.py::test_one", "tests/ec2/test_check.py::test_one"),
        ("tests/contract/test_providers.py::test_plan[ec2]", "tests/contract/test_providers.py::"),
        ("tests/unit/test_cli.py::test_one", "tests/unit/test_cli.py"),
    ],
)
def test_what_is_started_once_is_used_by_one_process(nodeid: str, expected: str) -> None:
    assert piece(nodeid).startswith(expected)


def test_long_pieces_come_first() -> None:
    pieces = ("tests/unit/test_cli.py", "tests/e2e/test_run.py::test_one", "sge", "engine")
    assert sorted(pieces, key=rank) == list(reversed(pieces))
    assert rank("anything/else.py") == len(ORDER) - 1

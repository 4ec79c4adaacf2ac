"""`run --interactive`: a terminal on the nodes of a batch system, which fakes stand for."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.unit import batch_here
from tests.unit.batch_here import Queue
from tests.unit.calling import Call

SIZE = {"slurm": ["--nodes", "1", "--partition", "gpu"], "sge": ["-pe", "mpi", "2"]}
PROGRAM = {"slurm": "srun", "sge": "qrsh"}


@pytest.fixture(params=["slurm", "sge"])
def queue(
    request: pytest.FixtureRequest, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Queue:
    made = batch_here.install(request.param, tmp_path / "queue", monkeypatch)
    attached = call("attach", f"--{request.param}", "--workdir", str(tmp_path / "work"))
    assert attached.code == 0, attached
    made.forget()
    return made


def test_a_dry_run_asks_for_no_nodes(queue: Queue, call: Call) -> None:
    """It prints the command that the same line runs without it."""
    words = ["run", "--interactive", *SIZE[queue.system]]
    said = call(*words, "--dry-run", "hostname", "-f")
    assert said.code == 0, said
    assert queue.calls() == []
    document = call(*words, "--dry-run", "--json", "hostname", "-f").document
    assert said.out == f"cd {shlex.quote(document['folder'])} && {shlex.join(document['argv'])}\n"
    assert queue.calls() == []
    assert call(*words, "hostname", "-f").code == 0
    assert [line.split() for line in queue.calls()] == [document["argv"]]
    assert document["argv"][0] == PROGRAM[queue.system]
    assert document["argv"][-2:] == ["hostname", "-f"]

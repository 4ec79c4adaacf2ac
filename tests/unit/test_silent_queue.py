"""A batch system whose controller does not answer, while its commands are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit import batch_here
from tests.unit.batch_here import Queue
from tests.unit.calling import Call

SILENCE = {
    "slurm": (
        "sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host",
        "sinfo: error: fetch_config: DNS SRV lookup failed",
        "sinfo: fatal: Could not establish a configuration source",
    ),
    "sge": (
        "error: commlib error: can't find connection",
        'error: unable to contact qmaster using port 6444 on host "head"',
    ),
}


@pytest.fixture(params=["slurm", "sge"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    return batch_here.install(request.param, tmp_path / "queue", monkeypatch)


def attach(queue: Queue, call: Call, tmp_path: Path) -> tuple[int, str]:
    said = call("attach", "lab", f"--{queue.system}", "--workdir", str(tmp_path / "work"))
    return said.code, said.err


def test_a_batch_system_that_does_not_answer_is_not_attached(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    queue.break_down(*SILENCE[queue.system])
    code, said = attach(queue, call, tmp_path)
    assert code == 5
    title, command = {"slurm": ("Slurm", "sinfo"), "sge": ("Grid Engine", "qstat")}[queue.system]
    assert f"{title} on this machine does not answer: {SILENCE[queue.system][-1]}" in said
    assert f"`{command}` must work there" in said
    assert "is ready" not in said
    assert call("list", "--json").document["clusters"] == []


def test_a_cluster_stays_on_record_when_it_is_attached_again_in_vain(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    assert attach(queue, call, tmp_path)[0] == 0
    queue.break_down(*SILENCE[queue.system])
    assert attach(queue, call, tmp_path)[0] == 5
    [row] = call("list", "--json").document["clusters"]
    assert row["cluster"] == "lab"


def test_status_says_in_one_line_why_the_queue_does_not_answer(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    assert attach(queue, call, tmp_path)[0] == 0
    complaints = SILENCE[queue.system]
    queue.break_down(*complaints)
    [login] = call("status", "lab", "--live", "--json").document["nodes"]
    assert login["live"] == f"no answer: {complaints[-1]}"


def test_a_job_that_the_queue_could_not_take_is_not_blamed_on_its_options(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    assert attach(queue, call, tmp_path)[0] == 0
    queue.break_down(*SILENCE[queue.system])
    said = call("run", "train.py")
    assert said.code == 6
    assert "the queue does not answer; `clusterctl status lab --live`" in said.err
    assert "options" not in said.err


def test_a_job_that_the_queue_refuses_is_blamed_on_its_options(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    assert attach(queue, call, tmp_path)[0] == 0
    queue.break_down("invalid partition specified: nowhere")
    said = call("run", "train.py")
    assert said.code == 6
    assert "check the options of the job; `clusterctl status lab --live`" in said.err

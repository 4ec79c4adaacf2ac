"""`verify` on real nodes, one of whose links is made slow by tc."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Need
from tests.e2e.cli import Cli, of_job, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.sshd, pytest.mark.netns]

DEVICE = "$(ip -o -4 addr show | grep -v ' lo ' | cut -d' ' -f2)"


def lines(report: dict[str, Any], what: str) -> list[tuple[str, str]]:
    return [(v["subject"], v["state"]) for v in report["verdicts"] if v["what"] == what]


@pytest.mark.mpi
def test_nodes_links_and_all_reduces(cli: Cli) -> None:
    """Everything is measured; what a busy machine slows down is no reason for exit code 8."""
    done = cli("verify", "--json", timeout=120, code=None)
    report = done.document()
    for what in ("cores", "core speed", "memory copy", "disk write", "GEMM cpu float32", "clock"):
        assert [name for name, _ in lines(report, what)] == ["worker-1", "worker-2"], what
    assert [name for name, _ in lines(report, "bandwidth")] == ["worker-1 – worker-2"]
    reduced = [("all-reduce gloo", "ok"), ("all-reduce mpi", "ok")]
    assert lines(report, "all-reduce") == reduced
    assert (done.code == 8) != report["ok"]


def test_a_slow_link(cli: Cli, need: Need) -> None:
    need("tc")
    shape = f"tc qdisc add dev {DEVICE} root tbf rate 20mbit burst 32kb lat 1s"
    cli("ssh", "worker-1", "--", shape)  # what it sends is slow, not what it receives
    try:
        done = cli("verify", "--quick", code=8)
    finally:
        cli("ssh", "worker-1", "--", f"tc qdisc del dev {DEVICE} root")
    [line] = [line for line in done.out.splitlines() if "bandwidth" in line]
    assert line.startswith("low ")
    assert "little for a machine" in line
    assert "from worker-1 to worker-2" in line


def test_a_cluster_with_a_job_is_left_alone(cli: Cli, cluster_id: str) -> None:
    """Until the job has ended, whether or not anybody has asked for it since."""
    cli.script(
        "waits.py",
        "import pathlib, sys, time\nprint('on', flush=True)\n"
        "while not pathlib.Path(sys.argv[1]).exists():\n    time.sleep(0.1)\n",
    )
    gate = cli.folder / "gate"
    number = cli.detach("waits.py", gate)
    wait_for(lambda: cli("logs", number).out.count("on") == 2, 30, "the job to begin")
    done = cli("verify", "--quick", code=7)
    assert f"job {number} may be running" in done.err
    assert "--now" in done.err
    gate.touch()
    wait_for(lambda: not of_job(cluster_id, number), 30, "the job to end")

    def measured() -> bool:
        return cli("verify", "--quick", code=None).code in (0, 8)

    wait_for(measured, 30, "its supervisor to note the end, after the last process has gone")

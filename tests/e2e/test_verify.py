"""`verify` on real nodes, one of whose links is made slow by tc."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Need
from tests.e2e.cli import Cli, Done, wait_for

pytestmark = [pytest.mark.sshd, pytest.mark.netns]

DEVICE = "$(ip -o -4 addr show | grep -v ' lo ' | cut -d' ' -f2)"


def lines(report: dict[str, Any], what: str) -> list[tuple[str, str]]:
    return [(v["subject"], v["state"]) for v in report["verdicts"] if v["what"] == what]


def test_nodes_and_links(cli: Cli) -> None:
    """Everything is measured, if other tests leave time for it; what a busy machine slows down is
    no reason for exit code 8."""
    tries: list[Done] = []

    def complete() -> bool:
        tries.append(cli("verify", "--json", timeout=120, code=None))
        found = tries[-1].document()
        return not found["left_out"]

    wait_for(complete, 150, lambda: f"verify to have time for all: {tries[-1]}")
    done = tries[-1]
    report = done.document()
    for what in ("cores", "core speed", "memory copy", "disk write", "GEMM cpu float32", "clock"):
        assert [name for name, _ in lines(report, what)] == ["worker-1", "worker-2"], what
    assert [name for name, _ in lines(report, "bandwidth")] == ["worker-1 – worker-2"]
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
    assert "of worker-1 is shaped by tc: tbf rate 20Mbit" in line


@pytest.mark.all
@pytest.mark.mpi
def test_curves_of_all_reduces_and_of_a_program(cli: Cli) -> None:
    """Also in the report. The programs do next to nothing: how fast they are is no matter here."""
    words = ("--backends", "mpi", "--max-size", "64", "--repeats", "2", "--json")
    found = cli("bench", "allreduce", *words, timeout=200).document()
    assert [(row["backend"], row["size"], row["ranks"]) for row in found["rows"]] == [
        ("mpi", 8, 2),
        ("mpi", 64, 2),
    ]
    for row in found["rows"]:
        assert 0 < row["seconds"]["low"] <= row["seconds"]["value"] <= row["seconds"]["high"]
        assert row["bus"] == row["algorithm"], "of two ranks"
    assert found["limit"]["rate"] > 0
    cli.script(
        "steps.py",
        "import json, os\n"
        "line = {'epoch': 0, 'seconds': 4 / int(os.environ['WORLD_SIZE'])}\n"
        "if os.environ['RANK'] == '0':\n    print(json.dumps({'clusterctl': line}))\n",
    )
    words = ("--ranks", "1,2", "--repeats", "1", "--json", "steps.py")
    curve = cli("bench", "scaling", *words, timeout=200).document()
    assert [step["speedup"]["value"] for step in curve["steps"]] == [1, 2]
    assert (curve["unit"], curve["fastest"]) == ("epoch", 2)
    page = cli("report", "--output", "-").out
    assert "<h2>All-reduce</h2>" in page
    assert "steps.py, measured by clusterctl bench scaling" in page

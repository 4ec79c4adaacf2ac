"""A sweep on a cluster: each point with its values and its folder, failed ones again alone."""

from __future__ import annotations

import json

import pytest

from tests.e2e.cli import Cli, wait_for

pytestmark = pytest.mark.sshd

TRAIN = """\
import json, os, sys
values = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert os.environ["CLUSTERCTL_SWEEP_LR"] == values["--lr"]
assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")
print("lr", values["--lr"], "seed", values["--seed"], open("conf.txt").read())
if values["--lr"] == "0.1" or values["--seed"] == "1":
    loss = 0.25 if values["--lr"] == "0.1" else float("nan")
    for loss in (9, loss):
        print(json.dumps({"clusterctl": {"loss": loss, "time": 1.0}}))
with open("model.txt", "x") as file:
    file.write(values["--lr"])
sys.exit(4 if values["--seed"] == "1" and values["--lr"] == "a b" else 0)
"""


def test_points_run_in_folders_of_their_own_and_failed_ones_again(cli: Cli) -> None:
    cli.script("train.py", TRAIN)
    cli.script("conf.txt", "shared")
    sweep = ("--sweep", "lr=0.1,a b", "--sweep", "seed=0..1")
    done = cli("run", *sweep, "train.py", code=4)
    assert [done.of(number)[:1] for number in range(4)] == [
        ["lr 0.1 seed 0 shared"],
        ["lr 0.1 seed 1 shared"],
        ["lr a b seed 0 shared"],
        ["lr a b seed 1 shared"],
    ]
    assert f"1 of 4 points did not succeed: {done.job}.3" in done.err
    (listed,) = [item for item in cli.json("jobs")["jobs"] if item["id"] == done.job]
    assert listed["points"] == {"total": 4, "ended": 4, "failed": [3]}
    shown = cli("jobs", done.job).out.splitlines()
    assert [line.split() for line in shown[-5:]] == [
        ["point", "lr", "seed", "exit", "loss"],
        ["0", "0.1", "0", "0", "0.25"],
        ["1", "0.1", "1", "0", "0.25"],
        ["2", "a", "b", "0", "0", "-"],
        ["3", "a", "b", "1", "4", "nan"],
    ]
    (row,) = cli.json("jobs", done.job)["jobs"]
    assert row["points"]["table"][3] == {
        "point": 3,
        "values": {"lr": "a b", "seed": "1"},
        "exit_code": 4,
        "metrics": {"loss": None},
    }
    assert cli("logs", f"{done.job}.2").out == "[2] lr a b seed 0 shared\n"
    cli("fetch", done.job)
    found = {
        path.parent.name: path.read_text()
        for path in (cli.folder / f"job-{done.job}").glob("*/points/*/*")
    }
    assert found == {"0": "0.1", "1": "0.1", "2": "a b", "3": "a b"}  # and no links
    again = cli("rerun", done.job, "--failed", code=4)
    assert again.of(3)[0] == "lr a b seed 1 shared"
    assert {line[:4] for line in again.out.splitlines()} == {"[3] "}


def test_cancel_ends_a_sweep_and_starts_no_further_point(cli: Cli) -> None:
    number = cli.json("run", "--detach", "--array", "5-40", "--", "sleep", "300")["id"]

    def started() -> bool:
        (item,) = [item for item in cli.json("jobs")["jobs"] if item["id"] == number]
        return bool(item["state"] == "running")

    wait_for(started, 30, "the first point")
    assert "no processes of it found" in cli("cancel", number).out
    record = json.loads((cli.home / "jobs" / str(number) / "job.json").read_text())
    assert record["state"] == "cancelled"
    assert len(record["points_ended"]) <= 8

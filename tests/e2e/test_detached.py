"""Jobs that nobody watches: they go on, wait their turn, and can be met again."""

from __future__ import annotations

import os

import pytest

from tests.conftest import Need
from tests.e2e.cli import Cli, wait_for

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

COUNTS = """
import os, sys, time
for n in range(60):
    print("line", n)
    print("problem", n, file=sys.stderr)
    time.sleep(0.05)
"""
LINES = [f"line {n}" for n in range(60)]
PROBLEMS = [f"problem {n}" for n in range(60)]

WAITS = """
import os, pathlib, sys, time
print("on", flush=True)
gate = pathlib.Path(sys.argv[1])
while not gate.exists():
    time.sleep(0.02)
"""


def whole(done: object) -> bool:
    return all(
        done.of(rank) == LINES and done.of(rank, "err") == PROBLEMS  # type: ignore[attr-defined]
        for rank in (0, 1)
    )


def test_the_job_outlives_its_client_and_is_followed_again(cli: Cli) -> None:
    """kill -9 of the client: `logs -f` has every line exactly once, `jobs` how it ended."""
    cli.script("counts.py", COUNTS)
    client = cli.start("run", "counts.py")
    client.until("line 10", times=2)
    number = client.now().job
    client.kill()
    assert cli.job(number)["state"] == "running"
    followers = [cli.start("logs", number, "-f"), cli.start("logs", "-f", number)]
    for follower in followers:
        done = follower.wait(30)
        assert done.code == 0
        assert whole(done), done
    job = cli.job(number)
    assert (job["state"], job["program_exit_code"]) == ("succeeded", 0)
    assert job["seconds"] > 0
    assert whole(cli("logs", number))
    assert cli("logs", number, "--rank", 1).of(0) == []
    assert cli("logs", number, "--rank", 1).of(1) == LINES


def test_a_follower_that_dies_half_way_loses_nothing(cli: Cli) -> None:
    """Following again goes on where the stored copy stops, whoever wrote it."""
    cli.script("counts.py", COUNTS)
    number = cli.detach("counts.py")
    follower = cli.start("logs", number, "-f")
    follower.until("line 3", times=2)
    follower.interrupt()  # only detaches
    done = follower.wait(10)
    assert (done.code, "keeps running" in done.err) == (130, True)
    for text in ("line 10", "line 25"):
        follower = cli.start("logs", number, "-f")
        follower.until(text, times=2)
        follower.kill()
    assert whole(cli("logs", number, "-f"))
    assert whole(cli("logs", number))


def test_a_detached_failure_is_on_record(cli: Cli) -> None:
    cli.script("fails.py", "import os, sys; sys.exit(5 if os.environ['RANK'] == '1' else 0)")
    number = cli.detach("fails.py")
    # Nobody has asked after it since.
    wait_for(lambda: number not in cli.json("status", "--live")["jobs"], 30, "status to ask, too")
    job = cli.until_state(number, "failed")
    assert job["failure"] == {"rank": 1, "node": "worker-2", "exit_code": 5}
    assert job["program_exit_code"] == 5
    row = next(line for line in cli("jobs").out.splitlines() if line.startswith(f"{number} "))
    assert "failed" in row
    assert " 5 " in row


def fill(cli: Cli, *options: object) -> tuple[object, ...]:
    """Options of a job that leaves no room for another."""
    slots = cli.status()["nodes"][1]["slots"]
    return (*options, "--ranks-per-node", slots, "waits.py")


def test_jobs_wait_their_turn_in_order(cli: Cli) -> None:
    """FIFO where they do not fit beside each other; a queued job may go."""
    cli.script("waits.py", WAITS)
    gates = [cli.folder.parent / f"gate-{n}" for n in range(4)]
    first = cli.detach(*fill(cli), gates[0])
    cli.until_state(first, "running")
    second = cli.detach(*fill(cli), gates[1])
    follower = cli.start("run", *fill(cli), gates[2])
    follower.until(f"is waiting: behind job {second} (--now")
    third = follower.now().job
    doomed = [cli.detach(*fill(cli), gates[3]) for _ in range(2)]
    cli("cancel", *doomed, 9999, code=7)  # a number that is wrong ends no other job
    assert cli.job(doomed[0])["state"] == "queued"
    ended = cli.json("cancel", *doomed, doomed[0])["jobs"]
    assert [(job["id"], job["state"]) for job in ended] == [(n, "cancelled") for n in doomed]
    gates[0].touch()
    cli.until_state(second, "running")
    assert cli.job(third)["state"] == "queued"
    gates[1].touch()
    gates[2].touch()
    done = follower.wait(30)
    assert (done.code, done.of(0)) == (0, ["on"])


def test_jobs_that_fit_run_beside_each_other(own: Cli, need: Need) -> None:
    need((os.cpu_count() or 1) > 1, "needs two cores")
    assert own.json("up", "--workers", 1)["nodes"][1]["slots"] >= 2
    own.script("waits.py", WAITS)
    gate = own.folder.parent / "gate"
    both = [own.detach("--ranks-per-node", 1, "waits.py", gate) for _ in range(2)]
    for number in both:
        own.until_state(number, "running")
    gate.touch()
    for number in both:
        own.until_state(number, "succeeded")

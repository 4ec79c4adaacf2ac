"""launch: a cluster for one program, and nothing left of it."""

from __future__ import annotations

import json
import signal

import pytest

from tests.e2e.cli import Cli, wait_for
from tests.terminal import Terminal

pytestmark = pytest.mark.sshd

WRITES = "import os, sys\nopen('out.txt', 'w').write(os.environ['RANK'])\nprint('done')\n"


def test_a_program_from_nothing_to_nothing(own: Cli) -> None:
    own.script("My Train.py", WRITES)
    done = own("launch", "--json", "--workers", "1", "--env", "MINE=1", "My Train.py")
    lines = [json.loads(line) for line in done.out.splitlines()]
    made = next(line for line in lines if "phase" in line)
    assert made["cluster"] == "my-train"
    assert [line["line"] for line in lines if "line" in line] == ["done"]
    removed = lines[-1]
    assert (removed["cluster"], removed["existed"], removed["unfetched"]) == ("my-train", True, [])
    [job] = own.jobs().values()
    assert (job["state"], job["env"]) == ("succeeded", {"MINE": "1"})
    [written] = own.folder.glob(f"job-{job['id']}/**/out.txt")
    assert written.read_text() == "0"
    assert own.json("list")["clusters"] == []


def test_a_program_that_fails_ends_its_cluster_too(own: Cli) -> None:
    own.script("fails.py", f"{WRITES}sys.exit(3)")
    failed = own("launch", "fails.py", code=3)
    assert "out.txt" in "".join(map(str, own.folder.glob("job-*/**/out.txt")))
    assert "exited 3" in failed.err
    assert own.json("list")["clusters"] == []
    missing = own("launch", "nothing.py", code=2)
    assert "nodes" not in missing.err  # a mistake costs no cluster


def test_ctrl_c_ends_the_cluster(own: Cli) -> None:
    own.script("waits.py", "import time; print('computing', flush=True); time.sleep(300)")
    started = own.start("launch", "waits.py")
    started.until("computing")
    started.interrupt()
    done = started.wait()
    assert done.code == 130, done
    assert own.json("list")["clusters"] == []
    assert {job["state"] for job in own.jobs().values()} == {"cancelled"}


@pytest.mark.all
def test_ctrl_c_instead_of_an_answer_keeps_no_cluster(own: Cli) -> None:
    own.script("waits.py", "import time; print('computing', flush=True); time.sleep(300)")
    terminal = Terminal(
        [own.python, "-m", "clusterctl", "launch", "waits.py"],
        cwd=own.folder,
        env=own.environment({"TERM": "xterm"}),
        keyboard=True,
    )
    try:
        for wanted in ("computing", "Keep cluster waits?"):
            terminal.until_shown(wanted)
            terminal.process.send_signal(signal.SIGINT)
        terminal.wait()
    finally:
        terminal.close()
    assert terminal.process.returncode == 130
    assert own.json("list")["clusters"] == []


def test_a_cluster_is_kept_when_it_is_wanted(own: Cli) -> None:
    own.script("train.py", WRITES)
    kept = own("launch", "--keep", "-c", "lab", "train.py")
    assert "clusterctl down lab" in kept.err
    assert own.json("status", "lab")["phase"] == "ready"
    again = own("launch", "-c", "lab", "train.py", code=7)
    assert "clusterctl run -c lab" in again.err
    assert own.json("status", "lab")["phase"] == "ready"


def test_a_detached_launch_is_ended_by_the_next_command(own: Cli) -> None:
    own.script("train.py", f"import time\n{WRITES}time.sleep(4)")
    left = own("launch", "--detach", "--workers", "1", "train.py")
    assert "the next clusterctl command copies its outputs" in left.err
    wait_for(lambda: own.json("list")["clusters"] == [], 90, "its end")
    assert len(list(own.folder.glob("job-*/**/out.txt"))) == 1
    assert {job["state"] for job in own.jobs().values()} == {"succeeded"}

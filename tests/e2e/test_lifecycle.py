"""up, status, list, down: what a person sees, and that nothing stays."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Need
from tests.e2e.cli import Cli, Traces, tagged, wait_for

pytestmark = pytest.mark.sshd

SAVES = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("model.pt").write_text("weights")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("on", flush=True)
time.sleep(300)
"""
"""Has no outputs before it is told to end."""


@pytest.mark.netns  # each node a host of its own
def test_up_tells_what_it_made_and_down_leaves_nothing(own: Cli, need: Need) -> None:
    """The whole life of a cluster, as a script sees it; plain ssh knows its nodes, and what a
    job saves when it is ended is not lost."""
    made = own.json("up", "--ttl", "1h")
    assert made["cluster"] == "default"
    assert made["phase"] == "ready"
    assert made["mode"] in ("namespaces", "loopback")
    assert [(node["name"], node["role"]) for node in made["nodes"]] == [
        ("launcher", "launcher"),
        ("worker-1", "worker"),
        ("worker-2", "worker"),
    ]
    assert all(node["slots"] >= 1 for node in made["nodes"])
    traces = Traces.of(own)
    assert len(tagged(f"CLUSTERCTL_NODE={made['id']}/")) >= 3
    assert all(folder.exists() for folder in traces.folders)

    assert "default-worker-1" in own("ssh-config").out.splitlines()
    plain = [need("ssh"), "-F", f"{own.environment({})['HOME']}/.ssh/config", "-o", "BatchMode=yes"]
    plain += ["default-worker-1", "echo $((40 + 2))"]
    done = subprocess.run(plain, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr

    own.script("saves.py", SAVES)
    number = own.detach("-n", "1", "saves.py")
    wait_for(lambda: "on" in own("logs", number).out, 30, "its first line")
    refused = own("down", code=2)
    assert f"job {number} is still running" in refused.err
    assert own.job(number)["state"] == "running"
    refused = own("down", "--yes", code=2)
    assert f"job {number} has unfetched outputs: 7 B" in refused.err
    assert own.job(number)["state"] == "cancelled"
    gone = own.json("down", "--fetch")
    assert (gone["cluster"], gone["existed"], gone["nodes"]) == ("default", True, 3)
    assert gone["dollars"] == 0
    assert (own.folder / f"job-{number}" / "worker-1" / "model.pt").read_text() == "weights"
    assert traces.left() == []
    assert subprocess.run(plain, capture_output=True, timeout=60).returncode == 255
    assert own.json("list")["clusters"] == []
    again = own.json("down")
    assert again["existed"] is False


def test_an_up_that_is_told_to_end_says_what_is_there(own: Cli) -> None:
    running = own.start("up", "--workers", "8")
    running.until("9 nodes on this machine")
    running.process.send_signal(signal.SIGTERM)
    ended = running.wait(20)
    assert ended.code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in ended.err
    if own.json("list")["clusters"]:  # unless nothing had been made
        assert "`clusterctl up default` continues" in ended.err
    own("down")


WRITE_SHARED = """
import os, pathlib
path = pathlib.Path(os.environ["CLUSTERCTL_SHARED"], "from-0")
path.write_text(os.environ["RANK"] + " wrote this")
"""
READ_SHARED = """
import os, pathlib
print(pathlib.Path(os.environ["CLUSTERCTL_SHARED"], "from-0").read_text(), flush=True)
"""


def test_up_again_resumes_and_changes_the_number_of_workers(own: Cli) -> None:
    """`up` is how a cluster grows, shrinks and is repaired; its identity and its shared folder
    stay. Outputs that go with a worker are named, and logs are saved."""
    first = own.json("up", "--workers", 1, "--shared")
    own.script("write.py", WRITE_SHARED)
    own("run", "write.py")
    more = own.json("up", "--workers", 3)
    assert (more["id"], more["shared"]) == (first["id"], first["shared"])
    own.script("read.py", READ_SHARED)
    seen = own("run", "read.py")
    assert [seen.of(rank) for rank in (0, 1, 2)] == [["0 wrote this"]] * 3
    assert first["shared"] in own("status").out
    assert [node["name"] for node in more["nodes"]][1:] == ["worker-1", "worker-2", "worker-3"]
    own.script("keeps.py", "import os; open('kept', 'w').write(os.environ['RANK']); print('wrote')")
    number = own.detach("keeps.py")
    own.until_state(number, "succeeded")
    own("up", "--json", "--workers", 1, code=2)
    fewer = own("up", "--json", "--workers", 1, "--yes")
    assert len(fewer.document()["nodes"]) == 2
    assert f"job {number} has unfetched outputs: 2 B" in fewer.err
    assert not tagged(f"CLUSTERCTL_NODE={first['id']}/worker-3")
    assert own("logs", number).of(2) == ["wrote"]
    assert [item["node"] for item in own.json("fetch", number)["files"]] == ["worker-1"]
    traces = Traces.of(own)
    assert f"{first['shared']} has 1 file: 12 B" in own("down", code=2).err
    own("down", "--fetch")
    assert (own.folder / "shared-default" / "from-0").read_text() == "0 wrote this"
    assert traces.left() == []


def test_up_dry_run_makes_nothing(own: Cli, tmp_path: Path) -> None:
    plan = own.json("up", "--dry-run", "--workers", "5")
    assert plan["dry_run"] is True
    assert plan["mode"] in ("namespaces", "loopback")
    assert not own.home.exists() or own.json("list")["clusters"] == []

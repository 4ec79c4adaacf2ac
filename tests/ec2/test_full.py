"""The three commands exactly as the README has them, in a terminal, on full machines: systemd,
cloud-init, an engine in each, and the node containers."""

from __future__ import annotations

import os
import pty
import select
import shlex
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Need
from tests.ec2 import receipts
from tests.ec2.conftest import World
from tests.sim.engine import Engine

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(2700),
]


def in_terminal(world: World, command: str, answers: dict[str, str], seconds: float) -> str:
    """Types a command line; answers the questions that come. Returns what the terminal shows."""
    pid, fd = pty.fork()
    if pid == 0:
        words = shlex.split(command)
        os.chdir(world.env["HOME"])
        os.execve(sys.executable, [sys.executable, "-m", *words], world.env)
    shown = ""
    waiting = dict(answers)
    end = time.monotonic() + seconds
    while True:
        assert time.monotonic() < end, shown
        if not select.select([fd], [], [], 1)[0]:
            continue
        try:
            data = os.read(fd, 65536)
        except OSError:  # the other side has closed the terminal
            break
        if not data:
            break
        shown += data.decode(errors="replace")
        for question, answer in list(waiting.items()):
            if question in shown:
                os.write(fd, f"{answer}\n".encode())
                del waiting[question]
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, shown
    assert not waiting, f"it never asked {waiting}:\n{shown}"
    return shown


def end_unused(world: World, folder: Path) -> None:
    """The workers' containers run on, and nobody uses them: the machines end, and the launcher has
    what the last job there has made."""
    world.wait_for_unused(300)
    number = str(world.ok("jobs", "--json").document()["jobs"][-1]["id"])
    assert "Epoch 999" in world.ok("logs", number).out
    world.ok("fetch", number, "--to", str(folder))
    assert [path.parent.name for path in folder.rglob("snapshot.pt")] == ["worker-1"]


@pytest.mark.all
def test_the_three_commands(world: World, engine: Engine, need: Need, tmp_path: Path) -> None:
    """No registry holds anything of ours: the nodes build their images from public things. What is
    typed is what the documents say; these machines have no GPU."""
    world.on_the_first_day()
    world.late = receipts.SHUTDOWN
    with world.settings.open("a") as settings:
        settings.write('runtime = "docker"\n[run]\nallow_cpu = true\n')
    world.ec2.grant(8)
    with world.ec2.full(engine, need) as internet:
        digest = internet.public_base()
        world.env["PYTHONPATH"] = str(internet.edition(tmp_path / "edition", digest))
        world.env["CLUSTERCTL_DOCKER_HUB"] = internet.registry.url
        up = in_terminal(world, "clusterctl up --gpu g4dn", {"machines for up to $": "y"}, 900)
        assert "2 worker    g4dn.xlarge" in up
        for kind in ("the launcher", "nvidia workers"):
            assert f"image of {kind}: built there from the recipe" in up
        assert digest[:19] in up.partition("machines for up to $")[0]
        assert "all-reduce ok: 2 ranks on 2 hosts, each holds 1 = W(W-1)/2" in up
        assert "clusterctl run multinode_ddp_mpi_gpu.py 1000 1000" in up
        record = world.record()
        assert {node["job_port"] for node in record["nodes"]} == {2222}
        assert {node["python"] for node in record["nodes"]} == {"/opt/venv/bin/python"}
        world.keep_provider()
        in_terminal(world, "clusterctl up --idle 1m --yes", {}, 300)
        job = in_terminal(world, "clusterctl run multinode_ddp_mpi_gpu.py 1000 1000", {}, 1200)
        assert "Epoch 999" in job
        assert "succeeded" in job
        end_unused(world, tmp_path / "fetched")
        down = in_terminal(world, "clusterctl down", {}, 120)
        assert "nothing tagged clusterctl:cluster=" in down
        assert "was removed: 3 nodes" in down
        world.ec2.wait(0, seconds=60)

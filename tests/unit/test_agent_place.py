"""The agent's own files on a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from clusterctl.core import assets
from clusterctl.machines.attached import render_removal
from tests.unit.scripts import write_program


def test_an_older_agent_stays_as_long_as_a_job_was_started_with_it(tmp_path: Path) -> None:
    digest = assets.pack_agent()[0]
    for name in ("used", "unused", "fresh"):
        (tmp_path / "agent" / name).mkdir(parents=True)
        if name != "fresh":
            os.utime(tmp_path / "agent" / name, (1_000_000_000, 1_000_000_000))
    (tmp_path / "jobs" / "7").mkdir(parents=True)
    (tmp_path / "jobs" / "7" / "agent.sh").write_text(f"exec /bin/sh {tmp_path}/agent/used/run\n")
    subprocess.run(
        ["/bin/sh", "-es"], cwd=tmp_path, input=assets.render_agent().encode(), check=True
    )
    assert {path.name for path in (tmp_path / "agent").iterdir()} == {"used", "fresh", digest}


def test_only_a_python_that_runs_is_taken(tmp_path: Path) -> None:
    fakes = [tmp_path / name for name in ("says-nothing", "fails")]
    for fake, code in zip(fakes, (0, 1), strict=True):
        write_program(fake, f"echo nonsense; exit {code}")
    script = assets.render_agent(*map(str, fakes), sys.executable)
    subprocess.run(["/bin/sh", "-es"], cwd=tmp_path, input=script.encode(), check=True)
    pythons = (tmp_path / "agent" / assets.pack_agent()[0] / "pythons").read_text()
    assert pythons.splitlines()[0] == sys.executable


def test_nothing_of_it_runs_when_its_folder_is_removed(tmp_path: Path) -> None:
    """It would make parts of the folder anew. Others run on."""
    own, other = tmp_path / "it's [1].*" / "lab-1", tmp_path / "it's [1]xx" / "lab-1"
    (own / "agent").mkdir(parents=True)
    running = [
        subprocess.Popen([f"{root}/agent/x/__main__.py", "60"], executable="/bin/sleep")
        for root in (own, other)
    ]
    subprocess.run(["/bin/sh", "-c", render_removal(str(own), "lab-1")], check=True)
    assert running[0].wait(10) == -signal.SIGKILL
    assert running[1].poll() is None
    running[1].kill()
    running[1].wait()
    assert not own.exists()

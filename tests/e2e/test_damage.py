"""Lost records, full disks, closed streams, a node that hangs: all is said, and nothing stays."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.e2e.cli import ROOT, Cli, Traces
from tests.e2e.conftest import MakeCli
from tests.unit.tables import rows

pytestmark = pytest.mark.sshd

TRIVIAL = "print('done')\n"


def record(cli: Cli) -> Path:
    return cli.home / "clusters" / "default" / "cluster.json"


@pytest.mark.parametrize("how", ["damaged", "folder removed"])
def test_down_finds_a_cluster_without_its_record(own: Cli, how: str) -> None:
    own("up", "--workers", 1)
    traces = Traces.of(own)
    if how == "damaged":
        record(own).write_text("{")
        shown = own("status", code=7)
        assert "clusterctl down default" in shown.err
        assert own.json("list")["damage"]
    else:
        shutil.rmtree(record(own).parent)
    assert "default" in own("down", "default").err
    assert traces.left() == []
    assert own.json("list") == {"schema": 1, "clusters": [], "damage": []}


def test_a_job_that_never_reached_its_cluster_is_lost(own: Cli) -> None:
    """Its clusterctl was killed before: only the record is there."""
    own("up", "--workers", 1)
    own.script("trivial.py", TRIVIAL)
    first = own("run", "trivial.py").job
    jobs = own.home / "jobs"
    for number, verb in ((2, "jobs"), (3, "logs"), (4, "cancel")):
        (jobs / str(number)).mkdir(mode=0o700)
        found = json.loads((jobs / str(first) / "job.json").read_text())
        found.update(id=number, state="queued", started=None, finished=None, fetched=False)
        found.update(program_exit_code=None, survivors={})
        (jobs / str(number) / "job.json").write_text(json.dumps(found))
        own(verb, *([] if verb == "jobs" else [number]), code=None, timeout=20)
        job = own.job(number)
        assert (job["state"], job["started"]) == ("lost", None)
        assert "before it was submitted" in job["reason"]


@pytest.fixture
def small_disk(tmp_path: Path, need_root: None) -> Iterator[Path]:
    """A file system of 3 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)], check=False)
    if made.returncode:
        missing("needs the right to mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_keeps_no_machine(small_disk: Path, make_cli: MakeCli) -> None:
    """Verbs that have to write say where; `down` takes the machines all the same."""
    cli = make_cli(str(small_disk / "state"))
    (small_disk / "early").write_bytes(bytes(2_850_000))
    said = cli("up", "--workers", 1, code=3).err
    assert "No space left on device" in said
    assert f"free some space in {cli.home}, then" in said
    (small_disk / "early").unlink()
    cli("up", "--workers", 1)
    cli.script("sleep.py", "import time; time.sleep(300)\n")
    number = cli.detach("sleep.py")
    traces = Traces.of(cli)

    def fill(name: str) -> None:
        to = f"of={small_disk / name}"
        subprocess.run(["dd", "if=/dev/zero", to, "bs=1k"], capture_output=True, check=False)

    fill("fill")
    for verb in (["up", "other"], ["run", "sleep.py"]):
        said = cli(*verb, code=3).err
        assert "No space left on device" in said
        assert "bug" not in said
    assert cli("status").code == 0
    cli("cancel", number, code=None)
    fill("more")  # what the end of the job has made room for
    assert "No space left" in cli("down").err
    assert traces.left() == []


def through_shell(cli: Cli, line: str) -> tuple[int, str]:
    """`line` with $C for clusterctl: its exit code and what it wrote to its stderr."""
    done = subprocess.run(
        ["sh", "-c", line.replace("$C", f"{sys.executable} -m clusterctl")],
        cwd=cli.folder,
        env={**cli.environment(None), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@rows("line, code, says", "damage.streams_and_words_that_are_not_as_they_should_be")
def test_streams_and_words_that_are_not_as_they_should_be(
    cli: Cli, line: str, code: int, says: str
) -> None:
    cli.script("trivial.py", TRIVIAL)
    ended, err = through_shell(cli, line)
    assert ended == code, err
    assert says in err
    assert "Traceback" not in err
    assert "bug" not in err


def test_a_run_whose_output_cannot_be_written_says_that_the_job_goes_on(cli: Cli) -> None:
    cli.script("talks.py", "import time\nwhile True: print('on', flush=True); time.sleep(0.1)\n")
    ended, err = through_shell(cli, "$C run talks.py >/dev/full")
    assert ended == 2
    assert "keeps running; follow it with `clusterctl logs" in err


def test_a_run_that_is_told_to_end_leaves_its_job_and_says_so(cli: Cli) -> None:
    cli.script("talks.py", "import time\nprint('here', flush=True); time.sleep(300)")
    running = cli.start("run", "talks.py")
    running.until("here")
    running.process.terminate()
    ended = running.wait(10)
    assert ended.code == 128 + signal.SIGTERM
    assert "keeps running; follow it with `clusterctl logs" in ended.err
    assert cli.job(ended.job)["state"] == "running"

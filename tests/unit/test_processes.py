"""The script that finds and ends a job's processes on a node, run here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.scripts import processes, until


@pytest.fixture
def tagged() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that carry a job's tag."""
    started: list[subprocess.Popen[bytes]] = []

    def start(tag: str, script: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"{script}\necho; while :; do sleep 0.05; done"],
            env={**os.environ, "CLUSTERCTL_JOB": tag},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        process.stdout.readline()  # it has come as far as its loop
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_sweep_finds_the_jobs_own_processes(
    tagged: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    tag = f"lab-{os.getpid()}/1;"
    assert processes(tmp_path, tag, "look") == ["survivors 0"]
    mine = tagged(tag, "")
    other = tagged(tag.replace("/1;", "/11;"), "")
    count = int(processes(tmp_path, tag, "look")[0].split()[1])
    assert count in (1, 2)  # the shell, and the sleep it may be in
    assert processes(tmp_path, tag, "end", "2") == ["survivors 0"]
    assert mine.wait(timeout=10) == -signal.SIGTERM
    assert other.poll() is None


@pytest.mark.parametrize(
    "obstacle", ["trap '' TERM", "echo; kill -STOP $$"], ids=["ignores SIGTERM", "stopped"]
)
def test_sweep_ends_what_resists(
    obstacle: str, tagged: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    tag = f"lab-{os.getpid()}/2;"
    process = tagged(tag, obstacle)
    if "STOP" in obstacle:
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
    assert processes(tmp_path, tag, "end", "0")[0] == "survivors 0"
    assert process.wait(timeout=10) < 0


@pytest.mark.parametrize("verb", ["look", "end", "again"])
def test_sweep_tells_what_ranks_left(verb: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "env").touch()
    for name, text in (
        ("rank-0.pid", "12\n"),
        ("rank-11.pid", "13\n"),
        ("rank-11.exit", "3 1700000000.5 2\n"),
        ("rank-2.exit.new", "9 9 9\n"),
        ("rank-0.out", "survivors 7\n"),
    ):
        (tmp_path / "out" / name).write_text(text)
    lines = processes(tmp_path, "lab-none/3;", *([verb] if verb == "look" else [verb, "0"]))
    assert lines == ["survivors 0", "started 0", "started 11", "exit 11 3 1700000000.5 2"]
    assert (tmp_path / "env").exists() == (verb != "end")  # the secrets go last


# ------------------------------------------------------------------------------------------------
# How long a command has run already when it begins its work.


def test_the_age_of_a_process_counts_from_its_start() -> None:
    """Not from where our code begins: loading it takes seconds on a busy machine."""
    program = (
        "import time; time.sleep(1.2)\n"
        "from clusterctl.core import clock; print(clock.measure_age())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert float(done.stdout) > 1.1  # the kernel counts hundredths of seconds


# ------------------------------------------------------------------------------------------------
# What runs on this machine while a command waits for it.


WAITING = """
import signal, sys
from clusterctl import process
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP, and who starts the tests may, too
try:
    process.run(["sh", "-c", "echo $$ >started; exec sleep 100"], timeout=100)
except KeyboardInterrupt as stopped:
    sys.exit(stopped.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_us_ends_what_we_wait_for(number: int, tmp_path: Path) -> None:
    """A build would go on for minutes."""
    ours = subprocess.Popen([sys.executable, "-c", WAITING], cwd=tmp_path)
    started = tmp_path / "started"
    until(lambda: started.exists() and started.read_text().endswith("\n"))
    ours.send_signal(number)
    assert ours.wait(timeout=20) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.killpg(int(started.read_text()), 0)

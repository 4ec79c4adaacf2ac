"""What stands for a fresh Python in other tests does as one does."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import wait_for
from tests.warm.client import BEGIN, Late, Warm


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    warm = Warm(sys.executable, "json.*")
    yield warm
    warm.close()


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def test_a_program_gets_what_it_is_given(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import os, sys\nprint(os.getcwd(), *sys.argv[1:])\n")
    path = script(
        tmp_path,
        "import os, sys, beside\n"
        "print(sorted(os.environ), repr(sys.stdin.read()), file=sys.stderr)\n"
        "sys.exit(3)",
    )
    for begin in ([path], ["-m", "script"]):
        env = {"ONE": "1", "TWO": "a b"}
        done = warm.run([*begin, "x", "y z"], cwd=tmp_path, env=env, timeout=30)
        assert done.stdout == f"{tmp_path} x y z\n"
        assert done.stderr == "['ONE', 'TWO'] ''\n"
        assert done.returncode == 3


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit('no such file')", 1, "no such file\n"),
        ("sys.exit(300)", 44, ""),
        ("raise ValueError('odd')", 1, "ValueError: odd\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("sys.stdout.close()", 0, ""),
    ],
)
def test_it_ends_as_python_does(
    warm: Warm, tmp_path: Path, last: str, code: int, said: str
) -> None:
    path = script(
        tmp_path,
        "import atexit, pathlib, sys, threading\n"
        "atexit.register(pathlib.Path('left').write_text, 'yes')\n"
        "threading.Timer(0.2, pathlib.Path('waited').write_text, ['yes']).start()\n"
        f"print('buffered')\n{last}",
    )
    for python in (False, True):
        if python:
            argv = [sys.executable, path]
            done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=30)
        else:
            done = warm.run([path], cwd=tmp_path, env={}, timeout=30)
        assert (done.stdout, done.returncode) == ("buffered\n", code)
        assert done.stderr.endswith(said)
        for name in ("left", "waited"):
            assert (tmp_path / name).read_text() == "yes"
            (tmp_path / name).unlink()


def test_it_ends_by_a_signal_and_by_its_time(warm: Warm, tmp_path: Path) -> None:
    path = script(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)")
    done = warm.run([path], cwd=tmp_path, env={}, timeout=30)
    assert done.returncode == -signal.SIGTERM
    path = script(
        tmp_path, "import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(1)"
    )
    with pytest.raises(Late) as caught:
        warm.run([path], cwd=tmp_path, env={}, timeout=4)
    assert "<module> (" in str(caught.value), "where it stands"
    place = Path("/proc", caught.value.output.decode().strip())
    wait_for(lambda: not place.exists(), 10, "it has not ended")


def test_who_keeps_its_output_is_named_and_ended(warm: Warm, tmp_path: Path) -> None:
    """A process that a command has left behind, and that has its stdout: to read takes for ever."""
    path = script(
        tmp_path,
        "import subprocess\n"
        "print(subprocess.Popen(['sleep', '300'], start_new_session=True).pid, flush=True)",
    )
    with pytest.raises(Late) as caught:
        warm.run([path], cwd=tmp_path, env={}, timeout=5)
    pid = int(caught.value.output)
    assert f"{pid} (of " in str(caught.value)
    assert ": sleep 300" in str(caught.value)
    wait_for(lambda: not Path(f"/proc/{pid}/fd/1").exists(), 10, "it has not ended")


def test_who_asks_and_is_killed_harms_no_other(warm: Warm, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(warm.address())
        connection.sendall(b"{")
    path = script(tmp_path, "print('fine')")
    assert warm.run([path], cwd=tmp_path, env={}, timeout=30).stdout == "fine\n"


def test_a_command_stands_for_its_program(warm: Warm, tmp_path: Path) -> None:
    """For launchers, which start a program and signal it."""
    path = script(
        tmp_path,
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.01)",
    )
    argv = [sys.executable, "-IS", str(BEGIN), warm.address(), path]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as begun:
        assert begun.stdout is not None
        assert begun.stdout.readline() == b"up\n"
        begun.terminate()
        assert begun.wait(30) == 5

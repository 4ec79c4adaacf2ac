"""A process that stands still for seconds (Ctrl-Z and `fg`, a machine that is too busy) takes
nobody for dead when it goes on: what was said meanwhile waits to be read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.transport.lab import Sshd

STOPPED = 3.0
"""Seconds; long enough for any limit that the programs below set to pass."""


def stopped(program: str, *words: object) -> str:
    """What a Python program prints that is stopped half a second after it has said `ready`."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED)
        child.send_signal(signal.SIGCONT)
        return child.stdout.read().strip()


def test_a_deadline_does_not_count_it() -> None:
    program = """
import threading, time
from clusterctl.core.clock import Deadline
deadline, event = Deadline(2.5), threading.Event()
print("ready", flush=True)
time.sleep(1)
print(deadline.passed, deadline.wait(event.wait), deadline.passed)
"""
    assert stopped(program) == "False False True"


def test_programs_have_the_time_that_they_were_given() -> None:
    program = """
from clusterctl import process
print("ready", flush=True)
result = process.run(["/bin/sh", "-c", "cat; sleep 1; echo done"], timeout=2.5, stdin=b"said ")
print(result.text, result.error)
"""
    assert stopped(program) == "said done"


def test_terraform_is_not_killed_for_it(tmp_path: Path) -> None:
    program = """
import os, pathlib, sys
from clusterctl import process
script = "trap 'echo asked to end' INT; sleep 4; echo ended by itself"
print("ready", flush=True)
found = process.watch(
    ["/bin/sh", "-c", script], log=pathlib.Path(sys.argv[1], "log"), cwd=pathlib.Path("/"),
    env=dict(os.environ), on_line=lambda line: print(line.decode(), flush=True),
    on_start=lambda pid: None, on_interrupt=lambda: None, timeout=2.4, grace=0.1)
"""
    assert stopped(program, tmp_path) == "ended by itself"


def test_sshd_that_answers_is_not_taken_for_silent(tmp_path: Path) -> None:
    """What the local and Docker providers ask before they replace a node."""
    program = """
import socket, threading, time
from clusterctl.machines.networks import probe
server = socket.create_server(("127.0.0.1", 0))
def serve():
    taken, _ = server.accept()
    time.sleep(1)
    taken.sendall(b"SSH-2.0-here")
    time.sleep(9)
threading.Thread(target=serve, daemon=True).start()
print("ready", flush=True)
print(probe({"worker-1": server.getsockname()}, seconds=2.5))
"""
    assert stopped(program) == "{'worker-1': ''}"


SSH = """
import sys
from pathlib import Path
from clusterctl.core.model import Node, Role
from clusterctl.transport.diagnosis import Target
from clusterctl.transport.ssh import SshTransport
port, folder, user = sys.argv[1:]
node = Node(name="worker-1", role=Role.WORKER, address="127.0.0.1", private_address="127.0.0.1",
            ssh_port=int(port), job_port=int(port), user=user, root="/tmp")
identity, known_hosts = (Path(folder, name) for name in ("user", "known_hosts"))
transport = SshTransport(Target(node, identity, known_hosts))
"""


@pytest.mark.sshd
def test_a_command_has_the_time_that_it_was_given(sshd: Sshd) -> None:
    program = f"""{SSH}
transport.connect(20)
print("ready", flush=True)
result = transport.run("sleep 5; echo done", timeout=4.5)
print(result.text, result.error)
"""
    assert stopped(program, sshd.port, sshd.folder, sshd.node.user) == "done"


@pytest.mark.sshd
def test_a_quiet_connection_is_not_taken_for_dead(sshd: Sshd) -> None:
    program = f"""{SSH}
from clusterctl.transport import session
session.KEEPALIVE, session.SILENCE = 0.2, 2
transport.connect(20)
print("ready", flush=True)
result = transport.run("sleep 6; echo done", timeout=60)
print(result.text, result.error)
"""
    assert stopped(program, sshd.port, sshd.folder, sshd.node.user) == "done"


@pytest.mark.sshd
def test_a_log_in_does_not_end_because_the_clock_is_set(sshd: Sshd, tmp_path: Path) -> None:
    """A laptop that wakes up: the clock leaps by minutes between any two looks at it."""
    racing = """
import itertools, time
real, looks = time.time, itertools.count()
time.time = lambda: real() + 600 * next(looks)
"""
    (tmp_path / "sitecustomize.py").write_text(racing)
    argv = [sys.executable, "-c", f"{SSH}\ntransport.connect(20)\nprint('in')"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    words = map(str, (sshd.port, sshd.folder, sshd.node.user))
    done = subprocess.run(
        [*argv, *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "in\n", done.stderr

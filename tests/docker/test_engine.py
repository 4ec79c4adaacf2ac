"""A Docker engine beside us closes the host's forwarding and puts a bridge on every route.

It is the real engine, started here with data, socket and containerd of its own, stopped again
afterwards, and its firewall rules taken back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Need

pytestmark = [pytest.mark.netns, pytest.mark.sshd, pytest.mark.mpi]


@pytest.fixture
def engine(tmp_path: Path, need: Need) -> Iterator[str]:
    """The firewall's forwarding rules while an engine runs, ours or one that was here before."""
    iptables = need("iptables")
    before = subprocess.run([f"{iptables}-save"], check=True, capture_output=True).stdout
    asked = subprocess.run([need("docker"), "info"], capture_output=True)
    if asked.returncode == 0:  # one of another test's own, elsewhere, makes no rules
        subprocess.run([iptables, "-P", "FORWARD", "DROP"], check=True)
        yield _forwarding(iptables)
        subprocess.run([f"{iptables}-restore"], input=before, check=True)
        return
    dockerd = need("dockerd")
    had_bridge = Path("/sys/class/net/docker0").exists()
    short = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))
    log = (tmp_path / "dockerd.log").open("wb")
    process = subprocess.Popen(
        [
            dockerd,
            # The path of a socket has at most 107 characters.
            *("--data-root", str(tmp_path / "data"), "--exec-root", str(short / "exec")),
            *("--pidfile", str(tmp_path / "pid"), "-H", f"unix://{short}/sock"),
        ],
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (short / "sock").exists() or not Path("/sys/class/net/docker0").exists():
            text = (tmp_path / "dockerd.log").read_text()[-2000:]
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        # The engine does this itself where it was the one to switch forwarding on.
        subprocess.run([iptables, "-P", "FORWARD", "DROP"], check=True)
        yield _forwarding(iptables)
    finally:
        process.terminate()
        process.wait(30)
        log.close()
        if not had_bridge:
            subprocess.run(["ip", "link", "del", "docker0"], check=False)
        subprocess.run([f"{iptables}-restore"], input=before, check=True)
        shutil.rmtree(short, ignore_errors=True)


def test_a_cluster_works_beside_a_docker_engine(engine: str, tmp_path: Path) -> None:
    """`up` is ready, and ranks on two nodes reach each other over MPI and over gloo."""
    assert "-P FORWARD DROP" in engine
    home = {**os.environ, "CLUSTERCTL_HOME": str(tmp_path / "state")}

    def clusterctl(*words: str) -> str:
        argv = [sys.executable, "-m", "clusterctl", *words]
        done = subprocess.run(argv, env=home, cwd=tmp_path, capture_output=True, timeout=90)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    try:
        assert '"mode": "namespaces"' in clusterctl("up", "--json")
        for backend in ("mpi", "gloo"):
            said = clusterctl("run", "--backend", backend, "reduce_all.py", "--no-table")
            assert "each holds 1" in said
    finally:
        clusterctl("down", "--force")


def _forwarding(iptables: str) -> str:
    rules = subprocess.run([iptables, "-S", "FORWARD"], check=True, capture_output=True)
    return rules.stdout.decode()

"""Nodes for those who may not make namespaces: ordinary users, and root in a plain container."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from clusterctl.core.model import Node
from clusterctl.errors import ProviderError
from clusterctl.machines.local.layout import Server, find_server
from clusterctl.machines.local.nodes import Loopback, converge, find_free_endpoint
from clusterctl.machines.networks import probe
from tests.local.conftest import MakeLab
from tests.local.lab import DRIVE, ROOT, Lab
from tests.local.test_both_modes import gone, started

pytestmark = pytest.mark.sshd

DOCKER = (
    "chown,dac_override,fsetid,fowner,mknod,net_raw,setgid,setuid,setfcap,setpcap,"
    "net_bind_service,sys_chroot,kill,audit_write"
)
"""The capabilities that Docker leaves a container's root by default."""


@dataclass
class Other:
    """Someone else, who does all with the provider in processes of their own."""

    prefix: Sequence[str]
    lab: Lab
    user: str = ""
    python: str = sys.executable

    def argv(self, verb: str, workers: int, mode: str, recorded: str = "") -> list[str]:
        packages = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
        environment = ("env", "-i", f"PYTHONPATH={packages}", f"HOME={self.lab.home.parent}")
        forced = (f"CLUSTERCTL_LOCAL_MODE={mode}",) if mode else ()
        words = (self.python, str(DRIVE), verb, str(self.lab.home), self.lab.id, str(workers))
        return [*self.prefix, *environment, "PATH=/usr/bin:/bin", *forced, *words, recorded]

    def does(
        self, verb: str, workers: int = 2, mode: str = "", exit_code: int = 0, recorded: str = ""
    ) -> Any:
        argv = self.argv(verb, workers, mode, recorded)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A folder that others can reach, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="clusterctl-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def ordinary(public: Path, tmp_path: Path, need: Callable[..., str]) -> Iterator[Other]:
    """Ourselves, or a user made for this test if we are root."""
    lab = Lab(public / "state", tmp_path)
    if os.geteuid() != 0:
        yield Other((), lab)
        return
    name = f"cctl-{public.name[-8:].lower().replace('_', 'x')}"
    subprocess.run([need("useradd"), "--system", "--shell", "/bin/sh", name], check=True)
    try:
        user = pwd.getpwnam(name)
        os.chown(public, user.pw_uid, user.pw_gid)
        ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups")
        other = Other((need("setpriv"), *ids), lab, name)
        own = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
        for other.python in (sys.executable, own):
            argv = [*other.argv("", 0, "")[:-6], "-c", "import clusterctl.core.keys, cryptography"]
            if subprocess.run(argv, capture_output=True).returncode == 0:
                break
        else:
            need(False, "needs a Python of this version that any user may run")
        yield other
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.fixture
def contained(need_root: None, make_lab: MakeLab, need: Callable[..., str]) -> Other:
    """Root with what Docker leaves it."""
    kept = ",".join(f"+{name}" for name in DOCKER.split(","))
    return Other((need("setpriv"), f"--bounding-set=-all,{kept}"), make_lab())


@pytest.fixture(params=["ordinary", "contained"])
def other(request: pytest.FixtureRequest) -> Other:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


REASONS = {"ordinary": "not root", "contained": "unshare: unshare failed: Operation not permitted"}


def test_the_unprivileged_get_a_cluster(other: Other, request: pytest.FixtureRequest) -> None:
    plan = other.does("plan")
    assert plan["mode"] == "loopback"
    assert plan["mode_reason"] == REASONS[request.node.callspec.params["other"]]
    assert plan["one_host"] is True
    made = other.does("up")
    lab = other.lab
    lab.learn(msgspec.convert(made["nodes"], tuple[Node, ...]), made["host_keys"])
    try:
        for name, node in lab.nodes.items():
            home, scratch, user = lab.ssh(name, "echo $HOME; echo $TMPDIR; id -un").splitlines()
            assert home == str(lab.site.locate(name).home)
            assert scratch == str(lab.site.locate(name).scratch)
            assert user == node.user
        lab.ssh("worker-1", "mkdir -p $HOME/a/b; touch $HOME/a/b/c; chmod 0 $HOME/a/b $HOME/a")
        job = f"CLUSTERCTL_JOB={lab.id}/1 setsid sleep 60"
        lab.ssh("worker-1", f"{job} >/dev/null 2>&1 </dev/null & exit 0")
        assert other.does("describe") == dict.fromkeys(lab.nodes, "running")
        again = other.does("up", 3)
        assert again["nodes"][:3] == [
            {**node, "slots": new["slots"]}
            for node, new in zip(made["nodes"], again["nodes"], strict=False)
        ]
        assert set(other.does("describe", 3).values()) == {"running"}
    finally:
        other.does("down")
    assert lab.leftovers() == []


def test_why_sshd_refuses_an_account_is_said(
    ordinary: Other, need_root: None, need: Callable[..., str]
) -> None:
    subprocess.run([need("usermod"), "--shell", "/no/shell", ordinary.user], capture_output=True)
    words = [*ordinary.argv("", 0, "")[:-6], "-m", "clusterctl"]
    said = subprocess.run([*words, "up"], capture_output=True, text=True, timeout=60)
    assert said.returncode == 4
    assert "not allowed because shell /no/shell does not exist" in said.stderr
    assert "use an account that may log in by SSH; `clusterctl up default`" in said.stderr
    subprocess.run([*words, "down", "--force"], check=True, capture_output=True, timeout=60)


def test_namespaces_cannot_be_forced(other: Other, request: pytest.FixtureRequest) -> None:
    reason = REASONS[request.node.callspec.params["other"]]
    answer = other.does("plan", mode="namespaces", exit_code=ProviderError.exit_code)
    assert answer["error"] == f"namespaces are not possible here: {reason}"
    answer = other.does("up", exit_code=ProviderError.exit_code, recorded="namespaces")
    assert (
        answer["error"]
        == f"cluster demo was created with namespaces, which are not possible now: {reason}"
    )


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(mode="loopback")


def test_every_node_has_an_address_of_its_own(lab: Lab) -> None:
    lab.up(2)
    assert [node.address for node in lab.nodes.values()] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    assert all(node.ssh_port == node.job_port > 1023 for node in lab.nodes.values())
    assert all(node.slots >= 1 for node in lab.nodes.values())


def test_a_port_that_was_taken_meanwhile_is_not_insisted_on(lab: Lab) -> None:
    lab.up(1)
    node, pid = lab.nodes["worker-1"], started(lab)["worker-1"]
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind((node.address, node.ssh_port))
        rival.listen()
        lab.up(1)
        assert lab.nodes["worker-1"].ssh_port != node.ssh_port
        assert lab.ssh("worker-1", "echo moved") == "moved"


@pytest.fixture
def flaky(tmp_path: Path) -> Server:
    """An sshd that fails as often as the file `failures` has lines."""
    real, failures = find_server(), tmp_path / "failures"
    script = tmp_path / "sshd"
    script.write_text(
        "#!/bin/sh\n"
        f"if [ -s {failures} ]; then sed -i 1d {failures}; echo no luck today >&2; exit 255; fi\n"
        f'exec {real.path} "$@"\n'
    )
    script.chmod(0o755)
    failures.touch()
    return replace(real, path=str(script))


def test_a_node_that_fails_to_start_is_tried_again(lab: Lab, flaky: Server, tmp_path: Path) -> None:
    (tmp_path / "failures").write_text("x\n")
    outcome = converge(lab.site, Loopback(flaky), ("launcher",), flaky)
    assert outcome.started == ("launcher",)
    assert probe(outcome.endpoints, seconds=2) == {"launcher": ""}


def test_a_node_that_never_starts_is_named(lab: Lab, flaky: Server, tmp_path: Path) -> None:
    (tmp_path / "failures").write_text("x\n" * 50)
    with pytest.raises(ProviderError, match="launcher could not be started: no luck today"):
        converge(lab.site, Loopback(flaky), ("launcher", "worker-1"), flaky)


@pytest.mark.netns
def test_where_only_127_0_0_1_exists_it_serves_all(lab: Lab) -> None:
    script = (
        "ip link set lo up && ip address flush dev lo && ip address add 127.0.0.1/32 dev lo && "
        'shift && "$0" "$1" up "$2" "$3" 1 loopback && "$0" "$1" describe "$2" "$3" 1 loopback'
    )
    words = (sys.executable, "-", str(DRIVE), str(lab.home), lab.id)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    made, described = map(json.loads, done.stdout.splitlines())
    assert {node["address"] for node in made["nodes"]} == {"127.0.0.1"}
    assert len({node["ssh_port"] for node in made["nodes"]}) == 2
    assert set(described.values()) == {"running"}


def test_a_free_endpoint_is_free() -> None:
    address, port = find_free_endpoint(5)
    with socket.socket() as mine:
        mine.bind((address, port))
    assert address == "127.0.0.7"

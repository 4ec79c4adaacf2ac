"""What holds in either mode: a node is a real sshd, and `create` and `destroy` converge."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from clusterctl.core.model import Role
from clusterctl.errors import LeftoverError
from clusterctl.machines.local import processes
from clusterctl.machines.local.processes import Process
from tests.conftest import NOT_ROOT, missing
from tests.local.conftest import MakeLab
from tests.local.lab import Lab

WEIRD = "a b$HOME;'q\"\\%h#é*"


def started(lab: Lab) -> dict[str, int]:
    """The outermost process of every node: the first. Pids alone do not tell, they wrap."""
    found: dict[str, Process] = {}
    for process in sorted(
        processes.scan(lab.site), key=lambda process: (process.start, process.pid)
    ):
        found.setdefault(process.node, process)
    return {name: process.pid for name, process in found.items() if name in lab.nodes}


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while processes.read_start(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    return processes.read_start(pid) is None


def test_a_session_finds_the_nodes_own_world(lab: Lab) -> None:
    made = lab.up(2)
    assert [node.name for node in made.nodes] == ["launcher", "worker-1", "worker-2"]
    assert [node.role for node in made.nodes] == [Role.LAUNCHER, Role.WORKER, Role.WORKER]
    assert lab.describe() == dict.fromkeys(lab.nodes, "running")
    for name, node in lab.nodes.items():
        place = lab.site.locate(name)
        said = lab.ssh(name, "sh -c 'echo $HOME; echo $TMPDIR; echo $PATH; stat -c %a $TMPDIR'")
        home, scratch, path, permissions = said.splitlines()
        assert home == str(place.home)
        assert len(scratch) < 40
        assert permissions == "700"
        assert {"/usr/bin", "/bin"} <= set(path.split(":"))
        lab.ssh(name, f"touch {node.root}/made-by-{name}")
        assert (place.root / f"made-by-{name}").exists()
    assert lab.ssh("worker-1", "umask") == "0022"


def test_nodes_share_a_folder_for_as_long_as_the_cluster_lives(lab: Lab) -> None:
    """A worker that was replaced, and one that came later, see what was written before."""
    lab.shared = True
    folder = shlex.quote(lab.up(1).shared)
    lab.ssh("worker-1", f"cd {folder} && echo first >of-worker-1")
    pid = started(lab)["worker-1"]
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert shlex.quote(lab.up(2).shared) == folder
    for name in lab.nodes:
        assert lab.ssh(name, f"cat {folder}/of-worker-1") == "first", name
    lab.ssh("launcher", f"echo last >{folder}/of-launcher")
    assert lab.ssh("worker-2", f"cat {folder}/of-launcher; stat -c %a {folder}") == "last\n700"
    lab.down()
    assert lab.leftovers() == []


def test_a_session_inherits_nothing_from_who_started_it(lab: Lab, tmp_path: Path) -> None:
    """Above all not the descriptor of the cluster's lock, nor the signals a shell job ignores."""
    lock = (tmp_path / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.set_inheritable(lock.fileno(), True)
    os.environ["CLUSTERCTL_SECRET"] = "planted"
    lab.up(1)
    lock.close()
    with (tmp_path / "lock").open() as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert "planted" not in lab.ssh("worker-1", "env")
    status = lab.ssh("worker-1", "cat /proc/self/status")
    assert "SigIgn:\t0000000000000000" in status
    assert all(os.getsid(pid) == pid for pid in started(lab).values())
    folders = {os.readlink(f"/proc/{pid}/cwd") for pid in started(lab).values()}
    assert folders == {"/"}, "a folder that a daemon stands in cannot be unmounted"


def test_only_the_clusters_keys_open_a_node(lab: Lab, tmp_path: Path) -> None:
    lab.up(1)
    shutil.copy(lab.folder / "ssh" / "mesh", lab.outside / "key")
    assert lab.ssh("worker-1", "echo mesh") == "mesh"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True
    )
    shutil.copy(tmp_path / "other", lab.outside / "key")
    refused = subprocess.run(lab.argv("worker-1", "true"), capture_output=True, text=True)
    assert "Permission denied (publickey)" in refused.stderr


def test_sftp_and_many_sessions_over_one_connection(lab: Lab, tmp_path: Path) -> None:
    lab.up(1)
    batch = f'put {__file__} "{lab.nodes["worker-1"].root}/copied"\n'
    argv = [word for word in lab.argv("worker-1") if word != "--"]
    argv = ["sftp", "-b", "-", *argv[1:5], *["-P" if w == "-p" else w for w in argv[5:]]]
    subprocess.run(argv, input=batch, text=True, capture_output=True, check=True, timeout=20)
    assert (lab.site.locate("worker-1").root / "copied").read_bytes() == Path(__file__).read_bytes()


@pytest.mark.parametrize("mode", ["namespaces", "loopback"])
@pytest.mark.sshd
def test_any_path_of_the_state_home_works(
    make_lab: MakeLab, mode: str, request: pytest.FixtureRequest
) -> None:
    if mode == "namespaces":
        request.getfixturevalue("need_root")
    lab = make_lab(home=WEIRD, mode=mode)
    lab.up(1)
    assert lab.ssh("worker-1", "sh -c 'printf %s \"$HOME\"'") == str(
        lab.site.locate("worker-1").home
    )


def test_create_converges_to_the_number_wanted(lab: Lab) -> None:
    keys = lab.up(8).host_keys
    first = started(lab)
    lab.ssh("worker-2", "echo kept > $HOME/file")
    lab.up(3)
    assert started(lab) == {name: first[name] for name in lab.nodes}
    assert sorted(path.name for path in lab.site.nodes.glob("worker-*")) == [
        "worker-1",
        "worker-2",
        "worker-3",
    ]
    assert not lab.site.locate("worker-4").scratch.exists()
    made = lab.up(5)
    second = started(lab)
    assert {name: second[name] for name in ("launcher", "worker-1", "worker-2", "worker-3")} == {
        name: first[name] for name in ("launcher", "worker-1", "worker-2", "worker-3")
    }
    assert lab.describe() == dict.fromkeys(lab.nodes, "running")
    assert lab.ssh("worker-2", "cat $HOME/file") == "kept"
    assert lab.ssh("worker-5", "echo new") == "new"
    assert made.host_keys["worker-2"] == keys["worker-2"]
    assert made.host_keys["worker-5"] != keys["worker-5"]
    lab.up(5)
    assert started(lab) == second


def test_what_is_broken_is_named_and_replaced(lab: Lab) -> None:
    lab.up(3)
    before = started(lab)
    left = lab.site.locate("worker-1").scratch / "prted.99"
    left.mkdir()
    os.kill(before["worker-1"], signal.SIGKILL)
    sshd = [p for p in processes.scan(lab.site) if p.node == "worker-2" and p.command == "sshd"]
    for process in sshd:
        with suppress(ProcessLookupError):  # that of a session may have ended since
            os.kill(process.pid, signal.SIGSTOP)
    shutil.rmtree(lab.site.locate("worker-3").folder)
    assert gone(before["worker-1"])
    described = lab.describe()
    assert described["launcher"] == "running"
    assert described["worker-1"].startswith("gone: ")
    assert "no answer within 1 s" in described["worker-2"]
    assert described["worker-3"].startswith("damaged: ")
    lab.up(3)
    assert lab.describe() == dict.fromkeys(lab.nodes, "running")
    after = started(lab)
    assert {name for name in before if before[name] == after[name]} == {"launcher"}
    assert not left.exists()  # the next prted with this number would refuse to start
    for name in lab.nodes:
        assert lab.ssh(name, "echo alive") == "alive"


def test_a_node_whose_key_is_lost_gets_another(lab: Lab) -> None:
    before = lab.up(1).host_keys
    lab.site.locate("worker-1").host_key.unlink()
    after = lab.up(1).host_keys
    assert after["launcher"] == before["launcher"]
    assert after["worker-1"] != before["worker-1"]
    assert lab.ssh("worker-1", "echo trusted") == "trusted"


def test_down_ends_all_that_runs_on_the_nodes(lab: Lab) -> None:
    """Sessions, what they left in the background, ranks in sessions of their own, idle clients."""
    lab.up(2)
    job = f"CLUSTERCTL_JOB={lab.id}/7"
    marker = f"{os.getpid()}{time.monotonic_ns() % 10_000}"
    lab.ssh("worker-1", f"setsid sleep 1{marker} >/dev/null 2>&1 </dev/null & exit 0")
    lab.ssh(
        "worker-1",
        f"env -u CLUSTERCTL_NODE {job} setsid sh -c \"trap '' TERM INT HUP; sleep 2{marker}\""
        " >/dev/null 2>&1 </dev/null & exit 0",
    )
    idle = subprocess.Popen([*lab.argv("worker-2", f"sleep 3{marker}")], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while len(sleeping(marker)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(sleeping(marker)) == 3
    began = time.monotonic()
    lab.down()
    assert time.monotonic() - began < 20
    assert sleeping(marker) == []
    assert lab.leftovers() == []
    _, said = idle.communicate(timeout=30)
    assert idle.returncode == 255, said
    lab.down()  # once more: nothing to do is no error


def sleeping(marker: str) -> list[str]:
    shown = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True)
    return [line for line in shown.stdout.splitlines() if line[:5] == "sleep" and marker in line]


def test_down_finds_sessions_whose_listener_is_gone(lab: Lab) -> None:
    """sshd wipes its own environment, and an orphan of init has no parent to be found by."""
    lab.up(1)
    argv = lab.argv("worker-1")
    client = subprocess.Popen([argv[0], "-N", *argv[1:-1]], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and sshds(lab) < 2:
        time.sleep(0.02)
    assert sshds(lab) >= 2
    os.kill(started(lab)["worker-1"], signal.SIGKILL)
    lab.down()
    client.communicate(timeout=30)
    assert lab.leftovers() == []


def sshds(lab: Lab) -> int:
    found = processes.scan(lab.site)
    return sum(p.node == "worker-1" and p.command == "sshd" for p in found)


def test_down_works_with_all_files_gone(lab: Lab) -> None:
    lab.up(2)
    shutil.rmtree(lab.folder)
    lab.down()
    assert lab.leftovers() == []


def test_nobody_else_can_take_the_place_of_a_temporary_folder(lab: Lab, tmp_path: Path) -> None:
    """Neither by a name that can be guessed before the start, nor by that of one that a cleaner of
    /tmp has removed; and a link that a program has left is no bug."""
    (tmp_path / "theirs").touch()
    squatted = [Path(f"/tmp/{lab.site.scratch_prefix}{number}") for number in (0, 1)]
    for path in squatted:
        path.symlink_to(tmp_path)
    try:
        lab.up(1)
        first = lab.site.scratch
        assert first.stat().st_mode & 0o777 == 0o700
        assert lab.ssh("worker-1", 'cd "$TMPDIR" && pwd').splitlines() == [f"{first}/1"]
        shutil.rmtree(first)
        first.symlink_to(tmp_path)
        squatted.append(first)
        lab.up(1)
        assert lab.site.scratch != first
        assert lab.ssh("worker-1", 'cd "$TMPDIR" && pwd') == f"{lab.site.scratch}/1"
        (lab.site.scratch / "1").rmdir()
        (lab.site.scratch / "1").symlink_to(tmp_path)
        lab.up(1)
        lab.down()
    finally:
        for path in squatted:
            path.unlink()
    assert [path.name for path in tmp_path.iterdir() if path.name == "theirs"] == ["theirs"]


def test_what_cannot_be_removed_is_named(lab: Lab, tmp_path: Path) -> None:
    """A folder on which something is mounted stands for all that resists."""
    if os.geteuid() != 0:
        pytest.skip(NOT_ROOT)
    lab.up(1)
    target = lab.site.locate("worker-1").home
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", target]).returncode:
        missing("needs the right to mount")
    try:
        with pytest.raises(LeftoverError, match="nodes: Device or resource busy"):
            lab.down()
    finally:
        subprocess.run(["umount", target], check=True)

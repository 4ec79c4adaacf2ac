"""Nodes with namespaces of their own behave like machines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.machines import networks as machines_networks
from clusterctl.machines.local import processes as local_processes
from clusterctl.machines.local.layout import read_endpoint
from tests.local.conftest import MakeLab
from tests.local.lab import Lab, drive
from tests.local.test_both_modes import gone, started

pytestmark = pytest.mark.netns


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(mode="namespaces")


LOOK = """
uname -n
ip -o -4 address show scope global | awk '{print $2, $4}'
echo $(ls /sys/class/net) : $(ls /dev/shm) : $(ls /run)
ls -d /proc/[0-9]* | wc -l
ls /sys/fs/cgroup | wc -l
stat -c %a /etc/hosts
getent ahostsv4 launcher worker-1 worker-2 | awk 'NF == 3 {print $1, $3}'
"""


def test_a_node_is_a_machine(lab: Lab) -> None:
    lab.up(2)
    for name, node in lab.nodes.items():
        hostname, address, folders, processes, cgroups, readable, *hosts = lab.ssh(
            name, LOOK
        ).splitlines()
        assert hostname == name
        assert address == f"eth0 {node.address}/24"
        assert node.private_address == node.address
        devices, shared, run = folders.split(":")
        assert (devices.split(), shared.split()) == (["eth0", "lo"], [])
        assert set(run.split()) <= {"mount", "sshd"}
        assert int(processes) < 12
        assert int(cgroups) == len(os.listdir("/sys/fs/cgroup"))
        assert readable == "644"
        assert [line.split() for line in hosts] == [
            [other.address, other.name] for other in lab.nodes.values()
        ]


def test_a_node_sees_nothing_of_the_others_nor_of_the_state_home(lab: Lab) -> None:
    (lab.home / "secret").parent.mkdir(parents=True)
    (lab.home / "secret").write_text("of the user")
    lab.up(2)
    for name, node in lab.nodes.items():
        Path(node.root, "data").write_text(name)
    seen = lab.ssh("worker-1", f"find '{lab.home}'").splitlines()
    place = lab.site.locate("worker-1")
    assert all(
        Path(path).is_relative_to(place.folder) or place.folder.is_relative_to(path)
        for path in seen
    )
    assert lab.ssh("worker-1", f"cat {place.root}/data") == "worker-1"
    assert lab.ssh("worker-1", f"cat {lab.home}/secret || echo hidden") == "hidden"
    assert str(lab.folder / "ssh") not in seen
    assert str(lab.site.locate("worker-2").folder) not in seen
    assert lab.ssh("worker-1", f"test -d /tmp -a -x {sys.executable} && echo there") == "there"


def test_a_state_home_that_is_the_home_hides_what_it_can(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home stays visible, since Python may live there; the keys do not."""
    lab = make_lab(mode="namespaces")
    monkeypatch.setenv("HOME", str(lab.home))
    (lab.home / "bin").mkdir(parents=True)
    lab.up(1)
    seen = lab.ssh("worker-1", f"ls {lab.home} {lab.home}/clusters/demo {lab.folder}/nodes")
    assert "bin" in seen
    assert "ssh" not in seen
    assert "launcher" not in seen


def test_nothing_reaches_this_machine(lab: Lab) -> None:
    def here() -> list[str]:
        points = ("/proc", "/sys", "/run", "/dev/shm", "/etc/hosts", "/etc/shadow", str(lab.home))
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in mounts if line.split()[4].startswith(points)]

    before, hostname, hosts = here(), os.uname().nodename, Path("/etc/hosts").read_text()

    def bridges() -> set[str]:
        names = {name for _, name in socket.if_nameindex() if name.startswith("br")}
        return {name for name in names if not name.startswith("br-")}  # of somebody's Docker

    bridges_before = bridges()
    lab.up(2)
    name = f"{lab.site.short}-was-here"
    lab.ssh("worker-1", f"touch /dev/shm/{name} /run/{name}")
    assert here() == before
    assert os.uname().nodename == hostname
    assert Path("/etc/hosts").read_text() == hosts
    assert not Path("/dev/shm", name).exists()
    assert not Path("/run", name).exists()
    assert not list(Path("/run").glob("netns/*demo*"))
    assert bridges() <= bridges_before
    networks = {
        local_processes.find_network(process.pid) for process in local_processes.scan(lab.site)
    }
    lab.down()
    held = {local_processes.find_network(pid) for pid in local_processes.list_pids()}
    assert not held & (networks - {local_processes.find_network()})


def test_killing_pid_1_ends_every_process_of_a_node(lab: Lab) -> None:
    lab.up(1)
    lab.ssh("worker-1", "setsid env -i sleep 987654 >/dev/null 2>&1 </dev/null & exit 0")
    [init] = [
        process
        for process in local_processes.scan(lab.site)
        if process.node == "worker-1" and process.command == "sh"
    ]
    inside = [
        pid
        for pid in local_processes.list_pids()
        if local_processes.find_network(pid) == local_processes.find_network(init.pid)
    ]
    assert len(inside) >= 4
    os.kill(init.pid, signal.SIGKILL)
    assert all(gone(pid) for pid in inside)


def test_orphans_are_reaped(lab: Lab) -> None:
    lab.up(1)
    lab.ssh("worker-1", "for i in 1 2 3; do (setsid sh -c 'sleep 0.05' &) ; done; sleep 0.2")
    assert "Z" not in lab.ssh("worker-1", "cat /proc/[0-9]*/stat | sed 's/.*) //' | cut -c 1")


def test_a_replaced_node_is_reached_at_once(lab: Lab) -> None:
    """Its neighbours know its address with the hardware address of the one before: it has the
    same."""
    lab.up(2)
    knock = "bash -c 'exec 3<>/dev/tcp/worker-2/22; head -n 1 <&3'"
    shown = "cat /sys/class/net/eth0/address"
    before = lab.ssh("worker-2", shown)
    assert lab.ssh("worker-1", knock)
    os.kill(started(lab)["worker-2"], signal.SIGKILL)
    lab.up(2)
    assert lab.ssh("worker-2", shown) == before
    assert lab.ssh("worker-1", knock)


def test_a_cable_end_that_lingers_is_no_obstacle(lab: Lab) -> None:
    """The kernel takes a dead switch's cables away when it finds the time."""
    subprocess.run(["ip", "link", "add", lab.site.interface, "type", "bridge"], check=True)
    lab.up(1)
    assert lab.describe() == dict.fromkeys(lab.nodes, "running")


def test_ports_of_nodes_that_are_gone_are_unplugged(lab: Lab) -> None:
    """Until the kernel does so, they would still answer for their address."""
    lab.up(1)
    [switch] = [process for process in local_processes.scan(lab.site) if process.node == "switch"]
    inside = ["nsenter", f"--net=/proc/{switch.pid}/ns/net", "ip"]
    subprocess.run([*inside, "link", "add", "n99999999", "type", "bridge"], check=True)
    lab.up(1)
    shown = subprocess.run([*inside, "-j", "link"], capture_output=True, check=True).stdout
    ports = {f"n{pid}" for pid in started(lab).values()}
    assert {link["ifname"] for link in json.loads(shown)} == {"lo", "br0", "uplink", *ports}


def test_nodes_learn_of_newcomers(lab: Lab) -> None:
    lab.up(1)
    before = started(lab)
    lab.up(2)
    assert started(lab)["worker-1"] == before["worker-1"]
    newcomer = lab.nodes["worker-2"].address
    assert lab.ssh("worker-1", "getent ahostsv4 worker-2").split()[0] == newcomer
    lab.up(1)
    assert lab.ssh("worker-1", "getent ahostsv4 worker-2 || echo unknown") == "unknown"


def test_all_start_anew_without_a_switch(lab: Lab) -> None:
    lab.up(2)
    [switch] = [process for process in local_processes.scan(lab.site) if process.node == "switch"]
    os.kill(switch.pid, signal.SIGKILL)
    assert gone(switch.pid)
    assert {text.partition(":")[0] for text in lab.describe().values()} == {"disconnected"}
    before = started(lab)
    lab.up(2)
    assert lab.describe() == dict.fromkeys(lab.nodes, "running")
    assert not set(before.values()) & set(started(lab).values())


def test_clusters_made_at_once_get_subnets_of_their_own(make_lab: MakeLab) -> None:
    """All of them want the same one first."""
    labs = [make_lab(mode="namespaces") for _ in range(3)]
    makers = [
        subprocess.Popen(drive(lab, "up", 1), stdout=subprocess.PIPE, text=True) for lab in labs
    ]
    made = [json.loads(maker.communicate(timeout=30)[0]) for maker in makers]
    assert [maker.returncode for maker in makers] == [0, 0, 0]
    networks = {node["address"].rpartition(".")[0] for one in made for node in one["nodes"]}
    assert len(networks) == 3
    for lab in labs:
        assert set(lab.describe().values()) == {"running"}


@contextlib.contextmanager
def bridge(name: str, address: str) -> Iterator[None]:
    """A bridge of someone else's in this machine's network, as Docker and libvirt make them."""
    subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "address", "add", address, "dev", name], check=True)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        yield
    finally:
        subprocess.run(["ip", "link", "delete", name], check=True)


def test_networks_in_use_are_left_alone(lab: Lab) -> None:
    wanted = next(machines_networks.list_candidates(lab.id))
    with bridge("decoy-" + lab.site.short, f"{wanted[1]}/24"):
        lab.up(1)
        assert not lab.nodes["launcher"].address.startswith(str(wanted[0]).removesuffix("0"))
        assert lab.ssh("launcher", "bash -c 'exec 3<>/dev/tcp/worker-1/22; head -n 1 <&3'")


def test_strict_modes_where_the_path_allows_it(make_lab: MakeLab) -> None:
    """/tmp is writable for all, which sshd's StrictModes does not like; /root is not."""
    safe = Path(tempfile.mkdtemp(prefix=".clusterctl-test-", dir=Path("~root").expanduser()))
    lab = make_lab(mode="namespaces")
    try:
        lab.home = safe / "state"
        lab.up(1)
        assert "\nStrictModes yes\n" in lab.site.locate("worker-1").config.read_text()
        assert lab.ssh("worker-1", "uname -n") == "worker-1"
        lab.down()
    finally:
        lab.home = lab.outside / "state"
        shutil.rmtree(safe)


def test_a_locked_root_gets_in(lab: Lab, tmp_path: Path) -> None:
    """Ubuntu locks root's password, and sshd without PAM then refuses its keys as well."""
    shadow = tmp_path / "shadow"
    lines = Path("/etc/shadow").read_text().splitlines()
    locked = ["root:!:19000:0:99999:7:::", *(line for line in lines if line[:5] != "root:")]
    shadow.write_text("\n".join(locked) + "\n")
    script = f'mount --bind {shadow} /etc/shadow && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", *drive(lab, "up", 1)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=30)
    lab.up(1)
    assert lab.ssh("worker-1", "uname -n") == "worker-1"
    assert lab.ssh("worker-1", "grep -c ^root: /etc/shadow") == "1"
    assert read_endpoint(lab.site.locate("worker-1")) == (lab.nodes["worker-1"].address, 22)

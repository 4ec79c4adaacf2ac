"""Hosts for batch systems and for people's own machines: namespaces with an sshd, one file system.

Unlike the nodes of the `local` provider they see this machine's files, as nodes with a shared
disk do, and they are not made by the product: it has to find out what they are.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from clusterctl.core import keys
from tests.conftest import find

_BOOT = """
set -e
name=$1 address=$2 folder=$3 device=$4
read -r _
mount -t proc proc /proc
echo "$name" >/proc/sys/kernel/hostname
ip link set lo up
ip address add "$address/24" dev "$device"
ip link set "$device" up
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
# A copy: a file that this machine replaces, by installing a package, loses what is mounted on it.
cp -a /etc "$folder/etc"
mount --bind "$folder/etc" /etc
while read -r source target; do mount --bind "$source" "$target"; done <"$folder/mounts"
: >"$folder/booted"
while :; do sleep 3600 & wait $!; done
"""
"""PID 1 of a host: makes it one, then reaps what is orphaned."""

_SSHD = """
Port 22
ListenAddress 0.0.0.0
HostKey {folder}/host_key
PidFile none
UsePAM no
UseDNS no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AuthorizedKeysFile .ssh/authorized_keys
LogLevel VERBOSE
"""


_BASHRC = """
echo "Welcome to $(hostname)"
alias ls='ls --color=auto' rm='rm -i'
"""
"""bash reads it under sshd, for commands too: what it prints comes before their output."""

_SPACES = ("net", "uts", "ipc", "mount", "pid", "fork", "kill-child")


@dataclass
class Machine:
    """One host: `pid` is the first process in its namespaces."""

    name: str
    address: str
    folder: Path
    pid: int
    holder: subprocess.Popen[bytes]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def argv(self, *words: str, cwd: Path | str = "/") -> list[str]:
        """The command line that runs `words` on the host."""
        enter = ["nsenter", "-t", str(self.pid), "-n", "-u", "-i", "-m", "-p"]
        return [*enter, f"--wd={cwd}", "--", *words]

    def run(self, *words: str, timeout: float = 30, check: bool = True) -> str:
        done = subprocess.run(
            self.argv(*words), capture_output=True, text=True, timeout=timeout, check=False
        )
        assert not check or done.returncode == 0, f"{self.name}: {words}: {done}"
        return done.stdout

    def daemon(self, *words: str, env: Mapping[str, str] | None = None) -> None:
        """Starts a process of the host that stays in the foreground; it ends with the host."""
        with (self.folder / f"{Path(words[0]).name}.log").open("ab") as log:
            started = subprocess.Popen(
                self.argv(*words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.daemons.append(started)

    @property
    def public_key(self) -> str:
        return (self.folder / "host_key.pub").read_text().strip()


@dataclass
class Machines:
    """Hosts on one bridge, which this machine reaches too. `folder` is on the shared disk."""

    folder: Path
    hosts: dict[str, Machine] = field(default_factory=dict)
    _switch: subprocess.Popen[bytes] | None = None
    _cable: str = ""
    _net: str = ""

    def start(self, names: Sequence[str], *, devices: Mapping[str, str] | None = None) -> None:
        """Starts these hosts, with their names in everybody's hosts file."""
        self._net = _free_network()
        self._switch = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        _in_own_network(self._switch.pid)
        self._cable = f"sim-{token_hex(4)}"
        ip("link", "add", "br0", "type", "bridge", inside=self._switch.pid)
        ip("link", "set", "br0", "up", inside=self._switch.pid)
        self._plug(self._cable, os.getpid(), "up0")
        ip("address", "add", f"{self._net}.1/24", "dev", self._cable)
        ip("link", "set", self._cable, "up")
        addresses = {name: f"{self._net}.{10 + i}" for i, name in enumerate(names)}
        text = "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in addresses.items())
        (self.folder / "hosts").write_text(text)
        for name in names:
            self._boot(name, addresses[name], (devices or {}).get(name, "eth0"))

    def _boot(self, name: str, address: str, device: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        (folder / "mounts").write_text(f"{self.folder / 'hosts'} /etc/hosts\n")
        unshare = ["unshare", *(f"--{name}" for name in _SPACES)]
        arguments = ["sh", "-c", _BOOT, "boot", name, address, str(folder), device]
        with (folder / "boot.log").open("wb") as log:
            holder = subprocess.Popen(
                [*unshare, "--propagation", "private", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": "/root"},
            )
        pid = _child(holder.pid)
        _in_own_network(pid)
        self._plug(device, pid, f"p{len(self.hosts)}")
        self.hosts[name] = Machine(name, address, folder, pid, holder)

    def ready(self, extra: Mapping[str, Sequence[tuple[Path, str]]] | None = None) -> None:
        """Lets the hosts go on, with more of their files replaced: (ours, theirs) by host."""
        for name, machine in self.hosts.items():
            with (machine.folder / "mounts").open("a") as mounts:
                for source, target in (extra or {}).get(name, ()):
                    mounts.write(f"{source} {target}\n")
            assert machine.holder.stdin
            machine.holder.stdin.write(b"go\n")
            machine.holder.stdin.flush()
        for machine in self.hosts.values():
            booted = machine.folder / "booted"
            until(booted.exists, 60, f"{machine.name} did not boot: {machine.folder}/boot.log")

    def shared_home(self) -> Path:
        """A passwd file that gives root, on all hosts, the home `root` in our folder."""
        home = self.folder / "root"
        home.mkdir(exist_ok=True)
        (home / ".bashrc").write_text(_BASHRC)
        lines = Path("/etc/passwd").read_text().splitlines()
        text = [line for line in lines if not line.startswith("root:")]
        path = self.folder / "passwd"
        path.write_text("\n".join([*text, f"root:x:0:0::{home}:/bin/bash"]) + "\n")
        return path

    def sshd(self, name: str, environment: str = "") -> None:
        """Starts the host's SSH server; who may enter says `~/.ssh/authorized_keys` there."""
        machine = self.hosts[name]
        keys.ensure(machine.folder / "host_key")
        config = machine.folder / "sshd_config"
        setting = f"SetEnv{environment}\n" if environment else ""
        config.write_text(_SSHD.format(folder=machine.folder) + setting)
        machine.daemon(str(find("sshd")), "-D", "-e", "-f", str(config))
        until(lambda: ":22 " in machine.run("ss", "-ltn", check=False), 60, f"no sshd on {name}")

    def _plug(self, device: str, pid: int, port: str) -> None:
        assert self._switch
        far = ["name", device, "netns", str(pid)]
        ip(
            *("link", "add", "name", port, "type", "veth", "peer", *far),
            inside=self._switch.pid,
        )
        ip("link", "set", port, "master", "br0", "up", inside=self._switch.pid)

    def stop(self) -> None:
        for machine in self.hosts.values():
            machine.holder.kill()
            machine.holder.wait()
            for daemon in machine.daemons:
                daemon.wait(10)
            if machine.holder.stdin:
                machine.holder.stdin.close()
        if self._switch:
            self._switch.kill()
            self._switch.wait()
        if self._cable:
            ip("link", "delete", self._cable, check=False)


def ip(*words: str, inside: int = 0, check: bool = True) -> str:
    enter = ["nsenter", "-t", str(inside), "-n"] if inside else []
    done = subprocess.run(
        [*enter, str(find("ip")), *words], capture_output=True, text=True, timeout=20, check=False
    )
    assert not check or done.returncode == 0, done
    return done.stdout


def until(happened: object, seconds: float, what: str) -> None:
    assert callable(happened)
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _child(pid: int) -> int:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    until(lambda: path.read_text().split(), 60, "unshare has no child")
    return int(path.read_text().split()[0])


def _in_own_network(pid: int) -> None:
    here = os.readlink("/proc/self/ns/net")
    until(lambda: os.readlink(f"/proc/{pid}/ns/net") != here, 60, "no network namespace")


def _free_network() -> str:
    routes = ip("-4", "route", "show", "table", "all") + ip("-4", "address")
    for _ in range(100):
        net = f"10.{random.randrange(64, 127)}.{random.randrange(256)}"
        if f"{net}." not in routes:
            return net
    raise AssertionError("no free network")

"""Makes a machine of namespaces: its files, its users, its network."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
RDONLY, NOSUID, REMOUNT, BIND, REC, PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]

TOOLS = Path("/usr/lib/sim/tools.py")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OWN_UNITS = Path("/etc/systemd/system")

SHIMS = {
    "/usr/bin": ["findmnt", "systemctl", "cloud-init", "apt-get", "apt", "journalctl", "loginctl"],
    "/usr/sbin": ["shutdown", "poweroff", "halt", "reboot", "iptables", "modprobe"],
}
HIDDEN_TOOLS = ["docker", "dockerd", "nvidia-smi", "terraform", "tofu", "aws", "ansible"]
"""What the test machine may have, and a fresh instance has not."""

UBUNTU = "ubuntu"


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None)
    if LIBC.mount(*words, flags, data.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind or 'bind'} on {target}: {os.strerror(number)}")


def build_root(spec: dict[str, Any]) -> None:
    """This machine's files with changes of our own on top, and none of its users' things."""
    base = Path(spec["folder"]) / "fs"
    base.mkdir(exist_ok=True)
    mount("none", "/", flags=REC | PRIVATE)
    mount("tmpfs", str(base), "tmpfs", data="mode=755")
    root = base / "root"
    for name in ("upper", "work", "root"):
        (base / name).mkdir()
    layers = f"lowerdir=/,upperdir={base}/upper,workdir={base}/work"
    mount("overlay", str(root), "overlay", data=layers)
    for hidden in spec["hidden"]:
        inside = root / hidden.lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        mount("tmpfs", str(inside), "tmpfs", data="mode=755")
    for kept in spec["kept"]:
        inside = root / kept.lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        mount(kept, str(inside), flags=BIND | REC)
        with contextlib.suppress(OSError):  # a mount in a user namespace may not be changed
            mount("none", str(inside), flags=BIND | REMOUNT | RDONLY)
    for folder, names in SHIMS.items():
        for name in names:
            _replace(root / folder.lstrip("/") / name)
    for name in HIDDEN_TOOLS:
        for folder in ("usr/local/bin", "usr/bin", "usr/sbin", "usr/local/sbin", "opt/bin"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (root / folder / name).unlink()
    tools = root / str(TOOLS).lstrip("/")
    tools.parent.mkdir(parents=True, exist_ok=True)
    text = Path(spec["tools"]).read_text()
    tools.write_text(f"#!{spec['python']} -IS\n{text}")
    tools.chmod(0o755)
    for name in ("proc", "sys", "dev", "run", "tmp", ".old"):
        (root / name).mkdir(exist_ok=True)
    mount("proc", f"{root}/proc", "proc")
    mount("sysfs", f"{root}/sys", "sysfs")
    mount("/dev", f"{root}/dev", flags=BIND)
    for name in ("dev/pts", "dev/shm"):
        (root / name).mkdir(exist_ok=True)
    mount("devpts", f"{root}/dev/pts", "devpts", data="newinstance,ptmxmode=0666,mode=620,gid=5")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", data="mode=1777")
    mount("tmpfs", f"{root}/run", "tmpfs", data="mode=755")
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    if spec["files"]:
        argv = ["tar", "--extract", f"--file={spec['files']}", f"--directory={root}"]
        subprocess.run(argv, check=True)
    old = root / ".old"
    if LIBC.syscall(PIVOT_ROOT, str(root).encode(), str(old).encode()) != 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir("/")
    LIBC.umount2(b"/.old", DETACH)
    os.rmdir("/.old")


def _replace(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    path.symlink_to(TOOLS)


def write(path: str, text: str, mode: int = 0o644) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    # In one step: someone may be waiting for this file to appear.
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(file)


def furnish(spec: dict[str, Any]) -> None:
    """What a fresh Ubuntu image has: its user, sudo without a password, sshd's set-up."""
    _users()
    Path("/proc/sys/kernel/hostname").write_text(spec["hostname"])
    write("/etc/hostname", f"{spec['hostname']}\n")
    write("/etc/hosts", "127.0.0.1 localhost\n::1 ip6-localhost ip6-loopback\n")
    write("/etc/resolv.conf", f"nameserver {spec['resolver']}\nsearch ec2.internal\n")
    write("/etc/sudo.conf", "Set disable_coredump false\n")
    write("/etc/fstab", "LABEL=cloudimg-rootfs / ext4 defaults 0 1\n")
    write("/etc/sudoers.d/90-cloud-init-users", f"{UBUNTU} ALL=(ALL) NOPASSWD:ALL\n", 0o440)
    for key in Path("/etc/ssh").glob("ssh_host_*"):
        key.unlink()
    for file in Path("/etc/ssh/sshd_config.d").glob("*"):
        file.unlink()
    write("/etc/ssh/sshd_config", SSHD)
    write("/etc/systemd/system/ssh.service", SSH_UNIT)
    for path in (*OWN_UNITS.glob("*.wants"), Path("/etc/machine-id")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write("/etc/machine-id", f"{spec['id'].removeprefix('i-'):0<32}\n")
    link(OWN_UNITS / "sshd.service", "ssh.service")
    enable("/etc/systemd/system/ssh.service")
    if spec["docker"]:
        install_docker()
    for name, target in spec["commands"].items():
        # A link would not do: Python looks for its environment where it seems to lie.
        write(f"/usr/local/bin/{name}", f'#!/bin/sh\nexec {shlex.quote(target)} "$@"\n', 0o755)


def _users() -> None:
    def table(name: str, *more: str, number: int | None = None) -> None:
        path = Path("/etc", name)
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [
            line
            for line in lines
            if line.split(":")[0] != UBUNTU
            and (number is None or line.split(":")[number : number + 1] != ["1000"])
        ]
        mode = 0o640 if "shadow" in name else 0o644
        write(str(path), "\n".join([*kept, *more, ""]), mode)

    table("passwd", f"{UBUNTU}:x:1000:1000:Ubuntu:/home/{UBUNTU}:/bin/bash", number=2)
    table("group", f"{UBUNTU}:x:1000:", number=2)
    table("shadow", f"{UBUNTU}:*:19000:0:99999:7:::")
    table("gshadow", f"{UBUNTU}:!::")
    home = Path("/home", UBUNTU)
    home.mkdir(parents=True, mode=0o750, exist_ok=True)
    os.chown(home, 1000, 1000)
    for name in (".bashrc", ".profile"):
        skeleton = Path("/etc/skel", name)
        if skeleton.exists():
            (home / name).write_bytes(skeleton.read_bytes())
            os.chown(home / name, 1000, 1000)


def install_docker() -> None:
    """The engine's command line, and the group that may use it."""
    if Path("/usr/bin/docker").is_symlink():
        return
    _replace(Path("/usr/bin/docker"))
    lines = Path("/etc/group").read_text().splitlines()
    if not any(line.startswith("docker:") for line in lines):
        write("/etc/group", "\n".join([*lines, "docker:x:998:", ""]))
    write("/lib/systemd/system/docker.service", DOCKER_UNIT)
    enable("/lib/systemd/system/docker.service")


SSHD = f"""\
# What Ubuntu's image has, without PAM.
Include /etc/ssh/sshd_config.d/*.conf
UsePAM no
KbdInteractiveAuthentication no
PasswordAuthentication no
PrintMotd no
LogLevel VERBOSE
X11Forwarding yes
SetEnv PATH={PATH}
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
# Said for speed alone: the default costs 80 ms of processor time per connection.
KexAlgorithms curve25519-sha256,ecdh-sha2-nistp256
"""

SSH_UNIT = """\
[Unit]
Description=OpenBSD Secure Shell server
[Service]
ExecStartPre=/usr/sbin/sshd -t
ExecStart=/usr/sbin/sshd -D -E /var/log/auth.log
ExecReload=/usr/sbin/sshd -t
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RuntimeDirectory=sshd
[Install]
WantedBy=multi-user.target
"""

DOCKER_UNIT = """\
[Unit]
Description=Docker Application Container Engine
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""


def ip(*lines: str) -> None:
    subprocess.run(["ip", "-force", "-batch", "-"], input="\n".join(lines).encode(), check=True)


def network(spec: dict[str, Any]) -> None:
    private = f"{spec['private_address']}/{spec['prefix']}"
    # The address may have been another machine's a moment ago: its neighbours are told.
    Path("/proc/sys/net/ipv4/conf/all/arp_notify").write_text("1\n")
    lines = ["link set lo up", f"address add {private} broadcast + dev eth0", "link set eth0 up"]
    lines.append(f"route add default via {spec['gateway']}")
    # What a Docker engine leaves on every machine, with the same address on each: a trap for MPI.
    lines += ["link add docker0 type bridge", "address add 172.17.0.1/16 dev docker0"]
    lines += ["link set docker0 up", "route add 169.254.169.254/32 via " + spec["gateway"]]
    ip(*lines)


def enable(path: str) -> None:
    folder = OWN_UNITS / "multi-user.target.wants"
    folder.mkdir(parents=True, exist_ok=True)
    link(folder / Path(path).name, path)


def link(path: Path, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    path.symlink_to(target)

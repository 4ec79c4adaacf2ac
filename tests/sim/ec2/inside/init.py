"""Process 1 of a light host: makes a machine of its namespaces, then is its init and cloud-init.

    python -IS init.py SPEC

Started in new network, mount, UTS, IPC and PID namespaces. Says "ready" on standard output, waits
for a line (our cable is plugged in), says "up" when sshd listens. Exit code: 0 the machine was
switched off, 1 it could not start.

Nothing here is imported from outside the standard library: the interpreter is the only thing of
the test run that the machine sees.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import pwd
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
RDONLY, NOSUID, REMOUNT, BIND, REC, PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]

TOOLS = Path("/usr/lib/sim/tools.py")
SOCKET = "/run/sim/init.sock"
SCHEDULED = Path("/run/systemd/shutdown/scheduled")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNITS = (Path("/etc/systemd/system"), Path("/run/systemd/system"), Path("/lib/systemd/system"))

SHIMS = {
    "/usr/bin": ["systemctl", "cloud-init", "apt-get", "apt", "journalctl", "loginctl"],
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
    sudo = Path("/etc/sudo.conf")
    if sudo.parent.is_dir():
        write(str(sudo), "Set disable_coredump false\n")
    write("/etc/sudoers.d/90-cloud-init-users", f"{UBUNTU} ALL=(ALL) NOPASSWD:ALL\n", 0o440)
    for key in Path("/etc/ssh").glob("ssh_host_*"):
        key.unlink()
    for file in Path("/etc/ssh/sshd_config.d").glob("*"):
        file.unlink()
    write("/etc/ssh/sshd_config", SSHD)
    write("/etc/systemd/system/ssh.service", SSH_UNIT)
    for path in (*Path("/etc/systemd/system").glob("*.wants"), Path("/etc/machine-id")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write("/etc/machine-id", f"{spec['id'].removeprefix('i-'):0<32}\n")
    _replace_link(Path("/etc/systemd/system/sshd.service"), "ssh.service")
    _enable("/etc/systemd/system/ssh.service")
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
    home.mkdir(parents=True, mode=0o750)
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
    _enable("/lib/systemd/system/docker.service")


SSHD = f"""\
# What Ubuntu's image has, without PAM.
Include /etc/ssh/sshd_config.d/*.conf
UsePAM no
KbdInteractiveAuthentication no
PasswordAuthentication no
PrintMotd no
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
ExecStart=/usr/sbin/sshd -D
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
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
"""


def ip(*lines: str) -> None:
    subprocess.run(["ip", "-force", "-batch", "-"], input="\n".join(lines).encode(), check=True)


def network(spec: dict[str, Any]) -> None:
    private = f"{spec['private_address']}/{spec['prefix']}"
    lines = ["link set lo up", f"address add {private} broadcast + dev eth0", "link set eth0 up"]
    if spec["public_address"]:
        public = spec["public_address"]
        lines.append(f"address add {public}/32 dev eth0")
        lines.append(f"route add default via {spec['gateway']} src {public}")
    else:
        lines.append(f"route add default via {spec['gateway']}")
    # What a Docker engine leaves on every machine, with the same address on each: a trap for MPI.
    lines += ["link add docker0 type bridge", "address add 172.17.0.1/16 dev docker0"]
    lines += ["link set docker0 up", "route add 169.254.169.254/32 via " + spec["gateway"]]
    ip(*lines)


# --- cloud-init -----------------------------------------------------------------------------------


class CloudInit:
    """As much of it as user data in JSON needs, in its own order: keys and files before sshd
    starts, commands after that.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        text = spec["user_data"]
        self.errors: list[str] = []
        self.config: dict[str, Any] = {}
        self.script = ""
        if text.startswith("#cloud-config"):
            try:
                self.config = json.loads(text.partition("\n")[2] or "{}")
            except ValueError as wrong:
                # The real one reads YAML too. What we send is JSON, or it is a mistake of ours.
                self.errors.append(f"user data is no JSON: {wrong}")
        elif text.startswith("#!"):
            self.script = text
        elif text:
            self.errors.append("user data is neither #cloud-config nor a script")
        self.keys = [*spec["public_keys"], *self.config.get("ssh_authorized_keys", [])]
        known = {"ssh_keys", "ssh_authorized_keys", "write_files", "runcmd", "disable_root"}
        known |= {"ssh_deletekeys", "ssh_genkeytypes", "ssh_pwauth", "package_update", "packages"}
        known |= {"package_upgrade", "hostname", "preserve_hostname", "manage_etc_hosts", "output"}
        for key in sorted(set(self.config) - known):
            self.errors.append(f"the simulator's cloud-init does not know {key!r}")

    def early(self) -> None:
        """The stages before sshd."""
        for key, value in self.config.get("ssh_keys", {}).items():
            kind, _, half = key.partition("_")
            name = f"/etc/ssh/ssh_host_{kind}_key"
            if half == "private":
                write(name, value, 0o600)
            elif half == "public":
                write(f"{name}.pub", value.rstrip("\n") + "\n")
        if not self.config.get("ssh_keys"):
            for kind in self.config.get("ssh_genkeytypes", ["ed25519"]):
                argv = [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    kind,
                    "-N",
                    "",
                    "-f",
                    f"/etc/ssh/ssh_host_{kind}_key",
                ]
                subprocess.run(argv, check=True)
        folder = Path(f"/home/{UBUNTU}/.ssh")
        folder.mkdir(mode=0o700, exist_ok=True)
        write(str(folder / "authorized_keys"), "\n".join([*self.keys, ""]), 0o600)
        for path in (folder, folder / "authorized_keys"):
            os.chown(path, 1000, 1000)
        refuse = 'no-port-forwarding,command="echo Please login as ubuntu" '
        root = "".join(f"{refuse}{key}\n" for key in self.keys)
        if self.config.get("disable_root") is False:
            root = "\n".join([*self.keys, ""])
        Path("/root/.ssh").mkdir(mode=0o700, exist_ok=True, parents=True)
        write("/root/.ssh/authorized_keys", root, 0o600)
        for file in self.config.get("write_files", []):
            if not file.get("defer"):
                self._file(file)

    def _file(self, file: dict[str, Any]) -> None:
        content = file.get("content", "")
        encoding = file.get("encoding", "text/plain")
        data = content.encode()
        if encoding in ("b64", "base64"):
            data = base64.b64decode(content)
        elif encoding != "text/plain":
            self.errors.append(f"{file['path']}: encoding {encoding!r}")
        path = Path(file["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = "ab" if file.get("append") else "wb"
        with path.open(mode) as stream:
            stream.write(data)
        path.chmod(int(str(file.get("permissions", "0644")), 8))
        owner = str(file.get("owner", "root:root")).split(":")[0]
        entry = pwd.getpwnam(owner)
        os.chown(path, entry.pw_uid, entry.pw_gid)

    def late(self) -> str:
        """The script of the last stage."""
        for file in self.config.get("write_files", []):
            if file.get("defer"):
                self._file(file)
        lines = ["#!/bin/sh"]
        if packages := self.config.get("packages"):
            lines.append(f"apt-get install -y {shlex.join(packages)}")
        for command in self.config.get("runcmd", []):
            lines.append(command if isinstance(command, str) else shlex.join(map(str, command)))
        return self.script or "\n".join([*lines, ""])


# --- init -----------------------------------------------------------------------------------------


class Unit:
    """A .service file, and its process."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.pid = 0
        self.state = "inactive"
        self.result = 0
        self.wanted = False
        self.settings: dict[str, list[str]] = {}
        self.load()

    def load(self) -> None:
        self.settings = {}
        text = self.path.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            key, found, value = line.strip().partition("=")
            if found and not line.lstrip().startswith(("#", ";")):
                values = self.settings.setdefault(key.strip(), [])
                values.append(value.strip()) if value.strip() else values.clear()

    def one(self, key: str, default: str = "") -> str:
        return self.settings.get(key, [default])[-1]

    def environment(self) -> dict[str, str]:
        found = {"PATH": PATH, "LANG": "C.UTF-8"}
        for name in self.settings.get("EnvironmentFile", []):
            file = Path(name.lstrip("-"))
            if file.exists():
                found.update(
                    line.split("=", 1) for line in file.read_text().splitlines() if "=" in line
                )
        for line in self.settings.get("Environment", []):
            found.update(word.split("=", 1) for word in shlex.split(line) if "=" in word)
        if self.pid:
            found["MAINPID"] = str(self.pid)
        return found


class Init:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.units: dict[str, Unit] = {}
        self.again: dict[str, float] = {}  # unit → when it starts again
        self.ending: str | None = None
        self.final = 0
        self.cloud = CloudInit(spec)

    # Units

    def unit(self, name: str) -> Unit | None:
        name = name if name.endswith((".service", ".timer", ".target")) else f"{name}.service"
        for folder in UNITS:
            path = folder / name
            if path.exists():
                real = path.resolve()
                unit = self.units.get(real.name)
                if unit is None:
                    unit = self.units[real.name] = Unit(real.name, real)
                return unit
        return self.units.get(name)

    def argv(self, unit: Unit, line: str) -> list[str]:
        environment = unit.environment()
        words = []
        for word in shlex.split(line.lstrip("-+!@:")):
            if word.startswith("$") and word[1:].isidentifier():
                words += shlex.split(environment.get(word[1:], ""))
                continue
            for key, value in environment.items():
                word = word.replace("${" + key + "}", value)
            words.append(word.replace("%%", "%"))
        return words

    def launch(self, unit: Unit, line: str) -> int:
        argv = self.argv(unit, line)
        log = os.open(f"/run/sim/log/{unit.name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        user = unit.one("User")
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=unit.environment(),
                cwd=unit.one("WorkingDirectory", "/").lstrip("-"),
                start_new_session=True,
                user=user or None,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
            )
        except OSError as failed:
            os.write(log, f"{unit.name}: {failed}\n".encode())
            return 0
        finally:
            os.close(log)
        child.returncode = 0  # it is reaped with all others, and not by this object
        return child.pid

    def wait(self, pid: int) -> int:
        """Of a helper that ends soon. Others that end meanwhile are noted."""
        if not pid:
            return 203
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == pid:
                return os.waitstatus_to_exitcode(status)
            self.ended(ended, os.waitstatus_to_exitcode(status))

    def start(self, unit: Unit) -> int:
        if unit.state in ("active", "activating") and (unit.pid or unit.one("Type") == "oneshot"):
            return 0
        unit.load()
        self.again.pop(unit.name, None)
        for name in unit.one("RuntimeDirectory").split():
            Path("/run", name).mkdir(exist_ok=True)
        for line in unit.settings.get("ExecStartPre", []):
            code = self.wait(self.launch(unit, line))
            if code and not line.startswith("-"):
                return self.failed(unit, code)
        unit.wanted = True
        unit.result = 0
        if unit.one("Type") == "oneshot":
            for line in unit.settings.get("ExecStart", []):
                code = self.wait(self.launch(unit, line))
                if code and not line.startswith("-"):
                    return self.failed(unit, code)
            unit.state = "active" if unit.one("RemainAfterExit") in ("yes", "true") else "inactive"
            return 0
        unit.pid = self.launch(unit, unit.one("ExecStart"))
        if not unit.pid:
            return self.failed(unit, 203)
        unit.state = "active"
        return 0

    def failed(self, unit: Unit, code: int) -> int:
        unit.state, unit.result, unit.pid = "failed", code, 0
        return 1

    def stop(self, unit: Unit) -> int:
        unit.wanted = False
        self.again.pop(unit.name, None)
        for line in unit.settings.get("ExecStop", []):
            self.wait(self.launch(unit, line))
        if pid := unit.pid:
            _signal_group(pid, signal.SIGTERM)
            patience = time.monotonic() + 5
            while unit.pid == pid and time.monotonic() < patience:
                self.reap()
                time.sleep(0.01)
            # The whole control group goes, as systemd does it.
            _signal_group(pid, signal.SIGKILL)
            if unit.pid == pid:
                self.wait(pid)
                unit.pid = 0
        unit.state = "inactive"
        return 0

    def ended(self, pid: int, code: int) -> None:
        for unit in self.units.values():
            if unit.pid == pid:
                unit.pid, unit.result = 0, code
                clean = code in (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
                unit.state = "inactive" if clean or not unit.wanted else "failed"
                policy = unit.one("Restart", "no")
                if unit.wanted and (policy == "always" or (policy == "on-failure" and not clean)):
                    delay = float(unit.one("RestartSec", "0.1").rstrip("s") or 0.1)
                    self.again[unit.name] = time.monotonic() + delay
                    unit.state = "activating"
        if pid == self.final:
            self.final = 0
            if code:
                self.cloud.errors.append(f"the commands of user data ended with {code}")
            self.finished()

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self.ended(pid, os.waitstatus_to_exitcode(status))

    def verb(self, words: list[str]) -> tuple[int, str]:
        """What systemctl asked: exit code and text."""
        verb, names = words[0], words[1:]
        if verb == "daemon-reload":
            for unit in self.units.values():
                if unit.path.exists():
                    unit.load()
            return 0, ""
        if verb == "install-docker":
            install_docker()
            return self.verb(["start", "docker"])
        if verb in ("poweroff", "reboot", "halt"):
            self.ending = verb
            return 0, ""
        if verb == "is-system-running":
            return (1, "starting") if self.final else (0, "running")
        if verb == "list-units":
            return 0, "\n".join(f"{one.name} loaded {one.state}" for one in self.units.values())
        code, lines = 0, []
        for name in names:
            unit = self.unit(name)
            if unit is None:
                if verb in ("is-active", "is-enabled", "status"):
                    code = 4 if verb == "status" else 3 if verb == "is-active" else 1
                    lines.append(
                        "inactive" if verb == "is-active" else f"Unit {name} could not be found."
                    )
                    continue
                return 5, f"Failed to {verb} {name}: Unit {name} not found."
            result, line = self.one_verb(verb, unit)
            code = max(code, result)
            lines += [line] if line else []
        return code, "\n".join(lines)

    def one_verb(self, verb: str, unit: Unit) -> tuple[int, str]:
        masked = os.path.realpath(unit.path) == "/dev/null"
        failed = f"Job for {unit.name} failed. See 'journalctl -xeu {unit.name}' for details."
        if verb in ("start", "restart", "reload", "try-restart", "reload-or-restart") and masked:
            return 1, f"Failed to {verb} {unit.name}: Unit {unit.name} is masked."
        if verb == "start":
            code = self.start(unit)
            return code, failed if code else ""
        if verb in ("restart", "try-restart", "force-reload"):
            self.stop(unit)
            code = self.start(unit)
            return code, failed if code else ""
        if verb == "stop":
            return self.stop(unit), ""
        if verb in ("reload", "reload-or-restart"):
            if not unit.pid:
                return 1, f"{unit.name} is not active, cannot reload."
            for line in unit.settings.get("ExecReload", []):
                if self.wait(self.launch(unit, line)):
                    return 1, failed
            return 0, ""
        if verb == "is-active":
            return (0 if unit.state == "active" else 3), unit.state
        if verb == "is-enabled":
            enabled = _enabled(unit)
            return (
                0 if enabled else 1
            ), "masked" if masked else "enabled" if enabled else "disabled"
        if verb == "enable":
            _enable(str(unit.path))
            return 0, ""
        if verb == "disable":
            for link in Path("/etc/systemd/system").glob(f"*.wants/{unit.name}"):
                link.unlink()
            return 0, ""
        if verb == "mask":
            _replace_link(Path("/etc/systemd/system", unit.name), "/dev/null")
            self.units.pop(unit.name, None)
            return 0, ""
        if verb == "unmask":
            path = Path("/etc/systemd/system", unit.name)
            if path.is_symlink():
                path.unlink()
            return 0, ""
        if verb == "status":
            return (
                0 if unit.state == "active" else 3
            ), f"{unit.name} {unit.state} (pid {unit.pid})"
        if verb == "show":
            text = f"ActiveState={unit.state}\nMainPID={unit.pid}\nExecMainStatus={unit.result}"
            return 0, f"{text}\nLoadState=loaded"
        if verb == "kill":
            _signal_group(unit.pid, signal.SIGTERM)
            return 0, ""
        if verb == "reset-failed":
            unit.state = "inactive" if unit.state == "failed" else unit.state
            return 0, ""
        return 1, f"Unknown command verb {verb}."

    # The machine's life

    def boot(self, first: bool) -> None:
        for path in ("/run/sim/log", "/run/sshd", "/run/lock", "/run/cloud-init"):
            Path(path).mkdir(parents=True, exist_ok=True)
        if first:
            self.cloud.early()
        for link in sorted(Path("/etc/systemd/system").glob("*.wants/*.service")):
            if unit := self.unit(link.name):
                self.start(unit)
        if first:
            script = "/var/lib/cloud/instance/scripts/runcmd"
            write(script, self.cloud.late(), 0o700)
            log = os.open("/var/log/cloud-init-output.log", os.O_WRONLY | os.O_CREAT, 0o640)
            environment = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root"}
            child = subprocess.Popen(
                [script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
            child.returncode = 0
            os.close(log)
            self.final = child.pid
        else:
            self.finished()

    def finished(self) -> None:
        result = {"v1": {"datasource": "DataSourceEc2Local", "errors": self.cloud.errors}}
        write("/run/cloud-init/result.json", json.dumps(result))
        write("/var/lib/cloud/instance/boot-finished", f"{time.time()}\n")

    def shut_down(self) -> None:
        """What systemd does: asks, waits, then kills. We wait less long."""
        # sshd is told first: a session that hangs on must not look like a machine that is up.
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGTERM)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            self.reap()
            try:
                os.kill(-1, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)

    def due(self) -> None:
        """Looks at the clock: planned shutdowns, units that are to start again."""
        now = time.monotonic()
        for name, when in list(self.again.items()):
            if when <= now:
                del self.again[name]
                self.start(self.units[name])
        try:
            plan = dict(line.split("=", 1) for line in SCHEDULED.read_text().split())
        except (FileNotFoundError, ValueError):
            return
        if float(plan["USEC"]) / 1e6 <= time.time():
            SCHEDULED.unlink()
            self.ending = plan.get("MODE", "poweroff")

    def run(self) -> int:
        signal.set_wakeup_fd(_pipe := _wakeup())
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, self._heard)
        listener = socket.socket(socket.AF_UNIX)
        Path("/run/sim").mkdir(exist_ok=True)
        listener.bind(SOCKET)
        os.chmod(SOCKET, 0o666)  # anyone may ask; the tools keep changes to root
        listener.listen(16)
        listener.setblocking(False)
        selector = selectors.DefaultSelector()
        selector.register(listener, selectors.EVENT_READ)
        selector.register(WAKEUP[0], selectors.EVENT_READ)
        self.boot(first=True)
        print("up", flush=True)
        while True:
            for key, _ in selector.select(timeout=0.25):
                if key.fileobj is listener:
                    self._serve(listener)
                else:
                    WAKEUP[0].recv(4096)
            self.reap()
            self.due()
            if self.ending in ("poweroff", "halt"):
                self.shut_down()
                return 0
            if self.ending == "reboot":
                self.shut_down()
                self.ending = None
                SCHEDULED.unlink(missing_ok=True)
                for unit in self.units.values():
                    unit.pid, unit.state = 0, "inactive"
                self.boot(first=False)

    def _heard(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            self.ending = "poweroff"

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(5)
                words = json.loads(connection.makefile().readline())
                try:
                    code, text = self.verb(words)
                except Exception as failed:
                    code, text = 1, f"the simulator's init: {failed!r}"
                connection.sendall(json.dumps([code, text]).encode() + b"\n")


WAKEUP: list[socket.socket] = []


def _wakeup() -> int:
    WAKEUP.extend(socket.socketpair())
    for one in WAKEUP:
        one.setblocking(False)
    return WAKEUP[1].fileno()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _enabled(unit: Unit) -> bool:
    return any(Path("/etc/systemd/system").glob(f"*.wants/{unit.name}"))


def _enable(path: str) -> None:
    folder = Path("/etc/systemd/system/multi-user.target.wants")
    folder.mkdir(parents=True, exist_ok=True)
    _replace_link(folder / Path(path).name, path)


def _replace_link(path: Path, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    path.symlink_to(target)


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    os.umask(0o022)
    os.environ.clear()
    os.environ.update(PATH=PATH, LANG="C.UTF-8")
    build_root(spec)
    furnish(spec)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    network(spec)
    return Init(spec).run()


if __name__ == "__main__":
    sys.exit(main())

"""The life of a machine: boot, services, planned and unplanned ends."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import systemctl
from cloudinit import CloudInit
from system import OWN_UNITS, PATH, install_docker, write
from units import Units

SOCKET = "/run/sim/init.sock"
SCHEDULED = Path("/run/systemd/shutdown/scheduled")


def another_kernel() -> None:
    """The machine has started again: its kernel is another one, for who asks for its boot id."""
    file = f"/run/sim/boot-{uuid.uuid4()}"
    write(file, f"{uuid.uuid4()}\n", 0o444)
    subprocess.run(["mount", "--bind", file, "/proc/sys/kernel/random/boot_id"], check=True)


class Init:
    """`spec` is the order that the simulator wrote for this machine."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.units = Units(self.ended)
        self.cloud = CloudInit(spec)
        self.ending: str | None = None
        self.final = 0  # the process that runs the commands of user data

    def ended(self, pid: int, code: int) -> None:
        if pid == self.final:
            self.final = 0
            if code:
                self.cloud.errors.append(f"the commands of user data ended with {code}")
            self.finished()

    def verb(self, words: list[str]) -> tuple[int, str]:
        """What a command of the machine asked: exit code and text."""
        verb = words[0]
        if verb == "install-docker":
            install_docker()
            return self.verb(["start", "docker"])
        if verb in ("poweroff", "reboot", "halt"):
            self.ending = verb
            return 0, ""
        if verb == "is-system-running":
            return (1, "starting") if self.final else (0, "running")
        return systemctl.answer(self.units, verb, words[1:])

    def boot(self, first: bool) -> None:
        for path in ("/run/sim/log", "/run/sshd", "/run/lock", "/run/cloud-init"):
            Path(path).mkdir(parents=True, exist_ok=True)
        if first:
            self.cloud.early()
        else:
            another_kernel()
        for link in sorted(OWN_UNITS.glob("*.wants/*.service")):
            if unit := self.units.unit(link.name):
                self.units.start(unit)
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
            self.units.reap()
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
        self.units.due()
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
        up = False
        while True:
            for key, _ in selector.select(timeout=0.25 if up else 0.02):
                if key.fileobj is listener:
                    self._serve(listener)
                else:
                    WAKEUP[0].recv(4096)
            if not up and _sshd_listens():
                up = True
                print("up", flush=True)
            self.units.reap()
            self.due()
            if self.ending in ("poweroff", "halt"):
                self.shut_down()
                return 0
            if self.ending == "reboot":
                self.shut_down()
                self.ending = None
                SCHEDULED.unlink(missing_ok=True)
                for unit in self.units.known.values():
                    unit.pid, unit.state = 0, "inactive"
                self.boot(first=False)

    def _heard(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            self.ending = "poweroff"

    def _serve(self, listener: socket.socket) -> None:
        # Whoever asks may be gone, or be killed before it has said what it wants.
        with contextlib.suppress(OSError, ValueError):
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


def _sshd_listens() -> bool:
    rows = Path("/proc/net/tcp").read_text().splitlines()
    return any(row.split()[1:4:2] == ["00000000:0016", "0A"] for row in rows)


def _wakeup() -> int:
    WAKEUP.extend(socket.socketpair())
    for one in WAKEUP:
        one.setblocking(False)
    return WAKEUP[1].fileno()

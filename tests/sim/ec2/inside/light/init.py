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
from pathlib import Path
from typing import Any

import systemctl
from cloudinit import CloudInit
from system import OWN_UNITS, PATH, install_docker, write
from units import Units

SOCKET = "/run/sim/init.sock"
SCHEDULED = Path("/run/systemd/shutdown/scheduled")


class Init:
    """`spec` is the order that the simulator wrote for this machine."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.units = Units(self.ended)
        self.cloud = CloudInit(spec)
        self.ending = False
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
        if verb == "poweroff":
            self.ending = True
            return 0, ""
        return systemctl.answer(self.units, verb, words[1:])

    def boot(self) -> None:
        for path in ("/run/sim/log", "/run/sshd", "/run/lock", "/run/cloud-init"):
            Path(path).mkdir(parents=True, exist_ok=True)
        self.cloud.early()
        self.start_units()
        script = "/var/lib/cloud/instance/scripts/runcmd"
        write(script, self.cloud.late(), 0o700)
        with open("/var/log/cloud-init-output.log", "wb") as log:
            child = subprocess.Popen(
                [script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root"},
                cwd="/",
                start_new_session=True,
            )
        child.returncode = 0
        self.final = child.pid

    def start_units(self) -> None:
        for link in sorted(OWN_UNITS.glob("*.wants/*.service")):
            if unit := self.units.unit(link.name):
                self.units.start(unit)

    def restart(self) -> None:
        """It was stopped and is started: of what ran then, only services run again."""
        going = [unit for unit in self.units.known.values() if unit.pid]
        self.shut_down()
        self.units.again.clear()
        for unit in going:
            unit.pid = 0
            self.units.start(unit)
        self.start_units()

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
        except FileNotFoundError:
            return
        self.ending = self.ending or float(plan["USEC"]) / 1e6 <= time.time()

    def run(self, cable: int) -> int:
        """`cable`: has a line when the machine, which was stopped, is started."""
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
        selector.register(cable, selectors.EVENT_READ)
        self.boot()
        up = False
        while True:
            for key, _ in selector.select(timeout=0.25 if up else 0.02):
                if key.fileobj is listener:
                    self._serve(listener)
                elif key.fileobj == cable:
                    if os.read(cable, 64):
                        self.restart()
                        up = False
                    else:
                        selector.unregister(cable)
                else:
                    WAKEUP[0].recv(4096)
            if not up and _sshd_listens():
                up = True
                print("up", flush=True)
            self.units.reap()
            self.due()
            if self.ending:
                self.shut_down()
                return 0

    def _heard(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            self.ending = True

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

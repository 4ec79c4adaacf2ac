"""Services: the part of systemd that reads .service files and keeps their processes.

What a file says beyond `KNOWN` is refused: no unit of ours may rely on what is not kept here."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from system import OWN_UNITS, PATH

FOLDERS = (OWN_UNITS, Path("/lib/systemd/system"))
KNOWN = {
    *("After", "Description", "WantedBy", "Type", "User", "RuntimeDirectory"),
    *("ExecStartPre", "ExecStart", "ExecReload", "Restart", "RestartSec"),
}


class Unit:
    """A .service file, and its process."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.pid = 0
        self.state = "inactive"
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
                values.append(value.strip())
        if unknown := set(self.settings) - KNOWN:
            raise ValueError(f"{self.name}: not evaluated here: {unknown}")

    def one(self, key: str, default: str = "") -> str:
        return self.settings.get(key, [default])[-1]


class Units:
    """All of them. `on_end` is told of every process that ended, with its exit code."""

    def __init__(self, on_end: Callable[[int, int], None]) -> None:
        self.known: dict[str, Unit] = {}
        self.again: dict[str, float] = {}  # unit → when it starts again
        self.on_end = on_end

    def unit(self, name: str) -> Unit | None:
        name = name if name.endswith((".service", ".timer", ".target")) else f"{name}.service"
        for folder in FOLDERS:
            path = folder / name
            if path.exists():
                real = path.resolve()
                unit = self.known.get(real.name)
                if unit is None:
                    unit = self.known[real.name] = Unit(real.name, real)
                return unit
        return self.known.get(name)

    def launch(self, unit: Unit, line: str) -> int:
        argv = shlex.split(line.replace("$MAINPID", str(unit.pid)).replace("$$", "$"))
        log = os.open(f"/run/sim/log/{unit.name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        user = unit.one("User")
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": PATH, "LANG": "C.UTF-8"},
                cwd="/",
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
        if unit.pid:
            return 0
        unit.load()
        self.again.pop(unit.name, None)
        for name in unit.one("RuntimeDirectory").split():
            Path("/run", name).mkdir(exist_ok=True)
        for line in unit.settings.get("ExecStartPre", []):
            if self.wait(self.launch(unit, line)):
                return self.failed(unit)
        unit.wanted = True
        unit.pid = self.launch(unit, unit.one("ExecStart"))
        if not unit.pid:
            return self.failed(unit)
        unit.state = "active"
        return 0

    def failed(self, unit: Unit) -> int:
        unit.state, unit.pid = "failed", 0
        return 1

    def stop(self, unit: Unit) -> int:
        unit.wanted = False
        self.again.pop(unit.name, None)
        if pid := unit.pid:
            signal_group(pid, signal.SIGTERM)
            patience = time.monotonic() + 5
            while unit.pid == pid and time.monotonic() < patience:
                self.reap()
                time.sleep(0.01)
            # The whole control group goes, as systemd does it.
            signal_group(pid, signal.SIGKILL)
            if unit.pid == pid:
                self.wait(pid)
                unit.pid = 0
        unit.state = "inactive"
        return 0

    def ended(self, pid: int, code: int) -> None:
        for unit in self.known.values():
            if unit.pid == pid:
                unit.pid = 0
                clean = code in (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
                unit.state = "inactive" if clean or not unit.wanted else "failed"
                policy = unit.one("Restart", "no")
                if unit.wanted and (policy == "always" or (policy == "on-failure" and not clean)):
                    delay = float(unit.one("RestartSec", "0.1").rstrip("s") or 0.1)
                    self.again[unit.name] = time.monotonic() + delay
                    unit.state = "activating"
        self.on_end(pid, code)

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self.ended(pid, os.waitstatus_to_exitcode(status))

    def due(self) -> None:
        """Starts again what is to be started now."""
        now = time.monotonic()
        for name, when in list(self.again.items()):
            if when <= now:
                del self.again[name]
                self.start(self.known[name])


def signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)

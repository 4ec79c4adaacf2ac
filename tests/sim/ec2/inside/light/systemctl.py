"""What systemctl asks of the init: each answer is an exit code and a text."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from system import OWN_UNITS, enable, link
from units import Unit, Units, signal_group

Answer = tuple[int, str]

ABSENT: dict[str, tuple[int, str]] = {
    "is-active": (3, "inactive"),
    "is-enabled": (1, "Unit {} could not be found."),
    "status": (4, "Unit {} could not be found."),
}
"""Of a unit that there is not; `mask` is for those, too, and any other verb fails."""


def answer(units: Units, verb: str, names: list[str]) -> Answer:
    """Of a verb about units."""
    if verb == "daemon-reload":
        for unit in units.known.values():
            if unit.path.exists():
                unit.load()
        return 0, ""
    if verb == "list-units":
        return 0, "\n".join(f"{one.name} loaded {one.state}" for one in units.known.values())
    code, lines = 0, []
    for name in names:
        unit = units.unit(name)
        if unit is None and verb == "mask":
            link(OWN_UNITS / name, "/dev/null")
            lines.append(f"Unit {name} does not exist, proceeding anyway.")
            continue
        if unit is None and verb not in ABSENT:
            return 5, f"Failed to {verb} {name}: Unit {name} not found."
        result, line = ABSENT[verb] if unit is None else _of_one(units, verb, unit)
        code = max(code, result)
        lines += [line.format(name) if unit is None else line] if line else []
    return code, "\n".join(lines)


def _of_one(units: Units, verb: str, unit: Unit) -> Answer:
    if verb not in VERBS:
        return 1, f"Unknown command verb {verb}."
    if verb in STARTING and _masked(unit):
        return 1, f"Failed to {verb} {unit.name}: Unit {unit.name} is masked."
    return VERBS[verb](units, unit)


def _masked(unit: Unit) -> bool:
    return os.path.realpath(unit.path) == "/dev/null"


def _start(units: Units, unit: Unit) -> Answer:
    code = units.start(unit)
    return code, _failed(unit) if code else ""


def _failed(unit: Unit) -> str:
    return f"Job for {unit.name} failed. See 'journalctl -xeu {unit.name}' for details."


def _restart(units: Units, unit: Unit) -> Answer:
    units.stop(unit)
    return _start(units, unit)


def _reload(units: Units, unit: Unit) -> Answer:
    if not unit.pid:
        return 1, f"{unit.name} is not active, cannot reload."
    for line in unit.settings.get("ExecReload", []):
        if units.wait(units.launch(unit, line)):
            return 1, _failed(unit)
    return 0, ""


def _is_active(units: Units, unit: Unit) -> Answer:
    return (0 if unit.state == "active" else 3), unit.state


def _is_enabled(units: Units, unit: Unit) -> Answer:
    enabled = any(OWN_UNITS.glob(f"*.wants/{unit.name}"))
    state = "enabled" if enabled else "disabled"
    return (0 if enabled else 1), "masked" if _masked(unit) else state


def _enable(units: Units, unit: Unit) -> Answer:
    enable(str(unit.path))
    return 0, ""


def _disable(units: Units, unit: Unit) -> Answer:
    for wanted in OWN_UNITS.glob(f"*.wants/{unit.name}"):
        wanted.unlink()
    return 0, ""


def _mask(units: Units, unit: Unit) -> Answer:
    link(OWN_UNITS / unit.name, "/dev/null")
    units.known.pop(unit.name, None)
    return 0, ""


def _unmask(units: Units, unit: Unit) -> Answer:
    path = OWN_UNITS / unit.name
    if path.is_symlink():
        path.unlink()
    return 0, ""


def _status(units: Units, unit: Unit) -> Answer:
    return (0 if unit.state == "active" else 3), f"{unit.name} {unit.state} (pid {unit.pid})"


def _show(units: Units, unit: Unit) -> Answer:
    values = (unit.state, unit.pid, unit.result)
    return 0, "ActiveState={}\nMainPID={}\nExecMainStatus={}\nLoadState=loaded".format(*values)


def _kill(units: Units, unit: Unit) -> Answer:
    signal_group(unit.pid, signal.SIGTERM)
    return 0, ""


def _reset_failed(units: Units, unit: Unit) -> Answer:
    unit.state = "inactive" if unit.state == "failed" else unit.state
    return 0, ""


STARTING = ("start", "restart", "reload", "try-restart", "reload-or-restart")
VERBS: dict[str, Callable[[Units, Unit], Answer]] = {
    "start": _start,
    "restart": _restart,
    "try-restart": _restart,
    "force-reload": _restart,
    "stop": lambda units, unit: (units.stop(unit), ""),
    "reload": _reload,
    "reload-or-restart": _reload,
    "is-active": _is_active,
    "is-enabled": _is_enabled,
    "enable": _enable,
    "disable": _disable,
    "mask": _mask,
    "unmask": _unmask,
    "status": _status,
    "show": _show,
    "kill": _kill,
    "reset-failed": _reset_failed,
}

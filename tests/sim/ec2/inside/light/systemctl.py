"""What systemctl asks of the init: each answer is an exit code and a text."""

from __future__ import annotations

from system import OWN_UNITS, enable, link
from units import Unit, Units

Answer = tuple[int, str]

ABSENT: dict[str, Answer] = {
    "is-active": (3, "inactive"),
    "is-enabled": (1, "Unit {} could not be found."),
    "status": (4, "Unit {} could not be found."),
}
"""Of a unit that there is not; `mask` is for those alone, and any other verb fails."""


def answer(units: Units, verb: str, names: list[str]) -> Answer:
    """Of a verb about units."""
    if verb == "daemon-reload":
        for unit in units.known.values():
            if unit.path.exists():
                unit.load()
        return 0, ""
    code, lines = 0, []
    for name in names:
        unit = units.unit(name)
        if unit is None and verb == "mask":
            link(OWN_UNITS / name, "/dev/null")
            continue
        if unit is None and verb not in ABSENT:
            return 5, f"Failed to {verb} {name}: Unit {name} not found."
        result, line = ABSENT[verb] if unit is None else _answer_of(units, verb, unit)
        code = max(code, result)
        lines.append(line.format(name))
    return code, "\n".join(filter(None, lines))


def _answer_of(units: Units, verb: str, unit: Unit) -> Answer:
    failed = f"Job for {unit.name} failed."
    if verb in ("start", "restart"):
        if verb == "restart":
            units.stop(unit)
        return (1, failed) if units.start(unit) else (0, "")
    if verb == "stop":
        return units.stop(unit), ""
    if verb == "reload":
        if not unit.pid:
            return 1, f"{unit.name} is not active, cannot reload."
        lines = unit.settings.get("ExecReload", [])
        return (1, failed) if any(units.wait(units.launch(unit, one)) for one in lines) else (0, "")
    if verb in ("is-active", "status"):
        return (0 if unit.state == "active" else 3), unit.state
    wanted = list(OWN_UNITS.glob(f"*.wants/{unit.name}"))
    if verb == "is-enabled":
        return (0, "enabled") if wanted else (1, "disabled")
    if verb == "enable":
        enable(str(unit.path))
        return 0, ""
    if verb == "disable":
        for link_of_it in wanted:
            link_of_it.unlink()
        return 0, ""
    return 1, f"Unknown command verb {verb}."

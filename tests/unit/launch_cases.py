"""The cases in tests/cases/launch: requests to the launchers, and the plans that are expected.

Of a plan a case says only what differs from that of its `base` (BASE, unless it names another).
"""

from __future__ import annotations

import json
import shlex
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from clusterctl.core.job import ProgramKind
from clusterctl.core.model import Accelerator
from clusterctl.launch import launcher
from clusterctl.launch.launcher import Request
from tests.unit.making import cluster, node, program, request, spec

FOLDER = Path(__file__).resolve().parents[1] / "cases" / "launch"
CASES = sorted(FOLDER.glob("*.json"))
BASE = "ec2-openmpi-5"

Case = dict[str, Any]
Plan = dict[str, Any]


def read(name: str) -> Case:
    found: Case = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def base_of(name: str) -> str:
    """The case whose plan this one's is compared with; none for BASE."""
    return "" if name == BASE else str(read(name).get("base", BASE))


def build(given: dict[str, Any]) -> Request:
    """`nodes`: each one's changes by name; `workers` and `all`: changes for several."""
    rows = given.get("nodes") or {"launcher": {}, "worker-1": {}, "worker-2": {}}
    nodes = []
    for number, (name, changes) in enumerate(rows.items(), start=10):
        row = {"address": f"10.0.0.{number}", **given.get("all", {})}
        row |= {**(given.get("workers", {}) if name != "launcher" else {}), **changes}
        if "accelerator" in row:
            row["accelerator"] = Accelerator(row["accelerator"])
        nodes.append(node(name, **row))
    wanted = dict(given.get("job", {}))
    if "program" in wanted:
        row = dict(wanted["program"])
        args = row.pop("args", ())
        wanted["program"] = program(*args, **{**row, "kind": ProgramKind(row["kind"])})
    return request(cluster(*nodes, **given.get("cluster", {})), spec(**wanted))


def outcome(given: dict[str, Any]) -> Plan:
    plan = launcher.plan_launch(given.get("job", {}).get("launcher", "mpirun"), build(given))
    return {
        "hostfile": plan.files["hostfile"].splitlines(),
        "argv": words(plan.argv),
        "env": plan.env,
        "node_env": plan.node_env,
        "programs": {name: shlex.join(argv) for name, argv in plan.programs.items()},
        "agents": plan.agents,
        "reasons": {reason.item: reason.why for reason in plan.reasons},
        "notes": list(plan.notes),
    }


def words(argv: tuple[str, ...]) -> list[str]:
    """A command line with one option and its values in each line, quoted as for a shell."""
    lines: list[list[str]] = []
    for word in argv:
        if not lines or word.startswith("-") or word == "/bin/sh":
            lines.append([])
        lines[-1].append(word)
    return [shlex.join(line) for line in lines]


def difference(base: Any, found: Any) -> Any:
    """What makes `found` of `base`: of mappings the entries that differ, null for one that is gone;
    of lists the lines that go and come, each place with the line before it."""
    if isinstance(base, dict) and isinstance(found, dict):
        gone = dict.fromkeys(key for key in base if key not in found)
        return gone | {
            key: difference(base[key], value) if key in base else value
            for key, value in found.items()
            if key not in base or base[key] != value
        }
    if isinstance(base, list) and isinstance(found, list):
        lines = []
        matcher = SequenceMatcher(a=base, b=found, autojunk=False)
        for tag, i, j, m, n in matcher.get_opcodes():
            if tag != "equal":
                lines += [f"  {base[i - 1]}"] if i else []
                lines += [f"- {line}" for line in base[i:j]] + [f"+ {line}" for line in found[m:n]]
        return lines
    return found


def text(value: Any, indent: str = "") -> str:
    """JSON, with what fits into a line in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= 100 or not isinstance(value, dict | list):
        return line
    deeper = f"{indent}  "
    if isinstance(value, list):
        rows = [text(item, deeper) for item in value]
        return f"[\n{deeper}" + f",\n{deeper}".join(rows) + f"\n{indent}]"
    rows = [f"{json.dumps(key)}: {text(item, deeper)}" for key, item in value.items()]
    return f"{{\n{deeper}" + f",\n{deeper}".join(rows) + f"\n{indent}}}"


def flags(argv: tuple[str, ...]) -> list[str]:
    """The words of a command line that are flags, up to the command that mpirun starts."""
    end = argv.index("/bin/sh")
    return [word for word in argv[:end] if word.startswith("-")]

"""The cases in tests/cases/launch, as requests to the launchers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterctl.launch import Request
from clusterctl.model import Accelerator, ProgramKind
from tests.unit.making import cluster, node, program, request, spec

CASES = sorted((Path(__file__).resolve().parents[1] / "cases" / "launch").glob("*.json"))


def build(given: dict[str, Any]) -> Request:
    common = given.get("all", {})
    rows = [{**common, **row} for row in given["nodes"]]
    for row in rows:
        if "accelerator" in row:
            row["accelerator"] = Accelerator(row["accelerator"])
    nodes = [node(**row) for row in rows]
    wanted = dict(given.get("job", {}))
    if "program" in wanted:
        row = wanted["program"]
        args = row.pop("args", ())
        wanted["program"] = program(*args, **{**row, "kind": ProgramKind(row["kind"])})
    return request(cluster(*nodes, **given.get("cluster", {})), spec(**wanted))


def flags(argv: tuple[str, ...]) -> list[str]:
    """The words of a command line that are flags, up to the command that mpirun starts."""
    end = argv.index("/bin/sh")
    return [word for word in argv[:end] if word.startswith("-")]

"""Answers of nodes: equal ones of many as one line, `worker-[1-63]: ok`, and errors. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from clusterctl.errors import ClusterctlError, LaunchError, NodeUnreachable, make_local_error
from clusterctl.formats import fold_runs
from clusterctl.model import NodeResult

_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def fold(results: Iterable[NodeResult]) -> tuple[str, ...]:
    """One text per different answer, in the order in which the answers come.

    An answer of several lines stands below the names, indented.
    """
    nodes: dict[str, list[str]] = {}
    for result in results:
        nodes.setdefault(_describe_answer(result), []).append(result.node)
    return tuple(f"{shorten(names)}: {answer}" for answer, names in nodes.items())


def shorten(names: Sequence[str]) -> str:
    """Names in short: `launcher,worker-[1-3,5]`. Numbers with leading zeros keep their width."""
    groups: dict[tuple[str, int], list[int]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            groups.setdefault((name, 0), [])
            continue
        prefix, digits = match.groups()
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        groups.setdefault(_find_family(groups, prefix, digits, width), []).append(int(digits))
    return ",".join(
        _render_group(prefix, width, numbers) for (prefix, width), numbers in groups.items()
    )


def _find_family(
    groups: dict[tuple[str, int], list[int]], prefix: str, digits: str, width: int
) -> tuple[str, int]:
    """node10 belongs to node[08-09] where those came first: it has the same width."""
    padded = (prefix, len(digits))
    return padded if not width and groups.get(padded) and len(digits) > 1 else (prefix, width)


def _render_group(prefix: str, width: int, numbers: Sequence[int]) -> str:
    if not numbers:
        return prefix
    runs = fold_runs(numbers)
    texts = [
        f"{run[0]:0{width}d}" if len(run) == 1 else f"{run[0]:0{width}d}-{run[-1]:0{width}d}"
        for run in runs
    ]
    if len(texts) == 1 and len(runs[0]) == 1:
        return prefix + texts[0]
    return f"{prefix}[{','.join(texts)}]"


def _describe_answer(result: NodeResult) -> str:
    if result.error:
        return result.error
    out = result.text.strip()
    if result.ok:
        return _indent(out) or "ok"
    why = result.complaints or out
    return f"exit {result.exit_code}" + (f": {_indent(why)}" if why else "")


def _indent(text: str) -> str:
    lines = text.splitlines()
    return text if len(lines) < 2 else "\n".join(["", *("  " + line for line in lines)])


def make_error(
    doing: str, result: NodeResult, hint: str = "--verbose shows more"
) -> ClusterctlError:
    """The error for a command of ours that failed on a node, or for what it met on this machine."""
    if result.errno:
        message, local = (
            f"{doing}: {result.error}",
            "check its permissions, or choose another folder",
        )
        return make_local_error(message, result.errno, local)
    if result.exit_code is None:
        return NodeUnreachable(
            f"{doing}: {result.node}: {result.error}",
            hint="check the nodes with `clusterctl status --live`; `up` or `attach` repairs them",
            transient=True,
        )
    full = [line for line in result.complaints.splitlines() if "No space left" in line]
    return LaunchError(
        f"{doing} failed on {result.node}: {full[-1] if full else result.why}",
        hint="free space there: `clusterctl ssh NODE -- df -h`" if full else hint,
    )

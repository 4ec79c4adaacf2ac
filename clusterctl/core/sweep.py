"""`--sweep` and `--array`: which points a job has, what each is told. Pure.

A point is one process. Its number stays the same when only some of them run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from clusterctl.errors import UsageError

MOST_POINTS = 10_000
"""Points of a job: each leaves files on its node."""

# Compiled when they are first used: every command loads this.
_NAME = r"(?a)[A-Za-z_][\w.-]*"
_VALUE = r'"(?P<quoted>(?:[^"]|"")*)"(?=,|$)|(?P<plain>[^,]*)'
"""Quoted as in a CSV file, or up to the next comma."""
_RANGE = r"(-?\d+)\.\.(-?\d+)"
_ARRAY = r"(?a)(?P<numbers>[\d,-]+?)(?::(?P<step>\d+))?(?:%(?P<most>\d+))?"


class Point(NamedTuple):
    """`number` is its name: `logs 12 --rank 3`. `args` follow those of the program."""

    number: int
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def settings(self) -> dict[str, str]:
        """The values of a sweep, by name."""
        return {
            n.removeprefix("--"): v for n, v in zip(self.args[::2], self.args[1::2], strict=True)
        }


def check_axis(text: str, option: str) -> str:
    """`lr=0.1,0.01` or `seed=0..4`, checked."""
    _parse_values(text, option)
    return text


def check_array(text: str, option: str) -> str:
    """`0-99`, `1,3,7`, `0-99:10` or `0-99%8`, as sbatch has them, checked."""
    _parse_indices(text, option)
    return text


def list_points(sweep: Sequence[str], numbers: str) -> tuple[Point, ...]:
    """All points of a job: every combination of the values, the last one changing first; or those
    of an array. Raises UsageError for too many."""
    if numbers:
        indices, _ = _parse_indices(numbers, "--array")
        return tuple(
            Point(number=index, env=(("CLUSTERCTL_ARRAY_INDEX", str(index)),)) for index in indices
        )
    axes = [_parse_values(text, "--sweep") for text in sweep]
    names = [name for name, _ in axes]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError(
            f"--sweep {twice} was given twice", hint=f"--sweep {twice}=A,B lists all values"
        )
    total = 1
    for _, values in axes:
        total *= len(values)
    if total > MOST_POINTS:
        raise _make_too_many_error(total)
    found = []
    for number, chosen in enumerate(product(*(values for _, values in axes))):
        pairs = list(zip(names, chosen, strict=True))
        found.append(
            Point(
                number=number,
                args=tuple(word for name, value in pairs for word in (f"--{name}", value)),
                env=tuple(
                    (f"CLUSTERCTL_SWEEP_{_name_variable(name)}", value) for name, value in pairs
                ),
            )
        )
    return tuple(found)


def parse_concurrency(numbers: str) -> int:
    """How many points may run at a time, of `0-99%8`; 0: as many as there are slots."""
    return _parse_indices(numbers, "--array")[1] if numbers else 0


def _name_variable(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII).upper()


def _parse_values(text: str, option: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    name = name.removeprefix("--")
    if not (equals and values and re.fullmatch(_NAME, name)):
        raise UsageError(
            f"{option} {text!r} is not NAME=VALUE,VALUE...",
            hint="for example --sweep lr=0.1,0.01 or --sweep seed=0..4",
        )
    found: list[str] = []
    for value, is_quoted in _split(values):
        if not is_quoted and (match := re.fullmatch(_RANGE, value)):
            first, last = int(match[1]), int(match[2])
            if abs(last - first) >= MOST_POINTS:
                raise _make_too_many_error(abs(last - first) + 1)
            step = 1 if last >= first else -1
            found += map(str, range(first, last + step, step))
        else:
            found.append(value)
    return name, found


def _split(values: str) -> Iterator[tuple[str, bool]]:
    """The values between commas, and whether each was quoted: `1,"a,b"` is `1` and `a,b`."""
    start, value = 0, re.compile(_VALUE)
    while start <= len(values) and (found := value.match(values, start)):
        quoted = found["quoted"]
        yield found["plain"] if quoted is None else quoted.replace('""', '"'), quoted is not None
        start = found.end() + 1


def _parse_indices(text: str, option: str) -> tuple[list[int], int]:
    wrong = UsageError(
        f"{option} {text!r} is not a list of numbers",
        hint="for example --array 0-99, --array 1,3,7 or --array 0-99%8 (at most 8 at a time)",
    )
    match = re.fullmatch(_ARRAY, text)
    if match is None or match["step"] == "0" or match["most"] == "0":
        raise wrong
    step, found = int(match["step"] or 1), dict[int, None]()
    for part in match["numbers"].split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise wrong
        end = int(last or first)
        if end < int(first):
            raise wrong
        count = (end - int(first)) // step + 1
        if count > MOST_POINTS:
            raise _make_too_many_error(count)
        found |= dict.fromkeys(range(int(first), end + 1, step))
        if len(found) > MOST_POINTS:
            raise _make_too_many_error(len(found))
    return sorted(found), int(match["most"] or 0)


def _make_too_many_error(total: int) -> UsageError:
    return UsageError(
        f"{total} points are more than a job may have ({MOST_POINTS})",
        hint="split them into several jobs",
    )

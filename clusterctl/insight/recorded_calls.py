"""The collectives that PyTorch's flight recorder has noted of a rank, by process group. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A collective in PyTorch's flight recorder: its number in its process group, from 1 on, and
    the sizes of what the rank brought. `done`: it was seen to end."""

    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...]
    done: bool

    def describe(self) -> str:
        """`all_reduce of [1000, 10]`."""
        sizes = ", ".join(str(list(size)) for size in self.sizes[:2])
        return f"{self.name} of {sizes}" if sizes else self.name


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A process group as a rank has recorded it: who belongs to it, and its latest calls."""

    title: str
    ranks: tuple[int, ...]
    calls: tuple[RecordedCall, ...]

    def find_call(self, number: int) -> RecordedCall | None:
        """None for one that it has not made, or made too long ago."""
        return next((call for call in self.calls if call.number == number), None)


def read_groups(text: str) -> dict[str, RecordedGroup]:
    """What templates/insight/flight.py prints; ValueError, LookupError."""
    found = {}
    try:
        for name, group in json.loads(text).items():
            calls = (
                RecordedCall(int(number), str(what), tuple(map(tuple, sizes)), bool(done))
                for number, what, sizes, done in group["calls"]
            )
            ranks = tuple(map(int, group["ranks"]))
            found[name] = RecordedGroup(str(group["title"] or name), ranks, tuple(calls))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no record of calls: {error}") from error
    return found

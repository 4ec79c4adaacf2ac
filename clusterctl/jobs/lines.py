"""A choice of a job's output, line by line: what matches, or the end of each stream."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from clusterctl.jobs.logs import Piece


@dataclass(frozen=True, slots=True)
class Choice:
    """`tail`: so many last lines of each stream of each rank; 0: all. `grep`: only lines in which
    this expression is found."""

    tail: int = 0
    grep: str = ""


ALL = Choice()


def choose(batches: Iterable[list[Piece]], choice: Choice) -> Iterator[list[Piece]]:
    """The same pieces, with nothing but the lines that were chosen."""
    if not (choice.tail or choice.grep):
        yield from batches
        return
    pattern = re.compile(choice.grep.encode())
    rest: dict[Piece, bytes] = {}
    ends: dict[Piece, deque[bytes]] = {}
    for pieces in batches:
        found = []
        for piece in pieces:
            stream = replace(piece, data=b"")
            *lines, rest[stream] = (rest.get(stream, b"") + piece.data).split(b"\n")
            matching = [line + b"\n" for line in lines if pattern.search(line)]
            if choice.tail:
                ends.setdefault(stream, deque(maxlen=choice.tail)).extend(matching)
            elif matching:
                found.append(replace(piece, data=b"".join(matching)))
        if found:
            yield found
    for stream, line in rest.items():  # without its end
        if line and pattern.search(line):
            ends.setdefault(stream, deque(maxlen=choice.tail or None)).append(line)
    yield [replace(stream, data=b"".join(lines)) for stream, lines in ends.items() if lines]

"""Ranks' output as people and programs see it: every line is tagged with its rank.

A progress bar is a line that its program writes again and again after a carriage return. On a
terminal it is redrawn in place, elsewhere its state is shown at intervals.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from clusterctl.cli.console import Console

LINE_LIMIT = 1 << 16
"""Bytes of a line that are kept until its end is there. What is longer comes in parts."""
INTERVAL = 5.0
"""Seconds between two states of a progress bar in a file, in a pipe and in JSON."""
FRAME = 0.1
"""The same on a terminal."""

COLOURS = (36, 33, 32, 35, 34, 31)
"""Of the tags of ranks: cyan, yellow, green, magenta, blue, red."""

_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[^\[\]])")
_COLOUR = re.compile(rb"(\x1b\[[0-9;:]*m)")
_UP = b"\x1b[A"
_UP_AND_DOWN = _UP + b"\n"
"""Between two states of a bar that stands below another one, as tqdm writes it."""
_CONTROL = re.compile(
    rb"[\x00-\x08\x0a-\x0c\x0e-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]"  # U+0080 to U+009F, a second set of control characters
    # Characters that turn the order of others: U+061C, U+200E and F, U+202A to E, U+2066 to F;
    # and U+2028 and 9, which begin lines.
    rb"|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xaf]"
)
_STRAY = re.compile(
    rb"^[\x80-\xbf]{1,3}|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}"
    rb"|[\xf0-\xf4][\x80-\xbf]{3}|([\x80-\x9f])"
)
"""The same bytes outside a character of UTF-8, or of its rest, where a line comes in parts: some
terminals obey them, the others show that they are wrong."""


@dataclass(slots=True, eq=False)
class RankStream:
    """One stream of one rank, and its line that is not complete yet."""

    rank: int | None
    stream: str
    rest: bytes = b""
    is_bar: bool = False
    """The line has a carriage return in it."""
    bar: bytes = b""
    """What a terminal would show of such a line."""
    shown: bytes = b""
    """The state of the bar that was shown last, and when."""
    shown_at: float = -math.inf

    @property
    def tag(self) -> bytes:
        return b"[agent] " if self.rank is None else b"[%d] " % self.rank

    def overwrite(self, text: bytes) -> None:
        """Follows what carriage returns in `text` leave to be seen."""
        for part in text.split(b"\r"):
            if part:
                text = part.replace(_UP, b"")
                self.bar = text if _ESCAPE.sub(b"", text).strip() else b""

    def restart(self) -> None:
        self.is_bar, self.bar, self.shown = False, b"", b""


class View(Protocol):
    """How and where output is shown, at the latest by `flush`."""

    def is_exact(self, source: RankStream) -> bool:
        """Whether complete lines are shown with all their bytes, not as a terminal shows them."""

    def get_interval(self, source: RankStream) -> float:
        """Seconds between two states of the source's progress bar; infinite: its end alone."""

    def show_lines(self, source: RankStream, lines: list[bytes]) -> None:
        """Lines without their newlines. The first may be the end of one that came in parts."""

    def show_part(self, source: RankStream, text: bytes) -> None:
        """The beginning of a line, or more of it."""

    def show_progress(self, source: RankStream) -> None:
        """The progress bar has a new state, or has been wiped off."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Printer:
    """Prints what ranks write. A context manager: leaving it prints lines that have no end.

    `only`: this rank alone. `exact`: files and pipes get the bytes as they were written, progress
    bars too.
    """

    def __init__(
        self,
        console: Console,
        *,
        only: int | None = None,
        exact: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._only = only
        self._clock = clock
        self._view: View = Json() if console.json else Text(console, exact)
        self._sources: dict[tuple[int | None, str, str], RankStream] = {}
        self._changed: dict[RankStream, None] = {}

    def __enter__(self) -> Printer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError) and error.errno:
            return  # perhaps it was this output that failed
        for source in self._sources.values():
            if source.rest or source.bar:
                self._complete(source, source.rest)
        self._view.close()

    def __call__(self, pieces: Iterable[Any]) -> None:
        for piece in pieces:
            if self._only is None or piece.rank == self._only:
                key = (piece.rank, piece.node, piece.stream)
                if key not in self._sources:
                    self._sources[key] = RankStream(piece.rank, piece.stream)
                self._feed(self._sources[key], piece.data)
        self._show_progress(self._clock())
        self._view.flush()

    def _show_progress(self, now: float) -> None:
        for source in tuple(self._changed):
            if source.bar == source.shown:
                del self._changed[source]
            elif now >= source.shown_at + self._view.get_interval(source):
                del self._changed[source]
                source.shown, source.shown_at = source.bar, now
                self._view.show_progress(source)

    def _feed(self, source: RankStream, data: bytes) -> None:
        text = source.rest + data
        if not self._view.is_exact(source):
            while _UP_AND_DOWN in text:
                text = text.replace(_UP_AND_DOWN, b"")
        lines = text.split(b"\n")
        rest = lines.pop()
        plain = not source.is_bar and b"\r" not in source.rest and b"\r" not in data
        if plain and all(len(line) <= LINE_LIMIT for line in lines):
            if lines:
                self._view.show_lines(source, lines)
        else:
            for line in lines:
                self._complete(source, line)
        if source.is_bar or b"\r" in rest:
            source.is_bar = True
            source.overwrite(rest)
            self._changed[source] = None
            if not self._view.is_exact(source):
                rest = rest.rpartition(b"\r")[2]
        source.rest = self._show_parts(source, rest)

    def _complete(self, source: RankStream, line: bytes) -> None:
        is_bar = source.is_bar or b"\r" in line.removesuffix(b"\r")
        if is_bar and not self._view.is_exact(source):
            source.overwrite(line)
            line = source.bar
        self._view.show_lines(source, [self._show_parts(source, line)])
        source.restart()

    def _show_parts(self, source: RankStream, text: bytes) -> bytes:
        """Shows all of a text that is too long but its last part, which is returned."""
        start = 0
        while len(text) - start > LINE_LIMIT:
            end = start + LINE_LIMIT
            while end > start + LINE_LIMIT - 3 and text[end] & 0xC0 == 0x80:
                end -= 1  # not within a character
            self._view.show_part(source, text[start:end])
            start = end
        return text[start:]


class Json:
    """An object per line. One that is not complete has `cut` where it is too long to wait for its
    end, and `progress` where it is the state of a progress bar, whose line comes when it ends."""

    def __init__(self) -> None:
        self._rows: list[str] = []

    def is_exact(self, source: RankStream) -> bool:
        return True

    def get_interval(self, source: RankStream) -> float:
        return INTERVAL

    def show_lines(self, source: RankStream, lines: list[bytes]) -> None:
        for line in lines:
            self._add_row(source, line)

    def show_part(self, source: RankStream, text: bytes) -> None:
        self._add_row(source, text, cut=True)

    def show_progress(self, source: RankStream) -> None:
        if source.bar:
            self._add_row(source, source.bar, progress=True)

    def _add_row(self, source: RankStream, text: bytes, **more: bool) -> None:
        line = text.decode(errors="replace")
        row = {"rank": source.rank, "stream": source.stream, "line": line, **more}
        self._rows.append(json.dumps(row) + "\n")

    def flush(self) -> None:
        if self._rows:
            sys.stdout.write("".join(self._rows))
            sys.stdout.flush()
            self._rows.clear()

    def close(self) -> None:
        self.flush()


class Text:
    """Stdout to stdout, stderr to stderr. Progress bars stand below everything else on a terminal,
    one to a line, and go up into the text when they end."""

    def __init__(self, console: Console, exact: bool) -> None:
        self._console = console
        self._exact = exact
        self._streams = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        self._terminals = _find_terminals(self._streams)
        self._screens = [name for name, stream in self._streams.items() if stream.isatty()]
        self._texts: dict[str, list[bytes]] = {name: [] for name in self._streams}
        self._unfinished: dict[str, RankStream] = {}
        """Whose line a stream, or the terminal, stands in: the next text of others begins anew."""
        self._bars: dict[RankStream, None] = {}
        self._drawn = 0
        self._changed = False
        if self._terminals:
            console.before_message = self._make_room

    def is_exact(self, source: RankStream) -> bool:
        return self._exact and source.stream not in self._terminals

    def get_interval(self, source: RankStream) -> float:
        if source.stream in self._terminals:
            return FRAME
        return math.inf if self._exact else INTERVAL

    def show_lines(self, source: RankStream, lines: list[bytes]) -> None:
        if self._bars.pop(source, source) is None:
            self._changed = True
        elif source.is_bar and source.shown == lines[0]:
            return  # its last state stands there already
        if source.stream in self._screens:
            lines = [_make_printable(line) for line in lines]
        self._write(source, (b"\n" + self._render_tag(source)).join(lines) + b"\n")
        self._unfinished.pop(self._name_place(source.stream), None)

    def show_part(self, source: RankStream, text: bytes) -> None:
        if source.stream in self._screens:
            text = _make_printable(text)
        self._write(source, text)
        self._unfinished[self._name_place(source.stream)] = source

    def show_progress(self, source: RankStream) -> None:
        if source.stream not in self._terminals:
            if source.bar:
                self._begin_anew(source.stream)
                seen = source.stream in self._screens
                bar = _make_printable(source.bar) if seen else source.bar
                self._texts[source.stream].append(self._render_tag(source) + bar + b"\n")
            return
        if source.bar:
            self._bars[source] = None
        else:
            self._bars.pop(source, None)
        self._changed = True

    def flush(self) -> None:
        if self._changed or (self._bars and not self._drawn) or any(self._texts.values()):
            self._clear()
            self._write_texts()
            self._draw()

    def close(self) -> None:
        self._bars.clear()
        self._clear()
        for stream in self._streams:
            self._begin_anew(stream)
        self._write_texts()
        if self._terminals:
            self._console.before_message = None

    def _render_tag(self, source: RankStream) -> bytes:
        """On a terminal in a colour, by which neighbouring ranks can be told apart."""
        if source.stream not in self._terminals or os.environ.get("NO_COLOR"):
            return source.tag
        colour = COLOURS[(source.rank or 0) % len(COLOURS)]
        return b"\x1b[%dm%b\x1b[0m " % (colour, source.tag.rstrip())

    def _name_place(self, stream: str) -> str:
        return "terminal" if stream in self._terminals else stream

    def _begin_anew(self, stream: str) -> None:
        if self._unfinished.pop(self._name_place(stream), None):
            self._texts[stream].append(b"\n")

    def _write(self, source: RankStream, text: bytes) -> None:
        if self._unfinished.get(self._name_place(source.stream)) is not source:
            self._begin_anew(source.stream)
            text = self._render_tag(source) + text
        self._texts[source.stream].append(text)

    def _write_texts(self) -> None:
        for name, texts in self._texts.items():
            if texts:
                self._streams[name].write(b"".join(texts))
                self._streams[name].flush()
                texts.clear()

    def _make_room(self) -> None:
        """Before somebody else writes to the terminal."""
        self._clear()
        for stream in self._terminals:
            self._begin_anew(stream)
        self._write_texts()

    def _clear(self) -> None:
        if self._drawn:
            up = b"\x1b[%dA" % (self._drawn - 1) if self._drawn > 1 else b""
            self._to_terminal(b"\r" + up + b"\x1b[J")
            self._drawn = 0

    def _draw(self) -> None:
        self._changed = False
        if not self._bars:
            return
        for stream in self._terminals:
            self._begin_anew(stream)
        self._write_texts()
        room = max(1, self._measure_height() // 2)
        bars = [self._render_tag(source) + _make_printable(source.shown) for source in self._bars]
        if len(bars) > room:
            bars = [*bars[: room - 1], b"(%d more)" % (len(bars) - room + 1)]
        # Without automatic margins, a bar that is too long stays on its line.
        self._to_terminal(b"\x1b[?7l" + b"\r\n".join(bars) + b"\x1b[?7h")
        self._drawn = len(bars)

    def _to_terminal(self, data: bytes) -> None:
        stream = self._streams[self._terminals[-1]]
        stream.write(data)
        stream.flush()

    def _measure_height(self) -> int:
        try:
            return os.get_terminal_size(self._streams[self._terminals[-1]].fileno()).lines or 24
        except OSError:
            return 24


def _find_terminals(streams: Mapping[str, BinaryIO]) -> list[str]:
    """The streams on which bars can be redrawn in place."""
    found = [name for name, stream in streams.items() if stream.isatty()]
    if not found or os.environ.get("TERM", "dumb") == "dumb":
        return []
    # What `tee` writes to the terminal itself would land among the bars.
    others = (stream for name, stream in streams.items() if name not in found)
    return [] if any(map(_is_pipe, others)) else found


def _is_pipe(stream: BinaryIO) -> bool:
    mode = os.fstat(stream.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _make_printable(text: bytes) -> bytes:
    """A line without what would move the cursor or turn the order of characters; colours stay, and
    end with it."""
    if not text.isascii():
        text = _STRAY.sub(lambda found: b"" if found[1] else found[0], text)
    parts = _COLOUR.split(text)  # each odd one is a colour
    parts[::2] = [_CONTROL.sub(b"", _ESCAPE.sub(b"", part)) for part in parts[::2]]
    return b"".join(parts) + b"\x1b[0m" * (len(parts) > 1)

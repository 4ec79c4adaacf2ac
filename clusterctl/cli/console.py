"""What people and programs see: results on stdout, progress and prose on stderr."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TextIO

from msgspec import to_builtins

from clusterctl.core.progress import QUESTION, Speedometer
from clusterctl.core.text import format_seconds
from clusterctl.errors import ClusterctlError, UsageError

SILENCE = 2.5
"""Seconds after which a verb about machines says that it still works: on a busy machine the word
comes later, and nobody should wait for more than five."""

GOOD, BAD = "32", "1;31"
"""Colours of terminals: green, and bold red."""

Moved = tuple[int, int | None]
"""Bytes: copied so far, and still to be copied (None: unknown)."""


class Console:
    """One per process. Set up by each verb from its --json, --quiet and --verbose."""

    _instance: Console | None = None

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.json = False
        self.quiet = False
        self.verbose = False
        self.reported = False
        """The last JSON document of a stream has been printed: an error adds no other."""
        self.after_interrupt = ""
        """What to do next when Ctrl-C comes now."""
        self.story: list[str] = []
        """All progress of this run, for the log when something goes wrong."""
        self.drawn = 0
        """Lines that stand in place at the bottom of the terminal."""
        self._writing = threading.RLock()
        self._began = self._spoke = self._clock()
        self._doing = ""
        self._asking = False
        self.arguments: tuple[str, ...] = ()

    @classmethod
    def begin(cls, arguments: Sequence[str] = ()) -> Console:
        """A new one, for a new command line."""
        cls._instance = cls()
        cls._instance.arguments = tuple(arguments)
        return cls._instance

    @classmethod
    def get_current(cls) -> Console:
        return cls._instance or cls.begin()

    def set(self, *, json: bool = False, quiet: bool = False, verbose: bool = False) -> Console:
        self.json, self.quiet, self.verbose = json, quiet, verbose
        return self

    def report(self, text: str, colour: str = "") -> None:
        """A line of progress, with the seconds since the start."""
        line = f"{self._clock() - self._began:6.1f} s  {escape_lines(text)}"
        self.story.append(line)
        self._doing = text
        if not self.quiet:
            self._write_stderr(line, colour=colour)

    @contextlib.contextmanager
    def show_waiting(
        self,
        silence: float | None = None,
        moved: Callable[[], Moved] | None = None,
        *,
        only_copies: bool = False,
    ) -> Iterator[None]:
        """Meanwhile nobody has to guess whether something still happens: after so many seconds
        without a word (usually SILENCE), those before included, the last line of progress is
        repeated: on a terminal in place, elsewhere in a line of its own, each time after a pause
        that is twice as long, up to eight times.

        Args:
            moved: Says how many bytes were copied, and how many are still to be (None: unknown).
                While they grow, a terminal shows how fast.
            only_copies: Where nothing is copied, the caller has its own ways to say so.
        """
        silence = silence or SILENCE
        over = threading.Event()

        def watch() -> None:
            start = size = moved()[0] if moved else 0
            speed = Speedometer(self._clock(), size)
            pause, doing, wait = silence / 10 if moved else 0.0, "", silence
            while not over.wait(pause or max(silence / 20, self._spoke + wait - self._clock())):
                if doing != self._doing:
                    doing, wait = self._doing, silence
                now, copied = self._clock(), ""
                size, left = moved() if moved else (0, None)
                if speed.add(now, size):
                    rest = speed.estimate(left)
                    copied = f", {(size - start) / 1e6:.1f} MB copied, {speed.rate / 1e6:.1f} MB/s"
                    copied += "" if rest is None else f", {ago(rest)} left"
                if self._is_asking() or self.quiet or (only_copies and not copied):
                    continue
                if copied and can_redraw():
                    self.draw([escape(f"{self._format_time()}  {self._doing}{copied}")])
                elif now - self._spoke >= wait:
                    step = escape_lines(self._doing).partition(";")[0]
                    after = f"; last step: {step}" if step else ""
                    line = f"{self._format_time()}  still working{after}{copied}"
                    if can_redraw():
                        self.draw([escape(line)])
                    else:
                        self._write_stderr(line)
                        wait = min(2 * wait, 8 * silence)

        thread = threading.Thread(target=watch, daemon=True, name="waiting")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.clear()

    def detail(self, text: str) -> None:
        if self.verbose:
            self.report(text)

    def step(self, text: str) -> None:
        """What a long action does now: in place on a terminal; elsewhere it is only told by
        `waiting`, and by --verbose."""
        if self.verbose:
            self.report(text)
            return
        self._doing = text
        if not self.quiet and can_redraw():
            self.draw([escape(f"{self._format_time()}  {text}")])

    def note(self, text: str) -> None:
        """A line of prose for people, without a time."""
        if not self.quiet:
            self._write_stderr(text)

    def warn(self, text: str) -> None:
        """A line of prose about what may go wrong, with --quiet, too."""
        self._write_stderr(text)

    def draw(self, lines: Sequence[str], room: int = 0) -> None:
        """These stand at the bottom of the terminal until the next ones or the next message, unless
        a question waits for its answer. `room`: lines for them; half of the window, else."""
        with self._writing:
            if self._is_asking():
                return
            self._spoke = self._clock()
            room = room or max(1, measure_height() // 2)
            if len(lines) > room:
                lines = [*lines[: room - 1], f"({len(lines) - room + 1} more)"]
            # Without automatic margins, a line that is too long stays on its line.
            self._write(f"{self._erase()}\x1b[?7l" + "\r\n".join(lines) + "\x1b[?7h")
            self.drawn = len(lines)

    def _is_asking(self) -> bool:
        return self._asking or QUESTION.locked()

    def leave(self) -> None:
        """What is drawn stays where it is."""
        if self.drawn:
            self.drawn = 0
            self._write("\n")

    def clear(self) -> None:
        """What is drawn goes."""
        with self._writing:
            if self.drawn:
                self._write(self._erase())

    def _erase(self) -> str:
        """What removes it from the terminal."""
        drawn, self.drawn = self.drawn, 0
        return "\r" + "\x1b[A" * (drawn - 1) + "\x1b[J" if drawn else ""

    def _format_time(self) -> str:
        return f"{self._clock() - self._began:6.1f} s"

    def result(self, text: str, *, raw: bool = False) -> None:
        """What the verb was asked for, for people. Nothing with --json. `raw`: a script of ours, to
        be run as it is; anything else may hold names and answers of nodes."""
        if not self.json:
            print(text if raw else escape_lines(text), flush=True)

    def document(self, **values: Any) -> None:
        """What the verb was asked for, for programs. Nothing without --json."""
        if self.json:
            import json

            print(json.dumps({"schema": 1, **make_plain(values)}), flush=True)

    def error(self, message: str, hint: str, code: int, log: str = "") -> None:
        self._write_stderr(f"clusterctl: {message}", colour=BAD)
        if hint:
            self._write_stderr(f"  → {hint}")
        if log:
            self._write_stderr(f"  log: {log}")
        if not self.reported:
            with contextlib.suppress(OSError):
                self.document(error={"code": code, "message": message, "hint": hint})

    def raise_first(self, failed: Sequence[ClusterctlError]) -> None:
        """Ends a verb whose document is out and which did a part: names what failed, if anything,
        and raises the first."""
        for other in failed[1:]:
            self.note(other.message)
        if failed:
            self.reported = True
            raise failed[0]

    @property
    def interactive(self) -> bool:
        """Whether there is somebody to ask."""
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, question: str) -> bool:
        """Asks on a terminal; yes where there is none, or with --json."""
        if not self.interactive:
            return True
        self._asking, answer = True, ""
        try:
            self._write_stderr(f"{question} [y/N] ", end="")
            answer = _read_line()
            return answer.strip().lower() in ("y", "yes")
        finally:
            if not answer.endswith("\n"):
                self._write("\n")  # Ctrl-C or Ctrl-D: the cursor stands behind the question
            self._spoke, self._asking = self._clock(), False

    def consent(self, question: str) -> bool:
        """As `confirm`, for what costs money: where there is nobody to ask, it is UsageError."""
        if not self.interactive:
            raise UsageError(
                f"{question} Cannot ask without a terminal", hint="confirm with -y (--yes)"
            )
        return self.confirm(question)

    def _write_stderr(self, text: str, end: str = "\n", colour: str = "") -> None:
        with self._writing:
            self._spoke = self._clock()
            self._write(self._erase() + paint(escape_lines(text), colour) + end)

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError as error:  # nobody reads it, or its disk is full
            if error.errno == errno.EIO:  # nor will: that terminal has closed
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _read_line() -> str:
    """What somebody types. Python looks for Ctrl-C before it waits and after: one that comes in
    between would be heeded after the answer, so no wait here is long."""
    import select  # seldom used

    while not select.select([sys.stdin], [], [], 0.2)[0]:
        pass
    return sys.stdin.readline()


def can_redraw() -> bool:
    """Whether lines on the terminal can be replaced."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def has_colours(stream: TextIO) -> bool:
    """Whether it is a terminal that shows colours, and nobody has asked for none."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return not plain and stream.isatty()


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """The text in a colour, where the stream (usually stderr) has any."""
    colours = colour and has_colours(stream or sys.stderr)
    return f"\x1b[{colour}m{text}\x1b[0m" if colours else text


def measure_height() -> int:
    """Lines of the terminal."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).lines or 24
    except OSError:
        return 24


def make_plain(value: Any) -> Any:
    """What JSON makes of Structs, enums, paths and tuples; what is not finite is null, for JSON has
    no NaN."""
    import json  # a millisecond, and seldom used

    text = json.dumps(value, default=partial(to_builtins, enc_hook=str, str_keys=True))
    return json.loads(text, parse_constant=lambda name: None)


def pick(item: object, *names: str) -> dict[str, Any]:
    """These attributes, for a document."""
    return {name: getattr(item, name) for name in names}


def escape(text: str, keep: str = "") -> str:
    """Control characters and lone surrogates as escapes, so that a terminal shows them and does not
    obey them; but for those in `keep`."""
    if text.translate(dict.fromkeys(map(ord, keep))).isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep
        else char.encode("unicode_escape", "replace").decode()
        for char in text
    )


def escape_lines(text: str) -> str:
    """As `escape`, for text of several lines."""
    return escape(text, keep="\n\t")


ago = format_seconds


def format_table(rows: Iterable[Iterable[object]]) -> str:
    """Columns as wide as their widest cell, two blanks apart; one line for each row."""
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    filled = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )
    return "\n".join(line.rstrip() for line in filled)


def format_records(rows: Iterable[Mapping[str, object]]) -> str:
    """The same with a head. What is None is `-`; a column without anything is left out."""
    found = list(rows)
    names = dict.fromkeys(name for row in found for name in row)
    shown = [name for name in names if any(row.get(name) is not None for row in found)]
    cells = ([row[n] if row.get(n) is not None else "-" for n in shown] for row in found)
    return format_table([shown, *cells])

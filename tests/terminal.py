"""A terminal for tests: a pty, and what its screen shows of what a program has written to it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from dataclasses import dataclass, field

_TOKEN = re.compile(r"\x1b\[(?P<values>[?\d;]*)(?P<final>[A-Za-z])|(?P<char>.)", re.DOTALL)


@dataclass
class Screen:
    """As much of a VT100 as is needed here: no colours, and all that scrolls off is kept."""

    width: int = 80
    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0
    column: int = 0
    wraps: bool = True

    def write(self, text: str) -> None:
        for token in _TOKEN.finditer(text):
            if token["char"]:
                self._put(token["char"])
            else:
                self._obey(token["values"], token["final"])

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append("")
        else:
            if self.column == self.width:
                if not self.wraps:
                    self.column -= 1
                else:
                    self._put("\r")
                    self._put("\n")
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def _obey(self, values: str, final: str) -> None:
        if final == "A":
            self.row = max(0, self.row - int(values or 1))
        elif final == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif final == "K":
            assert values == "2", f"unknown: {values}{final}"
            self.lines[self.row] = ""
        elif (values, final) in (("?25", "l"), ("?25", "h")):
            pass
        elif (values, final) in (("?7", "l"), ("?7", "h")):
            self.wraps = final == "h"
        elif values == "?2004":  # whether pasted text is marked
            pass
        else:
            assert final == "m", f"unknown: {values}{final}"

    @property
    def text(self) -> list[str]:
        return [line.rstrip() for line in self.lines if line.strip()]


class Terminal:
    """A program on a terminal of its own. `until` and `wait` return what the screen shows."""

    def __init__(
        self, argv: list[str], *, width: int = 80, keyboard: bool = False, **options: object
    ) -> None:
        """`keyboard`: what is sent comes from the terminal, too, as if somebody typed it."""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.screen = Screen(width)
        self._cut = ""  # a read may end within a code, or a character
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = ""
        """All that the program has written."""
        self.process = subprocess.Popen(
            argv,
            stdout=theirs,
            stderr=theirs,
            stdin=theirs if keyboard else subprocess.PIPE,
            **options,  # type: ignore[call-overload]
        )
        os.close(theirs)

    def resize(self, width: int) -> None:
        """As if somebody made the window narrower: what it shows is cut and not broken anew."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.screen.width = width

    def send(self, data: bytes) -> None:
        if self.process.stdin is None:
            os.write(self._ours, data)
            return
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def _read(self, seconds: float) -> bool:
        """False at the end of what can be read."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # how Linux says that nobody has the other end
            return False
        text = self._decoder.decode(data)
        self.raw += text
        text, self._cut = re.fullmatch(
            r"(.*?)(\x1b(?:\[[?\d;]*)?)?", self._cut + text, re.S
        ).groups("")
        self.screen.write(text)
        return bool(data)

    def until(self, *wanted: str, seconds: float = 30, any_order: bool = False) -> list[str]:
        """Waits until the last lines on the screen are these."""

        def there() -> bool:
            last = self.screen.text[-len(wanted) :]
            return sorted(last) == sorted(wanted) if any_order else last == list(wanted)

        deadline = time.monotonic() + seconds
        while not there():
            assert time.monotonic() < deadline, f"{wanted} never came: {self.screen.text}"
            assert self._read(0.1) or there(), f"{wanted} never came: {self.screen.text}"
        return self.screen.text

    def until_shown(self, text: str, seconds: float = 60) -> None:
        """Waits until this stands somewhere on the screen."""
        deadline = time.monotonic() + seconds
        while not any(text in line for line in self.screen.text):
            assert time.monotonic() < deadline, f"{text} never came: {self.screen.text}"
            assert self._read(0.1), f"{text} never came: {self.screen.text}"

    def until_more(self, seconds: float = 30) -> None:
        """Waits until the program writes something."""
        before, deadline = self.raw, time.monotonic() + seconds
        while self.raw == before:
            assert time.monotonic() < deadline, self.screen.text
            assert self._read(0.1), self.screen.text

    def wait(self, seconds: float = 30) -> list[str]:
        """Waits for the program's end."""
        deadline = time.monotonic() + seconds
        if self.process.stdin:
            self.process.stdin.close()
        while self._read(0.1):
            assert time.monotonic() < deadline, self.screen.text
        self.process.wait(seconds)
        return self.screen.text

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._ours)

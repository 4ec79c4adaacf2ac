"""Numbers, sizes, moments and spans of time in the way that people read them. Pure."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from signal import Signals
from typing import Any, TypeVar

from clusterctl.errors import UsageError

T = TypeVar("T")

_DECODING = threading.Lock()
"""msgspec crashes where two threads learn a type at once."""


def fold_runs(numbers: Iterable[int]) -> tuple[range, ...]:
    """The numbers, ascending and each once, as runs of those that follow each other."""
    runs: list[range] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1].stop:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return tuple(runs)


def format_bytes(size: float) -> str:
    """In decimal units: `512 B`, `43.2 MB`."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def format_seconds(seconds: float) -> str:
    """A span of time: `4.2 s`, `42 s`, `7 min`, `3.5 h`, `2.1 d`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


def describe_exit(code: int) -> str:
    """`exited 3`, `was killed by SIGKILL`."""
    try:
        return f"was killed by {Signals(code - 128).name}"
    except ValueError:
        return f"exited {code}"


def count(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `3 processes`."""
    return f"{number} {noun if number == 1 else pluralize(noun)}"


def pluralize(noun: str) -> str:
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def format_span(seconds: float) -> str:
    """`1 min`, `1.5 h`."""
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"


def format_time(when: float) -> str:
    """A moment (seconds since the epoch) in local time: `2026-11-21 13:05:00 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(when))


LAST_LINES = 12
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def list_last_lines(text: str) -> tuple[str, ...]:
    """The end of a console or log, without what would move a cursor or colour the text."""
    plain = _ESCAPE.sub("", text)
    lines = ("".join(filter(str.isprintable, line)).rstrip() for line in plain.splitlines())
    return tuple([line[:200] for line in lines if line][-LAST_LINES:])


# -------------------------------------------------------------------------------------------------
# Reads text files that a person hands in, and says what is wrong with one in a line.


MAX_BYTES = 16 << 20
MAX_LINE = 1 << 20
MAX_HOST_LINE = 4096
"""Characters of a line, and of one about a host."""


def read_input(path: Path, what: str, *, hint: str, max_line: int = MAX_LINE) -> str:
    """The file's text. `what`: as it was given, such as `--hosts FILE`. Raises UsageError for one
    that cannot be read or is no text, and for one without an end, such as /dev/zero."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"{what} is larger than {MAX_BYTES >> 20} MiB", hint=hint)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        at = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{what} cannot be read: line {at} is not UTF-8", hint=hint) from error
    for number, line in enumerate(text.split("\n"), 1):
        why = "has a NUL character" if "\0" in line else ""
        if len(line) > max_line:
            why = f"is longer than {max_line} characters"
        if why:
            raise UsageError(f"{what} cannot be read: line {number} {why}", hint=hint)
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """Raises UsageError for a file that is no TOML or cannot be read."""
    return parse_toml(read_input(path, str(path), hint="it has to be readable text"), str(path))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """`name`: what people call it. Raises UsageError for what is no TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]
    try:
        settings: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not valid TOML: {error}", hint="correct that line") from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply", hint="no table needs that") from error
    return settings


def parse_yaml(text: str, name: str) -> Any:
    """`name`: what people call it. Raises UsageError for what is no YAML."""
    from msgspec import DecodeError, yaml  # seldom used

    try:
        return yaml.decode(text)
    except DecodeError as error:
        why = " ".join(str(error).split())
        raise UsageError(f"{name} is not valid YAML: {why}", hint="correct that line") from error


def decode_table(path: Path, kind: type[T]) -> T:
    """A TOML file of this package, as a value of that type, which its rows have to fit."""
    from msgspec import toml

    with _DECODING:
        return toml.decode(path.read_bytes(), type=kind)


def read_table(name: str) -> dict[str, Any]:
    """A table of this package: NAME.toml beside this module."""
    return parse_toml(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"), name)

"""Reads text files that a person hands in, and says what is wrong with one in a line."""

from __future__ import annotations

from pathlib import Path

from clusterctl.errors import UsageError

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

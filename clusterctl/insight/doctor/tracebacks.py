"""The last exception in what a rank has printed, and the line of the program that raised it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What PyTorch puts before each line of an exception, once there is a process group."""
WORK = re.compile(r'"[^"]*/jobs/\d+/work/')
"""The folder of a job on its nodes."""
_HEAD = "Traceback (most recent call last):"
_ERROR = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt)\b")
_ODD_ERROR = re.compile(r"([A-Za-z_]\w*\.)+\w+(: |$)|[A-Z]\w*[a-z]\w*(: |$)")
"""An exception whose name does not say that it is one, such as bdb.BdbQuit, queue.Empty,
struct.error or BrokenProcessPool."""
_SYNTAX = re.compile(
    r'^  File "[^"]+", line \d+\n(?: .*\n){1,4}(?:SyntaxError|IndentationError|TabError): .*$',
    re.MULTILINE,
)
"""Of a script that Python cannot read, without a head."""
_BOX = re.compile(
    r"^╭─+ Traceback \(most recent call last\) ─+╮\n(.*?)^╰─+╯$", re.MULTILINE | re.DOTALL
)
"""A traceback as the library rich draws it."""
_BOX_PLACE = re.compile(r"(.+):(\d+) in (.+)")
_BOX_SOURCE = re.compile(r"❱ *\d+ (?:│ +)*(.*)")


def find_last_error(text: str) -> tuple[str, ...]:
    """The last line of the program's own in the last traceback, as its place and its source where
    that is printed, and the exception."""
    text = _BOX.sub(lambda box: "\n".join([_HEAD, *_read_box(box[1])]), PREFIX.sub("", text))
    trace = text.rpartition(_HEAD)
    if not trace[1] and (syntax := _SYNTAX.search(text)):
        trace = ("", _HEAD, syntax[0])
    if not trace[1]:
        return ()
    lines = trace[2].splitlines()
    files = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    own = [number for number in files if not is_library(lines[number])]
    where = [
        line
        for number in (own or files)[-1:]
        for line in (WORK.sub('"', lines[number].strip()), *_find_source(lines[number + 1 :]))
    ]
    errors = [line for line in lines if _ERROR.match(line)]
    if not errors and files:  # the first line that is not of a call
        after = [line for line in lines[files[-1] + 1 :] if line[:1].strip()]
        errors = [line for line in after[:1] if _ODD_ERROR.match(line)]
    return (*where, *errors[-1:]) if errors else ()


def is_library(line: str) -> bool:
    """Whether a line of a traceback is not of the program itself."""
    return "-packages/" in line or "/lib/python3" in line or 'File "<' in line


def _find_source(after: Sequence[str]) -> tuple[str, ...]:
    line = after[0] if after else ""
    return (line,) if line.startswith("    ") and line.strip() else ()


def _read_box(body: str) -> Iterator[str]:
    """The same in the words of Python. A path that is too long goes on in the next line."""
    place = ""
    for line in body.splitlines():
        inner = line[2:-2]
        if inner[:1] not in ("", " ", "❱", "│", "╭", "╰"):
            place += inner if inner[-1] != " " else f"{inner.rstrip()} "
            continue
        if found := _BOX_PLACE.fullmatch(place.strip()):
            yield f'  File "{found[1]}", line {found[2]}, in {found[3]}'
        place = ""
        if source := _BOX_SOURCE.match(inner.rstrip()):
            yield f"    {source[1]}"

"""Command lines for nodes. Pure."""

from __future__ import annotations

import posixpath
import shlex

_DIFFER = frozenset("\\!\n")
"""Inside single quotes, fish reads backslashes, csh reads `!` and refuses newlines."""
_OCTAL = {ord(char): f"\\0{ord(char):03o}" for char in "\\!\n'\"$`%"}


def wrap_command(command: str) -> str:
    """`command` for a POSIX shell, as a line that any login shell passes on unchanged."""
    if _DIFFER.isdisjoint(command):
        return "exec /bin/sh -c " + shlex.quote(command)
    return f"""exec /bin/sh -c 'eval "$(printf %b "{command.translate(_OCTAL)}")"'"""


def quote_path(name: str) -> str:
    """A path on a node, quoted; one that begins with a dash is no option."""
    return shlex.quote(name if name.startswith("/") else posixpath.join(".", name))

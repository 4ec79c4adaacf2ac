"""How we reach nodes: one persistent connection per node, bounded fan-out, strict host keys.

Importing this package loads neither paramiko nor fabric: `ssh` does, at the first connect.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from clusterctl.core.model import NodeResult

OnStdout = Callable[[bytes], None]
"""Called with each piece of a command's stdout, in another thread. It must be quick."""


class Channel(Protocol):
    """A command that runs on a node while we talk with it over its stdin and stdout.

    Timeouts are seconds. ConnectionError when the connection is lost.
    """

    def send(self, data: bytes, timeout: float) -> None:
        """Writes all of `data` to its stdin. TimeoutError; BrokenPipeError when it has ended."""

    def receive(self, timeout: float) -> bytes:
        """Some bytes of its stdout; b"" when it has ended. TimeoutError after `timeout` seconds."""

    def fileno(self) -> int:
        """A descriptor for `select` and `poll`: it can be read where `receive` has something to
        give."""

    def close(self) -> None:
        """Drops the command: its pipes close. Needed after it has ended, too."""


class Transport(Protocol):
    """One node's connection. Every call ends within its timeout (seconds).

    `run`, `put` and `get` never raise for what the node or the network does: that is data, in the
    NodeResult. They connect first when there is no connection. NodeUnreachable is raised by
    `connect` and `open` alone, and names the node and the likely layer.
    """

    def connect(self, timeout: float) -> None:
        """Does nothing when connected already."""

    def run(
        self, command: str, *, stdin: bytes = b"", timeout: float, on_stdout: OnStdout | None = None
    ) -> NodeResult:
        """Runs `command` (POSIX sh, whatever the login shell is) and waits for it. `on_stdout` gets
        its stdout as it comes, piece by piece, beside the result.

        A command that a signal ended has the exit code 128 + signal, as in a shell (over OpenSSH,
        255, as of `ssh`). It has ended
        when it has exited and all copies of its stdout are closed: give a background process
        other outputs.
        """

    def open(self, command: str, *, timeout: float = 30.0) -> Channel:
        """Starts `command` (POSIX sh) and returns its channel."""

    def put(self, source: Path, target: str, *, timeout: float) -> NodeResult:
        """Copies a file, or a folder with all that is in it, to the path `target` on the node.

        Missing parent folders are made. A file appears at once and whole; a folder is merged into
        one that is there. What failed is said in `error`.
        """

    def get(
        self, source: str, target: Path, *, timeout: float, begun: Path | None = None
    ) -> NodeResult:
        """Copies a file or a folder of the node to the path `target` here.

        As `put`; in a folder, links that lead out of it and special files are left out and named
        in `stderr`. `begun`: of a folder whose copy breaks off, the files stay that came whole,
        and the beginning of the next one in the folder `begun`. Of a file, its beginning: the
        rest is added to it. That fails on the node, with an exit code, if the file there no longer
        begins so, or is written to meanwhile; `begun` is of no use then.
        """

    def close(self) -> None:
        """Ends the connection and what runs over it. The next call connects anew."""


# -------------------------------------------------------------------------------------------------
# Command lines for nodes. Pure.


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

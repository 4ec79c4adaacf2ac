"""Copying from a node: a file through `head`, a folder through `tar`."""

from __future__ import annotations

import os
import secrets
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from clusterctl.model import NodeResult
from clusterctl.transport import shell, unpack
from clusterctl.transport.deadline import Deadline
from clusterctl.transport.diagnosis import Failure
from clusterctl.transport.put import what_it_said

if TYPE_CHECKING:
    from clusterctl.transport.session import Session
    from clusterctl.transport.ssh import SshTransport

# First a line that says what comes, after whatever the login shell's start files may print.
# A file that grows is cut at the size that it had.
_COMMAND = """\
source={source}
if [ -d "$source" ]; then
  cd "$source" || exit 66
  echo {mark} folder
  exec tar -c -f - .
elif [ -f "$source" ]; then
  mode=$(ls -ldL "$source") && size=$(wc -c < "$source") || exit 66
  echo {mark} file "${{mode%% *}}" "$((size))"
  exec head -c "$((size))" < "$source"
elif [ -e "$source" ]; then
  echo 'neither a file nor a folder' >&2; exit 66
else
  echo 'no such file or folder' >&2; exit 66
fi
"""

_CHANGED = ("file changed as we read it", "File removed before we read it")
"""What GNU tar complains about, with exit code 1, when a job still writes."""


def get(transport: SshTransport, source: str, target: Path, deadline: Deadline) -> NodeResult:
    """Raises FAILURES."""
    mark = "clusterctl-" + secrets.token_hex(8)
    command = _COMMAND.format(source=shell.path(source), mark=mark)
    with transport.session(command, deadline, collect=False) as session:
        stream = _Stream(session, deadline)
        kind, *rest = stream.after(mark).split() or [""]
        try:
            if kind == "folder":
                return _get_folder(transport, stream, target)
            if kind == "file":
                return _get_file(transport, stream, target, mode_of(rest[0]), int(rest[1]))
            code = session.exit_code(deadline)
            raise Failure(what_it_said(session.errors(), code))
        except OSError as error:
            if stream.failed:
                raise
            name = error.filename or target
            raise Failure(f"{name} cannot be written: {error.strerror or error}") from error


def _get_file(
    transport: SshTransport, stream: _Stream, target: Path, mode: int, size: int
) -> NodeResult:
    if target.is_dir():
        raise Failure(f"{target} is a folder here")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".clusterctl-")
    part = Path(name)
    try:
        with open(handle, "wb") as file:
            written = 0
            while data := stream.some():
                written += len(data)
                file.write(data)
            os.fchmod(handle, mode)
        result = stream.result(transport)
        if written != size and not result.error:
            raise Failure(f"the copy failed: {written} of {size} bytes arrived")
        if not result.error:
            part.replace(target)
        return result
    finally:
        part.unlink(missing_ok=True)


def _get_folder(transport: SshTransport, stream: _Stream, target: Path) -> NodeResult:
    if target.exists() and not target.is_dir():
        raise Failure(f"{target} is a file here")
    # On the file system of the target, which may be a mount point.
    near = target if target.is_dir() else target.parent
    near.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=near, prefix=".clusterctl-"))
    try:
        with unpack.reader_of(cast(BinaryIO, stream)) as archive:
            left_out = unpack.unpack(archive, part)
        while stream.some():
            pass  # the padding
        result = stream.result(transport, left_out)
        if result.error:
            return result
        if near == target:
            unpack.move_into(part, target)
        else:
            part.rename(target)
        return result
    except tarfile.TarError as error:
        result = stream.result(transport)
        if result.error:
            return result
        raise Failure(f"the copy failed: the archive is damaged: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


class _Stream:
    """The stdout of a session, as a file to read."""

    def __init__(self, session: Session, deadline: Deadline) -> None:
        self._session = session
        self._deadline = deadline
        self._ahead = memoryview(b"")
        self.failed = False

    def some(self) -> memoryview:
        """What has come, at least a byte; nothing at the end."""
        data, self._ahead = self._ahead, memoryview(b"")
        if data:
            return data
        try:
            return memoryview(self._session.receive(self._deadline))
        except OSError:
            self.failed = True
            raise

    def read(self, size: int) -> bytes:
        parts: list[memoryview] = []
        while size and (data := self.some()):
            parts.append(data[:size])
            self._ahead = data[size:]
            size -= len(parts[-1])
        return b"".join(parts)

    def after(self, mark: str) -> str:
        """The rest of the first line that begins with `mark`; nothing if none does."""
        lines = b""
        start = mark.encode()
        while data := self.some():
            lines += data
            _, found, rest = lines.partition(start)
            line, ended, stream = rest.partition(b"\n")
            if found and ended:
                self._ahead = memoryview(stream)
                return line.decode()
        return ""

    def result(self, transport: SshTransport, left_out: list[str] | None = None) -> NodeResult:
        """Waits for the end of the command."""
        try:
            code = self._session.exit_code(self._deadline)
        except OSError:
            self.failed = True
            raise
        stderr = self._session.errors()
        complaints = stderr.decode(errors="replace").splitlines()
        if code == 1 and complaints and all(line.endswith(_CHANGED) for line in complaints):
            code = 0
        notes = "".join(f"left out {line}\n" for line in left_out or ())
        return NodeResult(
            node=transport.node.name,
            exit_code=code,
            stderr=stderr + notes.encode(errors="surrogateescape"),
            error=what_it_said(stderr, code) if code else "",
        )


def mode_of(text: str) -> int:
    """The lower nine bits of a mode as `ls -l` shows it: `-rw-r--r--` is 0o644."""
    bits = text[1:10]
    return sum(1 << (8 - i) for i, bit in enumerate(bits) if bit not in "-ST")

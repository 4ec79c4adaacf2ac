"""Copying to a node: a file through `cat`, a folder through `tar`. Twice as fast as SFTP, and more.

SFTP waits for an answer to every 32 KiB and to every file.
"""

from __future__ import annotations

import os
import posixpath
import secrets
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from clusterctl.model import NodeResult
from clusterctl.transport import shell
from clusterctl.transport.deadline import Deadline
from clusterctl.transport.diagnosis import Failure

if TYPE_CHECKING:
    from clusterctl.transport.session import Session
    from clusterctl.transport.ssh import SshTransport

CHUNK = 1 << 20
"""Bytes."""

# The traps remove what is unfinished when the connection is lost, too: cat ends then.
_FILE = """\
target={target}; parent={parent}; part=$parent/{part}
if [ -d "$target" ]; then echo 'there is a folder of that name' >&2; exit 73; fi
mkdir -p "$parent" || exit 73
trap 'rm -f "$part"' 0; trap 'exit 74' 1 2 13 15
(umask 077; cat > "$part") || exit 74
size=$(wc -c < "$part")
if [ "$size" -ne {size} ]; then echo "$((size)) of {size} bytes arrived" >&2; exit 74; fi
chmod {mode:o} "$part" && mv -f "$part" "$target"
"""

# The mark is the last member of the archive: when it is there, all is there.
_FOLDER = """\
target={target}
if [ -e "$target" ] && [ ! -d "$target" ]; then
  echo 'there is a file of that name' >&2; exit 73
fi
if [ -d "$target" ]; then new=; else new=1; mkdir -p "$target" || exit 73; fi
tar -x -o -p -f - -C "$target" || exit 74
rm "$target"/{mark} || exit 74
if [ "$new" ]; then chmod {mode:o} "$target"; fi
"""


def put(transport: SshTransport, source: Path, target: str, deadline: Deadline) -> NodeResult:
    """Raises FAILURES."""
    try:
        mode = source.stat().st_mode & 0o777
        if source.is_dir():
            return _put_folder(transport, source, target, mode, deadline)
        if not source.is_file():
            raise Failure(f"{source} is neither a file nor a folder")
        with source.open("rb") as file:
            return _put_file(transport, file, target, mode, deadline)
    except OSError as error:
        if error.filename is None:
            raise
        raise Failure(f"{error.filename} cannot be read: {error.strerror}") from error


def _put_file(
    transport: SshTransport, file: BinaryIO, target: str, mode: int, deadline: Deadline
) -> NodeResult:
    size = os.fstat(file.fileno()).st_size
    command = _FILE.format(
        target=shell.path(target),
        parent=shell.path(posixpath.dirname(target) or "."),
        part=".clusterctl-" + secrets.token_hex(8),
        size=size,
        mode=mode,
    )
    with transport.session(command, deadline, collect=True) as session:
        try:
            rest = size
            while rest:
                data = file.read(min(CHUNK, rest))
                if not data:
                    raise Failure(f"{file.name} became shorter while it was read")
                session.send(data, deadline)
                rest -= len(data)
        except BrokenPipeError:
            pass  # the node gave up: it says why
        return _finish(transport, session, deadline)


def _put_folder(
    transport: SshTransport, source: Path, target: str, mode: int, deadline: Deadline
) -> NodeResult:
    mark = ".clusterctl-" + secrets.token_hex(8)
    command = _FOLDER.format(target=shell.path(target), mark=mark, mode=mode)
    with transport.session(command, deadline, collect=True) as session:
        sink = _Sink(session, deadline)
        try:
            with tarfile.open(
                fileobj=cast(BinaryIO, sink),
                mode="w|",
                bufsize=CHUNK,
                format=tarfile.GNU_FORMAT,  # every tar reads it, whatever bytes are in the names
                encoding="utf-8",
                errors="surrogateescape",
            ) as archive:
                for entry in sorted(os.listdir(source)):
                    archive.add(source / entry, "./" + entry, filter=_plain)
                archive.addfile(tarfile.TarInfo(mark))
        except BrokenPipeError:
            pass  # the node gave up: it says why
        except OSError as error:
            if sink.failed or error.filename is not None:
                raise
            raise Failure(f"{source} changed while it was read: {error}") from error
        return _finish(transport, session, deadline)


class _Sink:
    def __init__(self, session: Session, deadline: Deadline) -> None:
        self._session = session
        self._deadline = deadline
        self.failed = False

    def write(self, data: bytes) -> int:
        try:
            self._session.send(data, self._deadline)
        except OSError:
            self.failed = True
            raise
        return len(data)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files, folders and links, owned by whoever unpacks them."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _finish(transport: SshTransport, session: Session, deadline: Deadline) -> NodeResult:
    session.send_eof(deadline)
    code = session.exit_code(deadline)
    out, err = session.output()
    return NodeResult(
        node=transport.node.name,
        exit_code=code,
        stdout=out,
        stderr=err,
        error=what_it_said(err, code) if code else "",
    )


def what_it_said(stderr: bytes, code: int) -> str:
    """The node's reason for an exit code other than 0."""
    lines = [
        line
        for line in stderr.decode(errors="replace").splitlines()
        if line.strip() and "Exiting with failure status" not in line
    ]
    return f"the copy failed: {lines[-1] if lines else f'exit code {code}'}"

"""Follows what a job writes on this node, over one connection: its state, and its ranks' output.

A question is a line, and is answered at once when the next one comes. The answer has a header and
bytes for each file with news; the offset is beyond the one that is known where something was left
out. Nothing runs here while there is no news.
"""

import json
import os
import re
import select
import stat
import sys
import time
from typing import IO, Dict, List, Sequence, Tuple

from . import messages, processes
from .messages import FileHeader

SHARED, SUPERVISED = "shared", "supervised"
"""Words for `follow`: other machines write to the job's folder, too; its supervisor runs here."""
OUTPUT = re.compile(r"(?:rank|agent)-[0-9]+\.(?:out|err)")
MUCH = 1 << 16
"""An answer of as many bytes is followed by the next at once."""
FASTEST, STREAMING, CALM = 0.02, 0.2, 0.5
"""Seconds between two answers with output: more the longer it goes on, until none has come for CALM
seconds. Each takes processor time from the ranks, here and where it is read."""
SLOWEST = 0.5
"""Seconds between looks where the kernel does not tell of changes."""
PER_FILE = 4e-5
"""Seconds between looks for each file, about twenty times what it takes to look at it: a job may
have thousands of files."""

_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100
_NONBLOCK, _CLOEXEC = 0o4000, 0o2000000
_ENDED = re.compile(rb"^(?:ended|dead) ", re.MULTILINE)


def list_files(job: str) -> List[Tuple[str, int]]:
    """The files that are followed, with their sizes."""
    own = os.path.exists(os.path.join(job, messages.OWN))
    if own:
        from .queues import show_late_outputs  # seldom needed

        show_late_outputs(job)
    try:
        names = sorted(filter(OUTPUT.fullmatch, os.listdir(os.path.join(job, "out"))))
    except OSError:
        names = []
    found = [(name, _measure(job, name)) for name in ["state"] + ["out/" + name for name in names]]
    if own:
        found = [(name, size + _read_cut(job, name)[2]) for name, size in found]
    return [(name, size) for name, size in found if size > 0]


def _measure(job: str, name: str) -> int:
    try:
        found = os.stat(os.path.join(job, name))
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def find_news(job: str, known: Dict[str, int]) -> List[FileHeader]:
    """What is not known yet, as far as it is kept: the middle of a file may be gone."""
    pieces = []
    for name, size in list_files(job):
        start, end = known.get(name, 0), size
        if start < end:
            gap, gap_end, _ = _read_cut(job, name)
            if start < gap:
                end = gap
            else:
                start = max(start, gap_end)
            if start < end:
                pieces.append(FileHeader(name, start, end - start, size))
    return pieces


def _read_cut(job: str, name: str) -> Sequence[int]:
    """From where to where nothing is kept of a file, and how many bytes lay before those in it."""
    words = processes.read(os.path.join(job, name + ".cut")).split()
    return [*map(int, words), 0, 0, 0][:3]


def read_piece(job: str, piece: FileHeader, most: int) -> bytes:
    """At most so many bytes of it; none where the file is gone."""
    try:
        with open(os.path.join(job, piece.name), "rb") as file:
            file.seek(piece.start - _read_cut(job, piece.name)[2])
            return file.read(min(most, piece.length))
    except OSError:
        return b""


def has_ended(job: str, known: int) -> bool:
    """Whether what is not known yet of its state says so."""
    size = _measure(job, "state")
    piece = FileHeader("state", known, size - known, size)
    return size > known and bool(_ENDED.search(read_piece(job, piece, MUCH)))


def is_abandoned(job: str) -> bool:
    """Whether its supervisor is dead, and has not noted how it ended."""
    alive = processes.is_locked(os.path.join(job, "alive"))
    return not alive and not _ENDED.search(processes.read(os.path.join(job, "state")))


def write_answer(
    job: str, pieces: Sequence[FileHeader], most: int, known: Dict[str, int], out: IO[bytes]
) -> int:
    """Files with news share the `most` bytes that it may have at about. Notes in `known` what was
    sent, and returns how many bytes that were."""
    share, sent = most // max(1, len(pieces)) + 1, 0
    for piece in pieces:
        data = read_piece(job, piece, share)
        if data:
            out.write(messages.pack_header(piece._replace(length=len(data))))
            out.write(data)
            known[piece.name] = piece.start + len(data)
            sent += len(data)
    return sent


class Pace:
    """When output may be sent again."""

    def __init__(self) -> None:
        self.due = 0.0
        self._pause = 0.0

    def note(self, sent: int, at: float) -> None:
        """After an answer of so many bytes."""
        if at - self.due >= CALM:
            self._pause = FASTEST
        elif sent:
            self._pause = min(self._pause * 1.5, STREAMING)
        if sent:
            self.due = at if sent >= MUCH else at + self._pause


class FileChanges:
    """Waits for changes of what `list_files` looks at: by the kernel's word, where it gives any."""

    def __init__(self, job: str, shared: bool) -> None:
        """`shared`: other machines write there, too, of which this one's kernel does not tell."""
        self._descriptor = -1 if shared else _watch(job)
        self._pause = FASTEST

    def wait(self, seconds: float, also: int) -> bool:
        """Until something may have changed, or so many seconds; False: there is something to read
        from the descriptor `also`, or its other end is gone."""
        if self._descriptor < 0:
            pause, self._pause = self._pause, min(self._pause * 1.25, SLOWEST)
            return not _can_read([also], min(seconds, pause))
        ready = _can_read([self._descriptor, also], seconds)
        if self._descriptor in ready:
            os.read(self._descriptor, 1 << 16)
        return also not in ready

    def hurry(self) -> None:
        """After news: more may come soon."""
        self._pause = FASTEST


def _can_read(descriptors: List[int], seconds: float) -> List[int]:
    return select.select(descriptors, [], [], max(0.0, seconds))[0]


def _watch(job: str) -> int:
    """A descriptor that can be read after changes; -1: the kernel gives none."""
    import ctypes  # whoever asks loads this module, too, and needs none of that

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = int(libc.inotify_init1(_NONBLOCK | _CLOEXEC))
    except (AttributeError, OSError):
        return -1
    if descriptor < 0:
        return -1
    mask = ctypes.c_uint32(_MODIFY | _MOVED_TO | _CREATE)
    for path in (job, os.path.join(job, "out")):
        if libc.inotify_add_watch(descriptor, os.fsencode(path), mask) < 0:
            os.close(descriptor)  # watches are scarce, or there is no such folder yet
            return -1
    return descriptor


def await_news(
    job: str, known: Dict[str, int], pace: Pace, changes: FileChanges, source: int, until: float
) -> List[FileHeader]:
    """The news there are when they are due, or when it is time; none when there is something to
    read from `source`. That a job has ended is always due."""
    while True:
        began = time.monotonic()
        if began < min(pace.due, until):
            is_told = "state" in known  # of the job's end
            if is_told and has_ended(job, known["state"]):
                return find_news(job, known)
            if _can_read([source], min(pace.due - began, FASTEST if is_told else STREAMING)):
                return []
            continue
        pieces = find_news(job, known)
        if pieces or began >= until:
            return pieces
        if not changes.wait(until - began, source):
            return []
        left = PER_FILE * len(known) - (time.monotonic() - began)
        if left > 0 and _can_read([source], min(left, until - began)):
            return []


def follow(job: str, *words: str) -> None:
    """Answers what comes on stdin until that ends."""
    os.listdir(job)  # OSError where there is no such job: nobody has to wait for it
    changes, pace = FileChanges(job, SHARED in words), Pace()
    known: Dict[str, int] = {}
    source = open(0, "rb", 0)  # noqa: SIM115 # nothing may wait in a buffer of Python's
    out = sys.stdout.buffer
    for line in iter(lambda: messages.hear(source.readline), b""):
        asked = messages.read(messages.FollowQuestion, json.loads(line.decode()))
        known.update(asked.known)
        until = time.monotonic() + asked.seconds
        pieces = await_news(job, known, pace, changes, source.fileno(), until)
        if pieces:
            changes.hurry()
        sent = write_answer(job, pieces, asked.most, known, out)
        if SUPERVISED in words and is_abandoned(job):
            out.write(messages.ABANDONED + b"\n")
        out.write(messages.END + b"\n")
        out.flush()
        pace.note(sent, time.monotonic())

"""Files on their way into stores: what a sender and a node say to each other, and how a node passes
on what it gets.

What they say is in messages.py: ORDERS to a node, and its NEWS.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from io import BufferedReader
from typing import IO, Any, Callable, Dict, List, Sequence, Tuple, TypeVar

from .messages import MARK, NEWS, ORDERS, check_kinds, hear, pack, unpack
from .store import FileStore, Missing, TreeEntry, list_files, move, read_manifest, write_all

T = TypeVar("T")

TOLD = 0.5
"""Seconds between two words about how far a copy is."""
ATTEMPTS = 2
"""How often a file is sent that has arrived otherwise than it was."""
SMALL = 1 << 15
"""Bytes up to which what is passed on is put together first; the kernel moves larger parts."""
SET_PIPE_SIZE, PIPE_SIZE = 1031, 1 << 20
"""fcntl(2): fewer changes between us and the program that reads."""


def unpack_missing(said: Sequence[Tuple[int, int]], entries: Sequence[TreeEntry]) -> List[Missing]:
    files = list(list_files(entries).items())
    return [Missing(*files[index], had) for index, had in said]


def pack_order(*words: object) -> bytes:
    return pack(*check_kinds(words, ORDERS))


def read_news(line: bytes) -> Sequence[Any]:
    """() for what is none of ours. Raises ValueError."""
    words = unpack(line)
    return words and check_kinds(words, NEWS)


class StoreServer:
    """Takes files into a store, as long as `stdin` lasts."""

    def __init__(self, store: FileStore, stdin: BufferedReader, stdout: IO[bytes]) -> None:
        self._store, self._in, self._out = store, stdin, stdout
        self._lock = threading.Lock()
        self._feeds: Dict[str, Feed] = {}
        self._manifest = b""
        self._entries: List[TreeEntry] = []
        self._wrong: List[str] = []
        self._left = 0

    def run(self) -> None:
        try:
            with self._store.use():
                while True:
                    self._answer()
        except EOFError:
            pass
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            name = getattr(error, "filename", None)
            self._say("error", f"{name}: {why}" if name else why)
        finally:
            for feed in self._feeds.values():
                feed.stop()

    def fill(self, buffer: memoryview) -> int:
        """Some bytes of the file that is coming."""
        while not self._left:
            self._answer()
        count = self._hear(lambda: self._in.readinto(buffer[: self._left]))
        self._left -= count
        return count

    def _answer(self) -> None:
        """One message. Raises EOFError."""
        line = self._hear(self._in.readline)
        if not line:
            raise EOFError
        verb, *args = check_kinds(json.loads(line.decode()), ORDERS)
        getattr(self, "_do_" + verb)(*args)

    def _hear(self, read: Callable[[], T]) -> T:
        """While it passes files on, it is used, however long nothing is asked."""
        return read() if any(feed.runs for feed in self._feeds.values()) else hear(read)

    def _say(self, *words: object) -> None:
        with self._lock:
            self._out.write(MARK + pack(*check_kinds(words, NEWS)))
            self._out.flush()

    def _read(self, size: int) -> bytes:
        data = self._hear(lambda: self._in.read(size))
        if not data:
            raise EOFError
        return data

    def _do_manifest(self, size: int) -> None:
        self._manifest = self._read(size)
        self._entries = read_manifest(self._manifest)
        missing = self._store.find_missing(self._entries)
        index = {digest: number for number, digest in enumerate(list_files(self._entries))}
        rows = [(index[wanted.digest], wanted.had) for wanted in missing]
        self._say("missing", self._store.identify(), rows)

    def _do_file(self, *words: Any) -> None:
        wanted = Missing(*words)
        if not self._store.put(wanted, self.fill):
            self._wrong.append(wanted.digest)

    def _do_data(self, size: int) -> None:
        self._left = size

    def _do_end(self) -> None:
        self._say("end", self._wrong)
        self._wrong = []

    def _do_feed(self, name: str, command: Sequence[str]) -> None:
        try:
            feed = self._feeds[name] = Feed(self._store, self._manifest, command)
        except OSError as error:
            self._say("fed", name, str(error))
            return
        threading.Thread(target=feed.run, args=(name, self._say), daemon=True).start()

    def _do_stop(self, name: str) -> None:
        if name in self._feeds:
            self._feeds[name].stop()

    def _do_make(self, folder: str, link: bool) -> None:
        self._store.make(folder, self._entries, link)
        self._say("made")


class Feed:
    """Passes on what a manifest names from a store to the `serve` that `command` starts."""

    def __init__(self, store: FileStore, manifest: bytes, command: Sequence[str]) -> None:
        self._store, self._manifest = store, manifest
        pipe = subprocess.PIPE
        self._process: Any = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        assert self._process.stdin
        self._out = self._process.stdin.fileno()
        _enlarge(self._out)

    def run(self, name: str, say: Callable[..., None]) -> None:
        try:
            why = self._send(lambda size: say("sent", name, size))
        except (OSError, EOFError, ValueError) as error:
            why = self._find_reason() or str(error) or "the connection was lost"
        finally:
            self.stop()
        say("fed", name, why)

    def _send(self, tell: Callable[[int], None]) -> str:
        entries = read_manifest(self._manifest)
        sent, told = 0, time.monotonic()
        for _ in range(ATTEMPTS):
            write_all(self._out, pack_order("manifest", len(self._manifest)) + self._manifest)
            waiting = bytearray()
            for wanted in unpack_missing(self._await("missing")[1], entries):
                waiting += pack_order("file", *wanted)
                for source, offset, count in self._store.follow(wanted):
                    if count:
                        waiting += pack_order("data", count)
                    if 0 < count <= SMALL:
                        waiting += os.pread(source, count, offset)
                    if not 0 < count <= SMALL or len(waiting) > SMALL:
                        write_all(self._out, waiting)
                        waiting.clear()
                    if count > SMALL:
                        move(self._out, source, offset, count)
                    sent += count
                    if time.monotonic() - told > TOLD:
                        told = time.monotonic()
                        tell(sent)
            write_all(self._out, waiting + pack_order("end"))
            wrong = self._await("end")[0]
            if not wrong:
                return ""
        return f"{len(wrong)} files did not arrive as they were sent"

    def _await(self, verb: str) -> List[Any]:
        for line in iter(self._process.stdout.readline, b""):
            said = read_news(line)
            if said and said[0] == "error":
                raise ValueError(said[1])
            if said and said[0] == verb:
                return list(said[1:])
        raise EOFError

    def _find_reason(self) -> str:
        """The last line that the command has printed as an error."""
        try:
            said = self._process.communicate(timeout=1)[1]
        except (subprocess.TimeoutExpired, OSError, ValueError):
            return ""
        return str(said.decode(errors="replace").strip().rpartition("\n")[2].strip())

    @property
    def runs(self) -> bool:
        return bool(self._process.poll() is None)

    def stop(self) -> None:
        """Ends it, wherever it is."""
        if self.runs:
            self._process.kill()
        self._process.wait()


def _enlarge(pipe: int) -> None:
    with contextlib.suppress(OSError):  # no pipe, or it may have as much as it is allowed to
        fcntl.fcntl(pipe, SET_PIPE_SIZE, PIPE_SIZE)


def serve(root: str) -> None:
    with open(0, "rb") as stdin:
        _enlarge(stdin.fileno())
        StoreServer(FileStore(root), stdin, sys.stdout.buffer).run()

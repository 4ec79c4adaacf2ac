"""Copies of outputs on the launcher, for a node may be lost: whole files, as far as they are
quiet."""

import contextlib
import glob
import json
import os
import shutil
import tarfile
import time
from io import BytesIO
from typing import IO, List, Sequence, Tuple

from . import messages, outputs, snapshots
from .messages import KnownFiles, MirrorNote, MirrorWish

QUIET = 1.0
"""Seconds that a file has to stay as it is to be copied as it is."""
TRIES, PAUSE = 3, 0.1
"""Attempts to copy one that a program keeps writing to; seconds between two."""
EVERYTHING = 1 << 62
"""As the size of the largest file that is wanted."""
NOTE = ".clusterctl-mirror.json"
"""The last member of an archive: what the node has said of it."""


def chooses(wish: MirrorWish, entry: outputs.FileEntry) -> bool:
    small = bool(wish.largest) and entry.size <= wish.largest
    return small or outputs.matches(entry.path, wish.patterns)


def choose(
    entries: Sequence[outputs.FileEntry], wish: MirrorWish
) -> Tuple[List[outputs.FileEntry], List[Tuple[str, int]], List[Tuple[str, int]]]:
    """Those that are to be sent; those for which there is no room; those that are too large: each
    as (path, bytes), the largest first. The largest go without first."""
    chosen = [entry for entry in entries if chooses(wish, entry)]
    large = [(entry.path, entry.size) for entry in entries if not chooses(wish, entry)]
    news = [entry for entry in chosen if wish.known.get(entry.path) != (entry.size, entry.modified)]
    news.sort(key=lambda entry: entry.size)
    total, sent = 0, []
    for entry in news:
        total += entry.size
        if total > wish.room:
            break
        sent.append(entry)
    roomless = [(entry.path, entry.size) for entry in news[len(sent) :]]
    return sent, roomless[::-1], sorted(large, key=lambda item: -item[1])


def has_news(job: str, wish: MirrorWish) -> bool:
    """Whether `send` would have anything to tell. Raises OSError."""
    entries = outputs.list_outputs(job)
    sent, *without = choose(entries, wish)
    gone = wish.known.keys() - {entry.path for entry in entries if chooses(wish, entry)}
    return bool(sent or gone) or sum_up(*without) != wish.left


def sum_up(*without: Sequence[Tuple[str, int]]) -> Tuple[int, int]:
    """How many files these are, and their bytes."""
    sizes = [size for files in without for _, size in files]
    return len(sizes), sum(sizes)


def send(job: str, wish: MirrorWish, out: IO[bytes]) -> MirrorNote:
    """Writes an archive of the outputs that the launcher lacks, with a note at its end."""
    work, scratch = os.path.join(job, outputs.WORK), os.path.join(job, "mirroring")
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    try:
        entries = outputs.list_outputs(job)
        news, roomless, large = choose(entries, wish)
        outputs.link(work, [entry.path for entry in news], scratch)
        before = _look(scratch)
        if before:
            time.sleep(QUIET)
        quiet = _look(scratch)
        for path in before:
            if quiet.get(path) != before[path]:
                _copy_busy(os.path.join(scratch, path), wish.reserve)
        sent = _look(scratch)
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(sent):
                outputs.add(archive, scratch, path)
            after = _look(scratch)
            torn = [path for path in sent if after.get(path) != sent[path]]
            chosen = [entry for entry in entries if chooses(wish, entry)]
            now = {entry.path: (entry.size, entry.modified) for entry in chosen}
            files = {path: seen for path, seen in now.items() if wish.known.get(path) == seen}
            files.update((path, seen) for path, seen in sent.items() if path not in torn)
            left = sum_up(roomless, large)
            note = MirrorNote(files, sorted(now), torn, left, roomless, large)
            _add_note(archive, messages.pack(*note))
        if wish.largest < EVERYTHING:
            tell_left_out(job, note, wish.largest)
        return note
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _add_note(archive: tarfile.TarFile, text: bytes) -> None:
    info = tarfile.TarInfo(NOTE)
    info.size = len(text)
    archive.addfile(info, BytesIO(text))


def tell_left_out(job: str, note: MirrorNote, largest: int) -> None:
    """Says it once, where the ranks here write: nobody would miss them before the node is lost."""
    if largest:
        _say_once(
            job,
            "large-told",
            f"outputs of more than {largest // 1000000} MB are not copied off this node",
            note.large,
            "and are lost if it is: `run --keep-files` chooses what is copied",
        )
    text = "outputs are not copied off this node"
    _say_once(job, "room-told", text, note.roomless, "for there is no room on the launcher's disk")


def _say_once(
    job: str, mark: str, before: str, files: Sequence[Tuple[str, int]], after: str
) -> None:
    """`files`: (path, bytes), the largest first."""
    mark = os.path.join(job, mark)
    errors = sorted(glob.glob(os.path.join(glob.escape(job), "out", "rank-*.err")))
    if not files or not errors or os.path.exists(mark):
        return
    path, size = files[0]
    shown = os.fsencode(path.replace("\n", "?"))
    number = f"{len(files)} of them; the largest is ".encode()
    with open(errors[0], "ab") as file:
        file.write(b"clusterctl: " + before.encode() + b" (" + number + shown)
        file.write(f", {size / 1e6:.0f} MB) {after}\n".encode())
    with open(mark, "w"):
        pass


def send_output(job: str, out: IO[bytes]) -> None:
    """Writes an archive of what the ranks here have printed, with a note at its end: how long each
    file is, and what outputs there are."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        folder = os.path.join(job, "out")
        os.stat(folder)
        sizes = {}
        for entry in sorted(outputs.walk(folder)):
            outputs.add(archive, job, os.path.join("out", entry.path))
        for entry in outputs.walk(folder):
            sizes[os.path.join("out", entry.path)] = entry.size
        listed = {entry.path: (entry.size, entry.modified) for entry in outputs.list_outputs(job)}
        _add_note(archive, messages.pack(*messages.OutputNote(sizes, listed)))


def receive_output(stream: IO[bytes], target: str) -> KnownFiles:
    """On the launcher: unpacks that into a folder, and returns the outputs. Raises EOFError where
    it broke off, or something has changed meanwhile."""
    outputs.unpack(stream, target)
    place = os.path.join(target, NOTE)
    with contextlib.suppress(FileNotFoundError):
        with open(place) as file:
            note = messages.read(messages.OutputNote, json.load(file))
        os.unlink(place)
        if {entry.path: entry.size for entry in outputs.walk(target)} == note.sizes:
            return note.outputs
    raise EOFError("the connection was lost")


def _look(scratch: str) -> KnownFiles:
    return {entry.path: (entry.size, entry.modified) for entry in outputs.walk(scratch)}


def _copy_busy(path: str, reserve: int) -> None:
    """Puts a copy in the place of a link to a file that a program keeps writing to: as far as the
    file had come, if all of that stays as it is while it is copied, as in one that only grows.
    Without room or a quiet moment there is none this time."""
    part = path + ".clusterctl-part"
    try:
        for _ in range(TRIES):
            size = os.stat(path).st_size
            fits = shutil.disk_usage(os.path.dirname(path)).free - size >= reserve
            if size and fits and _copy_beginning(path, part, size):
                shutil.copystat(path, part)
                os.replace(part, path)
                return
            time.sleep(PAUSE)
        os.unlink(path)
    finally:
        if os.path.exists(part):
            os.unlink(part)


def _copy_beginning(path: str, part: str, size: int) -> bool:
    """Whether that much of the file is in `part` now, and was the same before and afterwards."""
    step = 1 << 20
    with open(path, "rb") as source, open(part, "wb") as target:
        left = size
        while left:
            data = source.read(min(step, left))
            if not data:
                return False
            target.write(data)
            left -= len(data)
    with open(path, "rb") as source, open(part, "rb") as copy:
        left = size
        while left:
            count = min(step, left)
            if source.read(count) != copy.read(count):
                return False
            left -= count
    return os.stat(path).st_size >= size


# -------------------------------------------------------------------------------------------------
# On the launcher.


def receive(stream: IO[bytes], kept: str, part: str) -> MirrorNote:
    """Unpacks what `send` has written into the folder `part`, and lets whole files take their
    places in `kept`. Raises EOFError where the archive broke off."""
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    note = None
    try:
        with outputs.open_archive(stream) as archive:
            for member in archive:
                if member.name == NOTE:
                    said = archive.extractfile(member)
                    assert said
                    note = messages.read(MirrorNote, json.loads(said.read().decode()))
                else:
                    outputs.extract(archive, member, part)
    except tarfile.TarError:
        pass
    if note is None:
        raise EOFError("the connection was lost")
    os.makedirs(kept, exist_ok=True)
    for path in note.torn:
        _remove(os.path.join(part, path))
    present = set(note.paths)
    for entry in list(outputs.walk(kept)):
        if entry.path not in present:
            _remove(os.path.join(kept, entry.path))
    for entry in outputs.walk(part):
        came, there = os.path.join(part, entry.path), os.path.join(kept, entry.path)
        # The copy may be all that is left of the work until then.
        if _is(came, snapshots.CUT) and _is(there, snapshots.WHOLE):
            continue
        os.makedirs(os.path.dirname(there), exist_ok=True)
        os.replace(came, there)
    shutil.rmtree(part, ignore_errors=True)
    _remove_empty(kept)
    return note


def _is(path: str, kind: str) -> bool:
    try:
        return not os.path.islink(path) and snapshots.judge(path) == kind
    except OSError:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _remove_empty(top: str) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        if folder != top and not os.listdir(folder):
            os.rmdir(folder)

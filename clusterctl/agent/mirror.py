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
from itertools import accumulate
from typing import IO, List, Sequence, Tuple

from . import messages, outputs, processes, snapshots, store
from .messages import KnownFiles, MirrorNote, MirrorWish

QUIET = 1.0
"""Seconds that a file has to stay as it is to be copied as it is."""
TRIES, PAUSE = 3, 0.1
"""Attempts to copy one that a program keeps writing to; seconds between two."""
EVERYTHING = 1 << 62
"""As the size of the largest file that is wanted."""
NOTE = ".clusterctl-mirror.json"
"""The last member of an archive: what the node has said of it."""


Entries = Sequence[outputs.FileEntry]


def choose(entries: Entries, wish: MirrorWish) -> Tuple[KnownFiles, Entries, Entries, Entries]:
    """All that the launcher wants; those of them that are to be sent; those for which there is no
    room; those that are not chosen. The largest go without first."""
    chosen: List[outputs.FileEntry] = []
    others: List[outputs.FileEntry] = []
    for entry in entries:
        small = bool(wish.largest) and entry.size <= wish.largest
        wanted = small or outputs.matches(entry.path, wish.patterns)
        (chosen if wanted else others).append(entry)
    now = {entry.path: (entry.size, entry.modified) for entry in chosen}
    news = [entry for entry in chosen if wish.known.get(entry.path) != now[entry.path]]
    news.sort(key=lambda entry: entry.size)
    sizes = accumulate(entry.size for entry in news)
    count = sum(size <= wish.room for size in sizes)
    return now, news[:count], news[count:], others


def has_news(job: str, wish: MirrorWish) -> bool:
    """Whether `send` would have anything to tell. Raises OSError."""
    now, sent, roomless, others = choose(outputs.list_outputs(job), wish)
    return bool(sent or wish.known.keys() - now) or sum_up([*roomless, *others]) != wish.left


def sum_up(entries: Entries) -> Tuple[int, int]:
    """How many files these are, and their bytes."""
    return len(entries), sum(entry.size for entry in entries)


def send(job: str, wish: MirrorWish, out: IO[bytes]) -> MirrorNote:
    """Writes an archive of the outputs that the launcher lacks, with a note at its end."""
    work, scratch = os.path.join(job, outputs.WORK), os.path.join(job, "mirroring")
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    try:
        now, news, roomless, others = choose(outputs.list_outputs(job), wish)
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
            files = {path: seen for path, seen in now.items() if wish.known.get(path) == seen}
            files.update((path, seen) for path, seen in sent.items() if path not in torn)
            note = MirrorNote(files, sorted(now), torn, sum_up([*roomless, *others]))
            text = messages.pack(*note)
            info = tarfile.TarInfo(NOTE)
            info.size = len(text)
            archive.addfile(info, BytesIO(text))
        # Who has chosen by name knows what is left out.
        tell_left_out(job, [*roomless, *others] if wish.largest else roomless)
        return note
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def tell_left_out(job: str, files: Entries) -> None:
    """Says it once, where the ranks here write: nobody would miss them before the node is lost."""
    mark = os.path.join(job, "left-out-told")
    errors = sorted(glob.glob(os.path.join(glob.escape(job), "out", "rank-*.err")))
    if not files or not errors or os.path.exists(mark):
        return
    largest = max(files, key=lambda entry: entry.size)
    with open(errors[0], "ab") as file:
        file.write(f"clusterctl: {len(files)} outputs are too large to be copied off".encode())
        file.write(b" this node, such as " + os.fsencode(largest.path.replace("\n", "?")))
        file.write(f" ({largest.size / 1e6:.0f} MB), and are lost if it is:".encode())
        file.write(b" `run --keep-files` chooses what is copied\n")
    processes.write(mark, "")


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
        processes.remove(part)


def _copy_beginning(path: str, part: str, size: int) -> bool:
    """Whether that much of the file is in `part` now, and was the same before and afterwards."""
    with open(path, "rb") as source, open(part, "w+b", 0) as target:
        try:
            store.move(target.fileno(), source.fileno(), 0, size)
            target.seek(0)
            copy, now = (store.sum_up_next(file, size).digest() for file in (target, source))
            return copy == now
        except EOFError:
            return False


# -------------------------------------------------------------------------------------------------
# On the launcher.


def receive(stream: IO[bytes], kept: str, part: str) -> MirrorNote:
    """Unpacks what `send` has written into the folder `part`, and lets whole files take their
    places in `kept`. Raises EOFError where the archive broke off."""
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    note = None
    with contextlib.suppress(tarfile.TarError), outputs.open_archive(stream) as archive:
        for member in archive:
            said = archive.extractfile(member) if member.name == NOTE else None
            if said:
                note = messages.read(MirrorNote, json.loads(said.read().decode()))
            else:
                outputs.extract(archive, member, part)
    if note is None:
        raise EOFError("the connection was lost")
    os.makedirs(kept, exist_ok=True)
    for path in note.torn:
        processes.remove(os.path.join(part, path))
    present = set(note.paths)
    for entry in list(outputs.walk(kept)):
        if entry.path not in present:
            processes.remove(os.path.join(kept, entry.path))
    for entry in outputs.walk(part):
        came, there = os.path.join(part, entry.path), os.path.join(kept, entry.path)
        # The copy may be all that is left of the work until then.
        if _is(came, snapshots.CUT) and _is(there, snapshots.WHOLE):
            continue
        os.makedirs(os.path.dirname(there), exist_ok=True)
        os.replace(came, there)
    shutil.rmtree(part, ignore_errors=True)
    for folder, _, _ in os.walk(kept, topdown=False):
        if folder != kept and not os.listdir(folder):
            os.rmdir(folder)
    return note


def _is(path: str, kind: str) -> bool:
    try:
        return not os.path.islink(path) and snapshots.judge(path) == kind
    except OSError:
        return False

"""What an attempt goes on from: its snapshot is chosen on the node of rank 0 and brought to the
others, and what was cut short there takes the launcher's whole copy.
"""

import contextlib
import os
import shlex
import shutil
from typing import IO, Any, Callable, Iterator, List, Sequence

from . import messages, outputs, processes, snapshots
from .messages import Fact

FOUND, NONE, REFUSED = "found", "none", "refused"


def _list_snapshots(job: str, patterns: Sequence[str]) -> List[snapshots.Snapshot]:
    work = os.path.join(job, outputs.WORK)
    return snapshots.sort_snapshots(
        (entry.path, entry.size, entry.modified)
        for entry in outputs.list_outputs(job)
        if outputs.matches(entry.path, patterns)
        and not os.path.islink(os.path.join(work, entry.path))
    )


def list_cut(job: str, patterns: Sequence[str]) -> Iterator[Fact]:
    """Those that were cut short."""
    for item in _list_snapshots(job, patterns):
        if snapshots.judge(os.path.join(job, outputs.WORK, item.path)) == snapshots.CUT:
            yield (item.path,)


def list_own(job: str, patterns: Sequence[str], first: int, count: int) -> Iterator[Fact]:
    """Those that bear the numbers of these ranks, and were not cut short."""
    for item in _list_snapshots(job, patterns):
        marked = snapshots.mark(item.path)
        place = os.path.join(job, outputs.WORK, item.path)
        if marked and 0 <= marked.rank - first < count and snapshots.judge(place) != snapshots.CUT:
            yield (item.path,)


def choose(job: str, attempt: int, said: Any) -> Iterator[Fact]:
    """FOUND, NONE, or REFUSED with the reason, for that SnapshotWish. `snapshot-N` gets the path;
    where each rank has its own, then the same with <rank>, and how many digits that has. Rank 0
    says what was passed over, and why."""
    wish = messages.read(messages.SnapshotWish, said)
    work = os.path.join(job, outputs.WORK)
    choice = snapshots.Chooser(work, _list_snapshots(job, wish.patterns), wish).choose()
    _say(job, 0, choice.passed)
    if choice.refused:
        yield REFUSED, choice.refused
    elif not choice.path:
        yield (NONE,)
    else:
        own = [choice.own.path, str(choice.own.digits)] if choice.own else []
        note = b"".join(os.fsencode(line) + b"\n" for line in [choice.path, *own])
        _note(_locate_note(job, attempt), note)
        _say(job, 0, ["continuing from " + os.path.join(work, choice.locate(0))])
        yield (FOUND,)


def _say(job: str, rank: int, lines: Sequence[str]) -> None:
    """As a rank that is about to start."""
    with open(os.path.join(job, "out", f"rank-{rank}.err"), "ab") as file:
        file.write(b"".join(b"clusterctl: " + os.fsencode(line) + b"\n" for line in lines))


def write_snapshot(path: str, pattern: str = "", digits: str = "") -> str:
    """What a note says, for rank.sh, which knows the number of its rank."""
    number = f'"$(printf %0{digits}d "$cctl_rank")"'
    parts = map(shlex.quote, (pattern or path).split("<rank>"))
    return f'cctl_snapshot="$cctl_job/{outputs.WORK}/"{number.join(parts)}\n'


def _locate_note(job: str, attempt: int) -> str:
    return os.path.join(job, f"snapshot-{attempt}")


def _note(note: str, content: bytes) -> None:
    """For the ranks of this node, too."""
    lines = map(os.fsdecode, content.splitlines())
    processes.write(note + ".sh", os.fsencode(write_snapshot(*lines)))
    processes.write(note, content)


def send(job: str, attempt: int, whole_folder: bool, out: IO[bytes]) -> None:
    """Writes an archive of the note, and of what it names, unless each rank has its own already."""
    path, *own = processes.read(_locate_note(job, attempt)).splitlines()
    chosen = os.fsdecode(path)
    paths = [] if own else [chosen]
    if whole_folder:
        inside = os.path.join(os.path.dirname(chosen), "") if "/" in chosen else ""
        found = outputs.list_outputs(job)
        paths = [entry.path for entry in found if entry.path.startswith(inside)]
    names = [os.path.basename(_locate_note(job, attempt))]
    outputs.pack(job, names + [os.path.join(outputs.WORK, path) for path in paths], out)


def receive(job: str, attempt: int, stream: IO[bytes]) -> None:
    """Unpacks that, but leaves what ranks here have written in the last attempt, and before the
    first one all that there is. What is older than the last note was brought for that attempt, or
    belongs to an earlier job."""
    part, work = os.path.join(job, "receiving"), os.path.join(job, outputs.WORK)
    note, since = _locate_note(job, attempt), _locate_note(job, attempt - 1)
    if not os.path.exists(since):
        since = os.path.join(job, outputs.STAGED)
    edge = os.stat(since).st_mtime_ns if attempt > 1 else -1
    outputs.unpack(stream, part)
    for path in _bring(os.path.join(part, outputs.WORK), work, lambda _, there: there <= edge):
        os.utime(os.path.join(work, path), None, follow_symlinks=False)
    # Its time is that of the end: the files that were brought are older.
    content = processes.read(os.path.join(part, os.path.basename(note)))
    if not content:
        raise EOFError("the connection was lost")
    _note(note, content)
    shutil.rmtree(part)


def _bring(part: str, work: str, wants: Callable[[int, int], bool]) -> List[str]:
    """Moves the files below `part` to their places, and returns their paths. `wants`: whether one
    with the first modification time takes the place of one with the second."""
    moved = []
    for entry in list(outputs.walk(part)):
        target = os.path.join(work, entry.path)
        if not os.path.lexists(target) or wants(entry.modified, os.lstat(target).st_mtime_ns):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(os.path.join(part, entry.path), target)
            moved.append(entry.path)
    return moved


def restore(job: str, rank: int, stream: IO[bytes]) -> None:
    """Unpacks copies of what was cut short here, and says so as that rank of this node."""
    part = os.path.join(job, "restoring")
    outputs.unpack(stream, part)
    for path in _bring(part, os.path.join(job, outputs.WORK), lambda *_: True):
        text = "it was cut short, so the last whole copy on the launcher takes its place"
        _say(job, rank, [f"{path}: {text}"])
    shutil.rmtree(part)


def inherit(job: str, stream: IO[bytes]) -> None:
    """Unpacks the outputs of a node that is lost, but leaves what is newer here."""
    part = os.path.join(job, "inheriting")
    outputs.unpack(stream, part)
    _bring(part, os.path.join(job, outputs.WORK), lambda came, there: there < came)
    shutil.rmtree(part)


def find_copy(mirror: str, node: str, path: str) -> str:
    """On the launcher: a folder with a whole copy of that file, of this node first; "": none."""
    names = sorted(name for name in os.listdir(mirror) if not name.startswith("."))
    for name in [node, *names]:
        with contextlib.suppress(OSError):
            if snapshots.judge(os.path.join(mirror, name, path)) == snapshots.WHOLE:
                return os.path.join(mirror, name)
    return ""

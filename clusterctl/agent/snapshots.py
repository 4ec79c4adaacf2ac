"""Which of its snapshots a job goes on from: the newest one that is whole, for every rank."""

import json
import os
import re
from collections import Counter
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from .messages import SnapshotWish
from .outputs import FileEntry, walk

WHOLE, CUT, UNKNOWN = "whole", "cut", "unknown"
USUAL = (".pt", ".pth", ".ckpt", ".safetensors")
"""What snapshots are called, before anything else that the user has named."""
TORCH_OLD = b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""The magic number of torch's old format, which does not say how long a file is."""
SMALL = 65536
"""Bytes up to which a file is written in one step."""
LIKE = 0.98
"""A file of unknown format that has less than this part of the one before it was probably cut."""


# -------------------------------------------------------------------------------------------------
# Whether a file was written to its end: a kill while a program saves leaves one that was not.


def judge(path: str) -> str:
    """WHOLE or CUT where the format shows which, else UNKNOWN. Raises OSError."""
    size = os.stat(path).st_size
    if not size:
        return CUT
    with open(path, "rb") as file:
        head = file.read(64)
        if head.startswith(b"PK"):  # zip, as torch.save and numpy.savez write it
            file.seek(max(0, size - 22))
            return WHOLE if file.read(4) == b"PK\5\6" else CUT
        if head.startswith(b"\x89HDF\r\n\x1a\n"):
            return CUT if size < _read_end_of_hdf5(head) else UNKNOWN
        if head[:1] == b"\x80" and TORCH_OLD in head[:32]:
            return UNKNOWN
        if head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5":  # a pickle ends with its last opcode
            file.seek(size - 1)
            return UNKNOWN if file.read(1) == b"." else CUT
        if path.endswith(".safetensors"):
            file.seek(0)
            return WHOLE if size == _read_end_of_safetensors(file.read, size) else CUT
    return UNKNOWN


def _read_end_of_hdf5(head: bytes) -> int:
    """Its first block says how long the file is; where, depends on the version."""
    start = {0: 40, 1: 44}.get(head[8] if len(head) > 8 else 2, 28)
    place = head[start : start + 8]
    return int.from_bytes(place, "little") if len(place) == 8 else 1 << 63


def _read_end_of_safetensors(read: Callable[[int], bytes], size: int) -> int:
    """8 bytes say how long the header is, and that where in the rest each tensor ends. 0: it is
    not all there."""
    length = int.from_bytes(read(8), "little")
    if length > size:
        return 0
    try:
        header = json.loads(read(length).decode())
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        return 8 + length + max([entry["data_offsets"][1] for entry in tensors], default=0)
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0


# -------------------------------------------------------------------------------------------------
# Names with numbers: of steps, ranks and parts.

_NUMBER = re.compile(r"\d+")
_RANK = re.compile(r"(rank[-_.=]?)(\d+)", re.IGNORECASE)


def shape(path: str) -> str:
    """The path without its numbers, but for those of ranks and of parts (`-00001-of-00002`), which
    one snapshot has several of."""

    def blank(found: "re.Match") -> str:  # type: ignore[type-arg]
        before, behind = path[: found.start()], path[found.end() :]
        kept = re.search(r"rank[-_.=]?$", before, re.IGNORECASE) or before.endswith("-of-")
        return found.group() if kept or re.match(r"-of-\d", behind) else "0"

    return _NUMBER.sub(blank, path)


class Marked(NamedTuple):
    """A path with `<rank>` instead of a rank's number, which had so many digits (1: as it is)."""

    path: str
    rank: int
    digits: int

    def name(self, rank: int) -> str:
        """The same of another rank."""
        return self.path.replace("<rank>", str(rank).zfill(self.digits))


def mark(path: str) -> Optional[Marked]:
    """None where the path bears no number of a rank, or those of two."""
    numbers = [digits for _, digits in _RANK.findall(path)]
    if not numbers or len(set(map(int, numbers))) > 1:
        return None
    digits = len(numbers[-1]) if re.match("0.", numbers[-1]) else 1
    return Marked(
        _RANK.sub(lambda found: found.group(1) + "<rank>", path), int(numbers[-1]), digits
    )


# -------------------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """A file of one node; `earlier`: bytes of the one before it, 0: there was none."""

    path: str
    size: int
    earlier: int


class SnapshotChoice(NamedTuple):
    """`path`, from the working directory; "": none. `own`: the same for each rank where each has
    its own. `passed` says what was passed over, and why. `refused`: why no rank may start."""

    path: str = ""
    own: Optional[Marked] = None
    passed: Tuple[str, ...] = ()
    refused: str = ""

    def locate(self, rank: int) -> str:
        """What that rank goes on from."""
        return self.own.name(rank) if self.own else self.path


def sort_snapshots(found: Iterable[Tuple[str, int, int]]) -> List[Snapshot]:
    """The newest first, of (path, size, modification time). Files with the usual names come before
    all others."""
    ordered = sorted(found, key=lambda item: (item[0].endswith(USUAL), item[2]))
    last: Dict[str, int] = {}
    snapshots = []
    for path, size, _ in ordered:
        if "\n" in path:
            continue
        snapshots.append(Snapshot(path, size, last.get(shape(path), 0)))
        last[shape(path)] = size
    return snapshots[::-1]


class Chooser:
    """Looks for the snapshot among those of one node, the newest first."""

    def __init__(self, work: str, snapshots: Sequence[Snapshot], wish: SnapshotWish) -> None:
        self._work, self._snapshots, self._wish = work, snapshots, wish
        self._paths = {item.path for item in snapshots}

    def choose(self) -> SnapshotChoice:
        how, divided = self._wish.how, ""
        passed: List[str] = []
        bad_folders: List[str] = []
        for item in self._snapshots:
            path, folder = item.path, os.path.dirname(item.path)
            if folder in bad_folders:
                continue
            fault = self._find_fault_of_folder(folder) if how.folders and folder else ""
            if fault:
                bad_folders.append(folder)
                passed.append(f"passed over {folder}: {fault}")
                continue
            fault, marked = self._find_fault(item), mark(path) if how.files else None
            if not fault and marked and self._is_divided(marked):
                divided = path
                missing = self._find_missing(marked)
                if missing is None:
                    return SnapshotChoice(path, marked, tuple(passed))
                fault = f"rank {missing} has none like it"
            elif not fault:
                if marked and self._wish.ranks > 1:
                    passed.append(
                        f"only one rank has a snapshot like {path}, so all of them get it"
                    )
                return SnapshotChoice(path, passed=tuple(passed))
            passed.append(f"passed over {path}: {fault}")
        if divided:
            return SnapshotChoice(passed=tuple(passed), refused=how.refusal.format(path=divided))
        nothing = how.nothing.format(whole="whole " if passed else "")
        return SnapshotChoice(passed=(*passed, nothing))

    def _is_divided(self, wanted: Marked) -> bool:
        """Whether more ranks than one have such files."""
        found = filter(None, map(mark, [*self._paths, *self._wish.others]))
        return len({item.rank for item in found if shape(item.path) == shape(wanted.path)}) > 1

    def _find_missing(self, wanted: Marked) -> Optional[int]:
        """The first rank without its own."""
        for rank in range(self._wish.ranks):
            path = wanted.name(rank)
            there = path in self._wish.others
            if rank < self._wish.here:
                there = path in self._paths and judge(os.path.join(self._work, path)) != CUT
            if not there:
                return rank
        return None

    def _find_fault(self, item: Snapshot) -> str:
        """Why it is not to be used."""
        kind = judge(os.path.join(self._work, item.path))
        if kind == UNKNOWN and item.earlier >= SMALL and item.size < item.earlier * LIKE:
            sizes = f"it has {item.size} bytes, and the one before it {item.earlier}"
            return f"{sizes}, so it was probably cut short"
        return "it was cut short" if kind == CUT else ""

    # ------------------------------------------------------------------ a folder as one snapshot

    def _find_fault_of_folder(self, folder: str) -> str:
        """One with a number in its name is a snapshot by itself, and has to have what the one
        before it has."""
        numbered = bool(_NUMBER.search(os.path.basename(folder)))
        like = self._list_like(folder) if numbered else []
        lost = self._find_lost_parts(folder, like)
        if lost:
            return lost
        good, cut = set(), []
        for entry in self._list_files(folder):
            # Some files of a folder are empty for good.
            counts = numbered and (entry.path.endswith(USUAL) or entry.size)
            if counts and judge(os.path.join(self._work, folder, entry.path)) == CUT:
                cut.append(entry.path)
            else:
                good.add(entry.path)
        shapes = set(map(shape, good))
        for name in cut:
            if shape(name) not in shapes:
                return name + " in it was cut short"
        parts = any(name.endswith(".distcp") for name in good.union(cut))
        if parts and ".metadata" not in good:
            return "it has no .metadata, which is written last"
        if "training_args.bin" in good and "trainer_state.json" not in good:
            return "it has no trainer_state.json"
        for before in like[:1]:
            for entry in self._list_files(before):
                if shape(entry.path) not in shapes:
                    return f"it has no {entry.path}, unlike {before}"
        return ""

    def _list_like(self, folder: str) -> List[str]:
        """Earlier folders of the same shape, the newest first."""
        folders = [os.path.dirname(item.path) for item in self._snapshots]
        older = dict.fromkeys(folders[folders.index(folder) :])
        return [item for item in older if item != folder and shape(item) == shape(folder)]

    def _find_lost_parts(self, folder: str, like: Sequence[str]) -> str:
        """What it has less of than there are ranks, where an earlier one has as many as ranks."""
        ranks = self._wish.ranks
        names = (os.path.split(item.path) for item in self._snapshots)
        counts = Counter((where, _NUMBER.sub("0", name)) for where, name in names)
        for (where, name), number in counts.items():
            found = counts[folder, name]
            if where in like and number == ranks and 0 < found < ranks:
                return f"it has {found} of the {ranks} files that ranks have written to {where}"
        return ""

    def _list_files(self, folder: str) -> List[FileEntry]:
        found = sorted(walk(os.path.join(self._work, folder)))
        return [entry for entry in found if "\n" not in entry.path]

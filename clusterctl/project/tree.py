"""The tree of a program: which of its files are staged (by git's own rules of what is ignored, or
the whole folder), how they are packed, and what of them will not be on the nodes as it is here."""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import stat
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePath
from shlex import join, quote
from typing import IO

from msgspec import Struct
from msgspec.structs import replace

from clusterctl import process
from clusterctl.agent.store import DIRECTORY, FILE, HARD, TreeEntry, move, sum_up_next, write_all
from clusterctl.agent.store import LINK as SYMBOLIC_LINK
from clusterctl.core import assets
from clusterctl.core.job import PYTHONS, Program
from clusterctl.core.model import Node, shorten
from clusterctl.core.text import count, format_bytes
from clusterctl.errors import FULL, LaunchError, UsageError, make_write_error
from clusterctl.project.contents import Digests
from clusterctl.state.home import FETCHED_MARK, KEPT_JOBS, Home, find_home
from clusterctl.state.store import Store

# -------------------------------------------------------------------------------------------------
# Members of tar archives, which can be joined: without owners and times, so that equal files make
# equal archives. Those of jobs are kept in the state home, as long as there is room.


END_OF_ARCHIVE = bytes(1024)
PERMISSIONS = 0o777
"""The bits of a mode that are copied: setuid, setgid and sticky are not."""
KEPT_SECONDS = 30 * 86400
"""Archives that none of them needs are kept for so long."""
KEPT_BYTES = 5_000_000_000
"""In all archives. Beyond that, those go that have not been used for the longest time."""
FRESH_SECONDS = 3600.0
"""An archive that was used so lately may belong to a job that has no record yet; one to which
nothing was added for so long is not being written any more."""
LIBRARY = ("trainlib/", "data/", "cpp/")
"""The beginnings of the bundled files that programs may import on the nodes."""
Made = tuple[str, str, int]
"""A generated file: name, text, mode."""


class PackedTree:
    """What an archive is made of, and where in it the content of each digest begins."""

    def __init__(self) -> None:
        self._heads = hashlib.sha256()
        self._end = 0
        self.entries: list[TreeEntry] = []
        self.places: dict[str, int] = {}

    @property
    def name(self) -> str:
        return self._heads.hexdigest()[:32]

    def add(self, info: tarfile.TarInfo, digest: str) -> None:
        """The next member."""
        digest, head = digest if info.isreg() else "", _make_head(info)
        self._heads.update(head + digest.encode())
        kind = _KINDS[info.type]
        self.entries.append(TreeEntry(kind, info.name, info.mode, info.size, digest, info.linkname))
        self.places.setdefault(digest, self._end + len(head))
        self._end += len(head) + info.size + -info.size % tarfile.BLOCKSIZE


def pack_texts(files: Iterable[Made]) -> bytes:
    """An archive of generated files."""
    return b"".join(pack_file(name, text.encode(), mode) for name, text, mode in files)


def pack_file(name: str, data: bytes, mode: int = 0o600) -> bytes:
    """An archive of one file."""
    return _pack(_make_info(name, mode, size=len(data)), data)


def pack_workloads(folder: str, beginnings: tuple[str, ...] = ("",)) -> bytes:
    """An archive `FOLDER/…` of the bundled programs and the package that they import, as far as
    their paths begin like that."""
    root, packed = assets.find_folder("workloads"), b""
    for name in sorted(_walk(root)):
        if name.startswith(beginnings):
            info = _describe(root / name, f"{folder}/{name}")
            packed += _pack(info, (root / name).read_bytes() if info.isreg() else b"")
    return packed


PlannedMember = tuple[tarfile.TarInfo, bytes | Path]
"""One of an archive, with its content; a file of the tree by its path."""


def _describe(path: Path, name: str) -> tarfile.TarInfo:
    """A file or link with its mode."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return _make_info(name, kind=tarfile.SYMTYPE, target=os.readlink(path))
    return _make_info(name, status.st_mode & PERMISSIONS, size=status.st_size)


def _make_info(
    name: str, mode: int = 0o644, *, size: int = 0, kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.size, info.type, info.linkname = mode, size, kind, target
    return info


def remove_old(store: Store, limit: int = KEPT_BYTES) -> None:
    """Removes archives that none of the last jobs needs and nobody has used for long, and beyond
    `limit` bytes also others: never that of a job that has not ended. Removes those whose
    clusterctl was killed while it wrote them."""
    now = time.time()
    with suppress(OSError):  # what is not removed now is removed with the next job
        for path in store.home.stages.glob(".*.new"):
            if path.lstat().st_mtime < now - FRESH_SECONDS:
                path.unlink()
        found = {path: path.lstat() for path in store.home.stages.glob("[!.]*")}
        size = sum(status.st_size for status in found.values())
        if size <= limit and all(s.st_mtime >= now - KEPT_SECONDS for s in found.values()):
            return
        if store.list_damage():
            return  # a record that cannot be read may name one of them
        jobs = sorted(store.list_jobs(), key=lambda job: job.id)
        kept = {job.stage for job in jobs[-KEPT_JOBS:]}
        in_use = {job.stage for job in jobs if not job.state.ended}
        for path in sorted(found, key=lambda path: (path.name in kept, found[path].st_mtime)):
            status = found[path]
            old = status.st_mtime < now - KEPT_SECONDS and path.name not in kept
            fresh = status.st_mtime >= now - FRESH_SECONDS
            if (old or size > limit) and not fresh and path.name not in in_use:
                path.unlink()
                size -= status.st_size


def _pack(info: tarfile.TarInfo, data: bytes) -> bytes:
    return _make_head(info) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _make_head(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


# -------------------------------------------------------------------------------------------------
# What travels to the nodes: the tree around the script, an archive named by its content.


MAX_BYTES = 200_000_000
MAX_FILES = 10_000
NAMED = 5
"""Large files, or folders with many, that are named."""
LOOK_ON = 2.0
"""Seconds for which a tree that is too large is looked through for what makes it so."""
IGNORED = {"__pycache__", ".git", ".hg", ".svn", ".venv", "node_modules", ".mypy_cache"}
"""What a folder that git does not know leaves behind."""
IGNORE = ".clusterctlignore"
USUAL_MODE = 0o755
"""That of a folder which tar makes for what is in it."""
OWN = "own"
"""The folder of a job with what describes the project itself, beside that of its tree."""
OWN_FOLDERS = (("jobs", "bin/free-port"), ("jobs", ".shared"), ("clusters", "jobs/last-id"))
"""What a cluster's folder on a node is known by, and a state home."""
STDIN = "stdin"
"""The file of a job's folder that rank 0 gets as its standard input, if it is there."""


class Stdin(Struct, frozen=True):
    """What rank 0 reads from its standard input, in each attempt from its start. `name`: where it
    comes from, for people."""

    name: str
    data: bytes

    def describe(self) -> str:
        return f"{self.name} ({format_bytes(len(self.data))})"


class Tree(Struct, frozen=True):
    """Files under `root`, as paths relative to it. `skipped` counts what git's rules left out."""

    root: Path
    files: tuple[str, ...]
    size: int
    by_git: bool
    written: tuple[tuple[str, bytes], ...] = ()
    """Further files that are not on this machine's disk: path and content."""
    own: tuple[tuple[str, bytes, int], ...] = ()
    """What describes the project itself, for a folder beside that of the tree."""
    stdin: Stdin | None = None
    absent: tuple[str, ...] = ()
    """Submodules that git has not checked out."""

    def has(self, name: str) -> bool:
        """Whether that path, relative to the root, is one of the files."""
        return os.path.normpath(name) in self.files

    def describe(self) -> str:
        how = "git's ignore rules" if self.by_git else "whole folder"
        files = count(len(self.files), "file")
        return f"{files}, {format_bytes(self.size)} from {self.root} ({how})"


def make_empty(root: Path) -> Tree:
    """Of what is not copied."""
    return Tree(root, (), 0, by_git=False)


def list_bundled_files() -> list[Path]:
    """The programs that travel with clusterctl, and what lies beside them."""
    root = assets.find_folder("workloads")
    return [path for folder in (root, root / "cpp") for path in folder.iterdir() if path.is_file()]


def find_bundled(name: str) -> Path | None:
    """The bundled workload of that file name, if there is one."""
    if "/" in name or name.startswith("."):
        return None
    return next((path for path in list_bundled_files() if path.name == name), None)


def find_tree(
    start: Path, *, script: Path | None = None, chosen: Path | None = None, limit: int = 0
) -> Tree:
    """The tree to stage: `chosen`, else the git work tree around `start`, else that folder; less
    what its .clusterctlignore names. `limit`: bytes that it may have, in any number of files.

    Raises UsageError for a tree that is too large, or is the file system or the home folder.
    """
    if chosen is not None:
        top = None
        root = chosen.resolve()
        if not root.is_dir():
            raise UsageError(f"--stage {chosen}: no such folder", hint="check the path")
        # Our own programs run also from a clone that belongs to somebody else.
        top = _find_git_top(root, refuse=root != assets.find_folder("workloads"))
    else:
        top = _find_git_top(start)
        root = top or start.resolve()
    _refuse_whole_machine(root)
    own = find_home().path.resolve()
    fetched: dict[Path, bool] = {}
    ignored = _read_ignored(root)
    absent: list[str] = []
    found = _list_git_files(root, absent) if top else _walk(root, own, ignored)
    first = script.resolve() if script is not None else None
    own_names = [str(first.relative_to(root))] if first and first.is_relative_to(root) else []
    names = (
        name
        for name in found
        # Our own records and local nodes are nobody's program.
        if not (ignored(name) or (root / name).is_relative_to(own))
        and not _is_in_ours((root / name).parent, root, fetched)
    )
    tree = _measure(root, chain(own_names, names), limit, by_git=top is not None)
    return replace(tree, absent=tuple(name for name in absent if not ignored(f"{name}/")))


def include(tree: Tree, paths: Sequence[Path], limit: int = 0) -> Tree:
    """The tree with these files and folders, although git or its .clusterctlignore leaves them out.

    Raises UsageError for one that is not there or is outside, and for a tree that is too large.
    """
    if not paths:
        return tree
    names = list(tree.files)
    fetched: dict[Path, bool] = {}
    for path in paths:
        place = path.parent.resolve() / path.name if path.is_symlink() else path.resolve()
        if not os.path.lexists(place):
            raise UsageError(f"--include {path}: no such file or folder", hint="check the path")
        if not place.is_relative_to(tree.root):
            raise make_outside_error(f"--include {path}", tree.root, "both")
        inside = (place / name for name in _walk(place)) if place.is_dir() else (place,)
        names += (
            str(file.relative_to(tree.root))
            for file in inside
            if not _is_in_ours(file.parent, tree.root, fetched)
        )
    more = _measure(tree.root, names, limit, by_git=tree.by_git)
    return replace(tree, files=more.files, size=more.size)


def make_outside_error(what: str, root: Path, needs: str) -> UsageError:
    return UsageError(
        f"{what} is not inside the staged folder {root}",
        hint=f"--stage must name a folder that holds {needs}",
    )


def _measure(root: Path, names: Iterable[str], limit: int, *, by_git: bool) -> Tree:
    """Raises UsageError for a tree that is too large, after a look at what makes it so."""
    sizes: dict[str, int] = {}
    size, too_large_since, more = 0, math.inf, ""
    for name in names:
        # Git lists what is tracked, also when it has been deleted here.
        with suppress(FileNotFoundError, NotADirectoryError):
            size -= sizes.get(name, 0)
            sizes[name] = (root / name).lstat().st_size
            size += sizes[name]
        if size > (limit or MAX_BYTES) or (len(sizes) > MAX_FILES and not limit):
            too_large_since = min(too_large_since, time.monotonic())
        if time.monotonic() - too_large_since > LOOK_ON:
            more = "more than "
            break
    if too_large_since < math.inf:
        raise _make_too_large_error(root, sizes, limit, more)
    return Tree(root, tuple(sorted(sizes)), size, by_git)


def _make_too_large_error(
    root: Path, sizes: Mapping[str, int], limit: int, more: str
) -> UsageError:
    """Names what has to go: large files, or folders with many. `more`: what stands before the
    counts, where not all was counted."""
    reasons = []
    size = sum(sizes.values())
    if size > (limit or MAX_BYTES):
        largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:NAMED]
        named = ", ".join(f"{name} ({format_bytes(size)})" for name, size in largest)
        reasons.append(f"largest: {named}")
    if len(sizes) > MAX_FILES and not limit:
        folders = Counter(name.rpartition("/")[0] or "." for name in sizes)
        most = ", ".join(f"{name} ({count})" for name, count in folders.most_common(NAMED))
        reasons.append(f"most files: {most}")
    fits = "" if more else suggest_limit(size)
    limits = f"{MAX_FILES:,} files, {format_bytes(MAX_BYTES)}" if not limit else format_bytes(limit)
    return UsageError(
        f"{root} is too large to copy: {more}{count(len(sizes), 'file')}, {format_bytes(size)}"
        f" (limits: {limits}); {'; '.join(reasons)}",
        hint=f"list data in .gitignore or {IGNORE}, choose a smaller folder with --stage, or raise"
        f" the limit with --max-stage{fits}",
    )


def suggest_limit(size: int) -> str:
    """What to give to --max-stage, with a blank before it, so that these bytes fit."""
    return f" {-(-size // 10**9)}GB"


def write_archive(tree: Tree, place: Home) -> str:
    """Writes the tree's archive into the state home, unless it is there; returns its name.

    Members are `work/…`, and the end-of-archive mark is left out: archives can be joined. Owner
    and time are left out too, so that equal trees have equal names: made from the heads of the
    members and the digests of their contents.
    """
    folder, digests = place.make(place.stages), Digests(place, tree.root)
    scratch = folder / f".{os.getpid()}.new"
    try:
        members = list(_make_members(tree))
        packed = _find_packed(tree, members, digests)
        if packed is None or not (folder / packed.name).exists():
            with scratch.open("w+b", 0) as sink:
                scratch.chmod(0o600)
                packed = _write_members(tree, members, digests, sink)
            scratch.replace(folder / packed.name)
        os.utime(folder / packed.name)
    except OSError as error:
        if error.errno in FULL:
            raise make_write_error(str(scratch), error) from error
        raise UsageError(
            f"cannot stage {tree.root}: {error.strerror or error} ({error.filename or scratch})",
            hint="repeat the command when nothing is removed from it"
            if isinstance(error, FileNotFoundError)
            else "make the file readable",
        ) from error
    except EOFError as error:
        raise UsageError(
            f"cannot stage {tree.root}: {error} became shorter while it was copied",
            hint=f"repeat the command when nothing writes to it, or list the file in {IGNORE}",
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
    digests.save()
    _known[folder / packed.name] = packed
    return packed.name


def _find_packed(
    tree: Tree, members: Sequence[PlannedMember], digests: Digests
) -> PackedTree | None:
    """What the archive will be; None if not all digests are known."""
    packed = PackedTree()
    for info, content in members:
        digest = ""
        if isinstance(content, bytes):
            digest = hashlib.sha256(content).hexdigest()
        elif not (digest := digests.find(str(content.relative_to(tree.root)), content.lstat())):
            return None
        packed.add(info, digest)
    return packed


def _write_members(
    tree: Tree, members: Iterable[PlannedMember], digests: Digests, sink: IO[bytes]
) -> PackedTree:
    """Files are read once at most: a digest that is not known is that of the copy."""
    packed, out = PackedTree(), sink.fileno()
    for info, content in members:
        write_all(out, _make_head(info))
        if isinstance(content, bytes):
            write_all(out, content)
            digest = hashlib.sha256(content).hexdigest()
        else:
            with content.open("rb", 0) as file:
                name, status = str(content.relative_to(tree.root)), os.fstat(file.fileno())
                try:
                    move(out, file.fileno(), 0, info.size)
                except EOFError:
                    raise EOFError(name) from None
                after = os.fstat(file.fileno())
            digest = digests.find(name, after) if after.st_size == info.size else ""
            if not digest:
                sink.seek(-info.size, os.SEEK_CUR)
                digest = sum_up_next(sink, info.size).hexdigest()
                if status.st_size == info.size:
                    digests.note(name, status, digest)
        write_all(out, bytes(-info.size % tarfile.BLOCKSIZE))
        packed.add(info, digest)
    return packed


_known: dict[Path, PackedTree] = {}
"""What was written by this process."""


def read_contents(archive: Path) -> PackedTree:
    """What is in the archive of a tree. Raises OSError."""
    if archive not in _known:
        packed = PackedTree()
        with tarfile.open(archive, "r:", encoding="utf-8", errors="surrogateescape") as file:
            for info in file:
                content = file.extractfile(info) if info.isreg() else None
                packed.add(info, sum_up_next(content, info.size).hexdigest() if content else "")
        _known[archive] = packed
    return _known[archive]


_KINDS = {
    tarfile.REGTYPE: FILE,
    tarfile.SYMTYPE: SYMBOLIC_LINK,
    tarfile.LNKTYPE: HARD,
    tarfile.DIRTYPE: DIRECTORY,
}


def _find_git_top(folder: Path, *, refuse: bool = True) -> Path | None:
    """The git work tree around `folder`, if there is one.

    With `refuse`, raises UsageError where there is a repository that git refuses or cannot read, or
    no git: taken for no repository, its ignored files (secrets, data) would travel.
    """
    result = process.run(["git", "-C", str(folder), "rev-parse", "--show-toplevel"], timeout=20)
    top = result.stdout.removesuffix(b"\n")
    if result.ok and os.path.isabs(top) and os.path.isdir(top):
        return Path(os.fsdecode(top))
    place = folder.resolve()
    repository = next((path for path in (place, *place.parents) if _looks_like_git(path)), None)
    if not refuse:
        return None
    if repository is None:
        _refuse_distant_repository(place)
        return None
    said = result.complaints.partition("\n")[0]
    raise UsageError(
        f"{repository} is a git repository, but git could not tell which files it ignores: "
        f"{result.error or said or 'no reason given'}",
        hint=f"make `git -C {shlex.quote(str(repository))} status` work, then try again",
    )


def _refuse_distant_repository(place: Path) -> None:
    """Its ignored files would travel, too: git's variables are those of a hook as a rule, and
    clusterctl looks for the repository itself."""
    tree = os.environ.get("GIT_WORK_TREE")
    if tree and place.is_relative_to(Path(tree).resolve()):
        raise UsageError(
            f"GIT_WORK_TREE says that {place} belongs to a repository elsewhere, whose ignore rules"
            " clusterctl does not read",
            hint="run it with `env -u GIT_WORK_TREE`, and name what not to copy in"
            " .clusterctlignore",
        )


def _looks_like_git(folder: Path) -> bool:
    """Whether `folder` holds a `.git`, a folder with something in it or the file of a worktree."""
    try:
        return any((folder / ".git").iterdir())
    except NotADirectoryError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # it may not even be listed
        return True


def _list_git_files(root: Path, absent: list[str]) -> Iterator[str]:
    """What git tracks or would track below `root`; folders in the list are submodules. Those that
    are not checked out are added to `absent`."""
    argv = ["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"]
    result = process.run(argv, timeout=60)
    if not result.ok:
        raise UsageError(
            f"git could not list the files of {root}: {result.error or result.complaints}",
            hint="choose a folder with --stage",
        )
    for raw in dict.fromkeys(result.stdout.split(b"\0")):
        name = os.fsdecode(raw).rstrip("/")
        if not name:
            continue
        path = root / name
        if path.is_symlink() or not path.is_dir():
            yield name
        elif (path / ".git").exists():
            further: list[str] = []
            yield from (f"{name}/{inner}" for inner in _list_git_files(path, further))
            absent += (f"{name}/{inner}" for inner in further)
        else:
            absent.append(name)


def _read_ignored(root: Path) -> Callable[[str], bool]:
    """Whether the tree's own file says to leave that path out, in the words of .gitignore."""
    path = root / IGNORE
    if not path.is_file():
        return lambda name: False
    from pathspec import GitIgnoreSpec

    try:
        rules = GitIgnoreSpec.from_lines(path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", hint="it is written like a .gitignore") from error
    return rules.match_file


def _walk(
    root: Path, without: Path | None = None, ignored: Callable[[str], bool] = lambda name: False
) -> Iterator[str]:
    """Files and links."""
    for folder, folders, files in os.walk(root):
        inside = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if name not in IGNORED
            and inside / name != without
            and not ignored(f"{(inside / name).relative_to(root)}/")
        )
        for path in (inside / name for name in sorted([*folders, *files])):
            if path.is_symlink() or path.is_file():
                yield str(path.relative_to(root))


def _is_in_ours(folder: Path, root: Path, known: dict[Path, bool]) -> bool:
    """Whether `folder`, at or below `root`, is in one that `fetch` made, or in one of clusterctl's
    own, as `attach --workdir` may have put it there: with the files of earlier jobs."""
    if folder == root:
        return False
    if folder not in known:
        known[folder] = _is_ours(folder) or _is_in_ours(folder.parent, root, known)
    return known[folder]


def _is_ours(folder: Path) -> bool:
    found = (all((folder / name).exists() for name in names) for names in OWN_FOLDERS)
    return (folder / FETCHED_MARK).is_file() or any(found)


def may_stage(root: Path) -> bool:
    """Whether that is neither the whole file system nor the home folder."""
    person = os.environ.get("HOME")
    return root != Path("/") and not (person and root == Path(person).resolve())


def _refuse_whole_machine(root: Path) -> None:
    if not may_stage(root):
        what = "the whole file system" if root == Path("/") else "your home folder"
        raise UsageError(
            f"{root} is {what}: it is never copied",
            hint="put the script into a folder of its own, or choose one with --stage",
        )


def _make_members(tree: Tree) -> Iterator[PlannedMember]:
    yield from _make_folders(tree)
    names: dict[tuple[int, int], str] = {}
    for name in tree.files:
        status = (tree.root / name).lstat()
        first = names.setdefault((status.st_dev, status.st_ino), name)
        if first == name:
            info = _describe(tree.root / name, f"work/{name}")
            yield info, tree.root / name if info.isreg() else b""
        else:  # a further name of it
            yield _make_info(f"work/{name}", kind=tarfile.LNKTYPE, target=f"work/{first}"), b""
    made = [(f"work/{name}", data, 0o644) for name, data in tree.written]
    made += [(f"{OWN}/{name}", data, mode) for name, data, mode in tree.own]
    made += [(STDIN, tree.stdin.data, 0o600)] if tree.stdin else []
    for name, data, mode in made:
        yield _make_info(name, mode, size=len(data)), data


def _make_folders(tree: Tree) -> Iterator[PlannedMember]:
    """Those that are not open in the usual way. Their owner may do all in them: outputs go there,
    and the job's folder is removed one day."""
    above = {str(place) for name in tree.files for place in PurePath(name).parents}
    for name in sorted(above - {"."}):
        mode = (tree.root / name).stat().st_mode & PERMISSIONS | stat.S_IRWXU
        if mode != USUAL_MODE:
            yield _make_info(f"work/{name}", mode, kind=tarfile.DIRTYPE), b""


# -------------------------------------------------------------------------------------------------

POINTER = b"version https://git-lfs.github.com/spec/"
POINTER_SIZES = range(len(POINTER), 1025)
"""Bytes of a pointer of Git LFS (its specification: less than 1024)."""
ENVIRONMENT = ".env"
GIT_TIMEOUT = 10.0
INTERPRETER = "interpreter"
"""What a node says of one that it lacks."""


def check_tree(program: Program, tree: Tree, env_files: Collection[Path] = ()) -> tuple[str, ...]:
    """What to say of files that will not be on the nodes as they are here. `env_files`: those that
    are passed in another way. Raises UsageError where the program itself is not there."""
    outside: list[str] = []
    pointers: list[str] = []
    for name in tree.files:
        path = os.path.join(tree.root, name)
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(path)
                end = os.path.normpath(os.path.join(os.path.dirname(name), target))
                if end == ".." or end.startswith("../"):
                    outside.append(f"{name} → {target}")
            elif status.st_size in POINTER_SIZES and _is_pointer(path):
                pointers.append(name)
    main = os.path.normpath(os.path.join(program.folder, program.source or program.target))
    if main in pointers:
        raise UsageError(
            f"{main} is a Git LFS pointer, not the program itself", hint="git lfs pull"
        )
    notes = (
        (outside, "links lead out of the copied folder", "--stage copies a folder that holds both"),
        (pointers, "Git LFS pointers are copied without their content", "`git lfs pull` gets it"),
        (
            tree.absent,
            "submodules are not checked out",
            "`git submodule update --init` gets them",
        ),
    )
    made = [f"{what}: {_list_names(names)}; {advice}" for names, what, advice in notes if names]
    return (*made, *_describe_environment(tree, program.folder, env_files))


def _is_pointer(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(POINTER)) == POINTER


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def _describe_environment(tree: Tree, folder: str, given: Collection[Path]) -> Iterator[str]:
    """Whether files of variables are copied that are not part of a repository."""
    advice = "--env-file passes its variables as secrets"
    copied = [name for name in tree.files if PurePath(name).name == ENVIRONMENT]
    if copied and tree.by_git:
        argv = ("git", "-C", str(tree.root), "ls-files", "-z", "--", *copied)
        tracked = process.run(argv, timeout=GIT_TIMEOUT).stdout.split(b"\0")
        copied = [name for name in copied if os.fsencode(name) not in tracked]
    if copied:
        yield f"copied to the nodes: {_list_names(copied)}; {advice} instead"
    for name in dict.fromkeys((ENVIRONMENT, os.path.normpath(f"{folder}/{ENVIRONMENT}"))):
        path = tree.root / name
        if path.is_file() and not {name, path} & {*tree.files, *given}:
            yield f"not copied to the nodes: {name}; {advice}"


def find_interpreter(path: Path) -> str:
    """What the first line of a script names to run it; for `env NAME`, the name alone. "": it is no
    script, or its shell is everywhere."""
    with suppress(OSError), path.open("rb") as file:
        first = os.fsdecode(file.readline(512)).rstrip()
        words = first.removeprefix("#!").split()
        if first.startswith("#!") and words:
            if PurePath(words[0]).name == "env":
                words = [word.removeprefix("-S") for word in words[1:]]
                pairs = zip(["", *words], words, strict=False)
                words = [w for before, w in pairs if w and before not in _TAKE_A_VALUE]
                words = [w for w in words if "=" not in w and not w.startswith("-")]
            return "" if not words or words[0] in ("/bin/sh", "sh") else words[0]
    return ""


_TAKE_A_VALUE = {"-u", "--unset", "-C", "--chdir"}
"""Options of env whose value is the next word."""


def render_question(program: Program, folder: str, node: Node) -> str:
    """The sh that asks a node, in the job's `folder` there, whether it lacks the program's
    interpreter."""
    name = quote(program.interpreter)
    question = (
        f"cd {quote(folder)}/work/{quote(program.folder)} &&"
        f" PATH=$PATH:{quote(node.mpi_prefix)}/bin"
        f" exec /bin/sh {quote(folder)}/env rank /bin/sh -c 'command -v -- \"$1\"' sh {name}"
    )
    return (
        f"({node.enter(question)}) </dev/null >/dev/null 2>&1;"
        f" case $? in 1 | 127) printf '{INTERPRETER}\\0' ;; esac"
    )


def read_answer(output: bytes) -> tuple[bool, str]:
    """Whether a node lacks the interpreter, and what came after that."""
    *lacks, rest = os.fsdecode(output).split("\0")
    return INTERPRETER in lacks, rest


def judge_answers(program: Program, lacking: Sequence[str], *, certain: bool) -> str:
    """What to say where these nodes lack the program's interpreter. Raises LaunchError where the
    job cannot start: with `certain`, ranks run on these nodes."""
    if not lacking:
        return ""
    is_command = program.interpreter == program.target
    where, hint = shorten(lacking), "install it on the nodes, or change the first line"
    message = (
        f"the first line of {program.target} asks for {program.interpreter}, which does not exist"
        f" on {where}"
    )
    if is_command:
        message = f"{program.target} does not exist on {where}, or cannot be run there"
        hint = "install it on the nodes, or give the path that it has there"
    if PurePath(program.interpreter).name.startswith(PYTHONS[0]):
        words = join(program.args) if is_command else program.target
        hint = f"run it with the nodes' Python: clusterctl run python {words}"
    if certain:
        raise LaunchError(message, hint=hint)
    return message

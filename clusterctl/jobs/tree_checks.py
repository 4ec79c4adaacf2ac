"""What of a program's files will not be on the nodes as it is here, said before the job starts:
links that lead elsewhere, files that git has not fetched, an interpreter that is missing."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from shlex import join, quote

from clusterctl import process
from clusterctl.errors import LaunchError, UsageError
from clusterctl.formats import count
from clusterctl.job_model import PYTHONS, Program
from clusterctl.jobs.stage import NAMED, Tree
from clusterctl.model import Node
from clusterctl.node_results import shorten

POINTER = b"version https://git-lfs.github.com/spec/"
POINTER_SIZES = range(len(POINTER), 1025)
"""Bytes of a pointer of Git LFS (its specification: less than 1024)."""
ENVIRONMENT = ".env"
EDITOR_LINK = ".#"
"""The name of a link by which Emacs marks a file that is being edited begins with this."""
GIT_TIMEOUT = 10.0
LINK, INTERPRETER = "link", "interpreter"
"""What a node says of a link that leads nowhere, and of an interpreter that it lacks."""


@dataclass(frozen=True, slots=True)
class Findings:
    """`notes`: what is known here. `doubtful`: links of which only the nodes can say whether they
    lead anywhere, as absolute ones."""

    notes: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()


NOTHING = Findings()


def check(program: Program, tree: Tree, env_files: Collection[Path] = ()) -> Findings:
    """`env_files`: those that are passed in another way. Raises UsageError where the program itself
    is not there."""
    outside: list[str] = []
    pointers: list[str] = []
    others: dict[str, str] = {}
    for name in tree.files:
        path = os.path.join(tree.root, name)
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(path)
                end = os.path.normpath(os.path.join(os.path.dirname(name), target))
                if end == ".." or end.startswith("../"):
                    outside.append(f"{name} → {target}")
                elif not PurePath(name).name.startswith(EDITOR_LINK):
                    others[name] = end
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
    made += _describe_environment(tree, program.folder, env_files)
    known = _list_paths(tree) if others else set()
    return Findings(tuple(made), tuple(name for name, end in others.items() if end not in known))


def _list_paths(tree: Tree) -> set[str]:
    """Its files and their folders."""
    return {*tree.files, *(str(p) for name in tree.files for p in PurePath(name).parents)}


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
        if (
            path.is_file()
            and not {name, path} & {*tree.files, *given}
            and _may_read_environment(tree)
        ):
            yield f"not copied to the nodes: {name}; {advice}"


def _may_read_environment(tree: Tree) -> bool:
    """Whether a program of the tree seems to read a file of variables."""
    for name in tree.files:
        with suppress(OSError):
            path = tree.root / name
            may = path.suffix in _PROGRAMS and path.name[:1] != "."
            if may and _READS.search(path.read_bytes()):
                return True
    return False


_PROGRAMS = {".py", ".sh", ".toml", ".R", ".jl", ".js", ""}
_READS = re.compile(rb"dotenv|[\s'\"/]\.env\b")


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


def render_questions(
    program: Program, folder: str, node: Node, doubtful: Collection[str]
) -> list[str]:
    """The sh that asks a node, in the job's `folder` there, for what it lacks: `WORD NAME` and a
    NUL each."""
    lines = []
    if doubtful:
        # `-xtype l` would fail at links that form a loop.
        lines.append(
            "(cd ./work && find . -type l -printf '%Y%P\\0' |"
            f" LC_ALL=C sed -zn 's/^[LN]/{LINK} /p')"
        )
    if program.interpreter:
        name = quote(program.interpreter)
        question = (
            f"cd {quote(folder)}/work/{quote(program.folder)} &&"
            f" PATH=$PATH:{quote(node.mpi_prefix)}/bin"
            f" exec /bin/sh {quote(folder)}/env rank /bin/sh -c 'command -v -- \"$1\"' sh {name}"
        )
        if node.job_port != node.ssh_port:  # ranks run in the node's container
            agent = f"{quote(node.root)}/bin/clusterctl-ssh {quote(node.name)}"
            question = f"exec {agent} {quote(question)}"
        lines.append(
            f"({question}) </dev/null >/dev/null 2>&1;"
            f" case $? in 1 | 127) printf '{INTERPRETER} %s\\0' {name} ;; esac"
        )
    return lines


def read_answers(output: bytes, doubtful: Collection[str] = ()) -> tuple[list[str], str]:
    """What a node lacks, of links those that are `doubtful`; and what came after it."""
    *lacks, rest = os.fsdecode(output).split("\0")
    wanted = {f"{LINK} {name}" for name in doubtful}
    return [item for item in lacks if item in wanted or item.startswith(INTERPRETER)], rest


def judge_answers(
    program: Program, lacks: Mapping[str, Iterable[str]], *, certain: bool
) -> tuple[str, ...]:
    """What to say of what these nodes lack. Raises LaunchError where the job cannot start: with
    `certain`, ranks run on these nodes."""
    nodes: dict[str, list[str]] = {}
    for node, items in lacks.items():
        for item in items:
            nodes.setdefault(item, []).append(node)
    where = nodes.pop(f"{INTERPRETER} {program.interpreter}", [])
    notes = []
    if where:
        python = PurePath(program.interpreter).name.startswith(PYTHONS[0])
        is_command = program.interpreter == program.target
        words = join(program.args) if is_command else program.target
        message = (
            f"{program.target} does not exist on {shorten(where)}, or cannot be run there"
            if is_command
            else f"the first line of {program.target} asks for {program.interpreter}, which does"
            f" not exist on {shorten(where)}"
        )
        if certain:
            raise LaunchError(
                message,
                hint=f"run it with the nodes' Python: clusterctl run python {words}"
                if python
                else "install it on the nodes, or give the path that it has there"
                if is_command
                else "install it on the nodes, or change the first line",
            )
        notes.append(message)
    if nodes:
        names = [item.partition(" ")[2] for item in nodes]
        where = list(dict.fromkeys(name for found in nodes.values() for name in found))
        notes.append(
            f"{count(len(names), 'link')} to files that do not exist on {shorten(where)}:"
            f" {_list_names(sorted(names))}"
        )
    return tuple(notes)

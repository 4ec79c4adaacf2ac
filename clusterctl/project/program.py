"""From SCRIPT and ARGS to a Program: what it is, where it lies in the staged tree."""

from __future__ import annotations

import codecs
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl import process
from clusterctl.core.job import PYTHONS, SHELLS, Program, ProgramKind
from clusterctl.core.model import Cluster, Role
from clusterctl.errors import LaunchError, UsageError
from clusterctl.launch.compiling import LANGUAGES
from clusterctl.options.batch import BATCH_SYSTEMS
from clusterctl.project import own_project
from clusterctl.project import tree as project_tree
from clusterctl.project.words import Asked, find_handed_on, find_launcher, find_shell_text

HEAD = 64 << 10
"""Bytes of a file that may be a batch script, in which its directives have to be."""

CLOSE = 0.8
"""How alike the name of a program has to be to what was typed: `get_close_matches`."""

_COMMAND = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}")
_INTERPRETERS = {
    ".sh": "bash",
    ".R": "Rscript",
    ".r": "Rscript",
    ".jl": "julia",
    ".pl": "perl",
    ".rb": "ruby",
    ".lua": "lua",
    ".js": "node",
}
"""What starts a script that may not be executed, by the ending of its name."""
_OPERATOR = re.compile(r"[;|<>&\n]")
"""Of a shell."""
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_ENDINGS = (".py", ".sh", *LANGUAGES)
"""Of the names of files that are programs."""


class Resolved(Struct, frozen=True):
    """A program and the tree that it comes in."""

    program: Program
    tree: project_tree.Tree
    asked: Asked = field(default_factory=Asked)
    """What the words of another launcher program say, which it was written after."""
    installed: bool = False
    """No file here has its name: it has to be a command of the packages that the job gets."""
    findings: tuple[str, ...] = ()
    """What to say of files that will not be on the nodes as they are here."""
    settings: Collection[str] = ()
    """Of the job's options, by their names in JobSpec and in the batch system, those that come from
    settings: they are weaker than these words."""
    notes: tuple[str, ...] = ()
    """What was typed, and what was taken for it."""
    parts: Sequence[str] = ()
    """Extras and groups of the project that are wanted, as uv takes them."""


class Search(Struct, frozen=True, kw_only=True):
    """Where a program is looked for, and for what it is."""

    chosen: Path | None = None
    """The folder that is copied, instead of the one that its files say."""
    limit: int = 0
    """Bytes that this may have; 0: as many as usual."""
    sources: Sequence[Path] = ()
    """What is compiled with it."""
    made_there: bool = False
    """--setup may make a file that is not here."""
    cluster: Cluster | None = None
    """The one that it is for, if that is known."""
    launched: bool = False
    """It stood behind `srun -n 4`, where lines for a queue count for nothing."""

    @property
    def is_queued(self) -> bool:
        nodes = self.cluster.nodes if self.cluster else ()
        return any(node.role is Role.LOGIN for node in nodes)

    def find_tree(self, start: Path, script: Path | None = None) -> project_tree.Tree:
        return project_tree.find_tree(start, script=script, chosen=self.chosen, limit=self.limit)


ANYWHERE = Search()


def resolve_program(script: str, args: tuple[str, ...], search: Search = ANYWHERE) -> Resolved:
    """SCRIPT is a path, a module, a command of the project, or the name of a bundled workload; a
    file here wins over others. `python …` and `bash …` are understood. A batch script starts in the
    current folder, as the queue's own command starts it."""
    if search.made_there and "/" in script and not Path(script).exists():
        return resolve_command((script, *args), search)
    if args and script in (*PYTHONS, *SHELLS) and not Path(script).is_file():
        return resolve_command((script, *args), search)
    if _is_module(script):
        return resolve_module(script, args, search)
    no_program = search.sources or _installs(script, args) or _submits(script)
    if not no_program and may_be_installed(script):
        return replace(resolve_command((script, *args), search), installed=True)
    script, notes = _find_by_name(script)
    path, bundled = _find(script, args)
    if bundled and search.chosen is None:
        search = replace(search, chosen=path.parent)
    directives = "" if search.launched else _find_directives(path)
    if directives:
        _check_line_endings(path)
    kind = ProgramKind.BATCH if directives else _find_kind(path)
    if kind is ProgramKind.BINARY and search.is_queued and not search.launched:
        kind = ProgramKind.BATCH if _starts_ranks(path) else kind
    start = path.absolute().parent
    if kind is ProgramKind.BATCH:
        if search.cluster and search.is_queued and search.cluster.launcher.here:
            target = f"./{script}" if script.startswith("-") else script
            program = Program(kind=kind, target=target, args=args, directives=directives)
            return Resolved(program, project_tree.make_empty(Path.cwd()), notes=notes)
        if path.resolve().is_relative_to(Path.cwd()) and project_tree.may_stage(Path.cwd()):
            start = Path.cwd()
    tree = search.find_tree(start, path)
    location = path.resolve()
    if not location.is_relative_to(tree.root):
        raise project_tree.make_outside_error(script, tree.root, "the script")
    working, source = _choose_folder(tree, location.parent), ""
    target = os.path.relpath(location, tree.root / working)
    if kind is ProgramKind.SOURCE:
        source, target = target, f"./{Path(target).with_suffix('')}"
    elif search.sources:
        raise _make_not_compiled_error(script)
    elif kind is ProgramKind.BINARY or target.startswith("-"):
        target = f"./{target}"
    program = Program(
        kind=kind,
        target=target,
        args=args,
        bundled=bundled,
        folder=working,
        interpreter=project_tree.find_interpreter(path) if kind is ProgramKind.BINARY else "",
        source=source,
        sources=tuple(_locate_source(further, tree, working) for further in search.sources),
        directives=directives,
    )
    return Resolved(program, tree, notes=notes)


def _find_by_name(script: str) -> tuple[str, tuple[str, ...]]:
    """For the path that a bundled program has on somebody else's machine: a file here of that name,
    or the bundled program; with what is said of it."""
    name = os.path.basename(script)
    if not os.path.isabs(script) or os.path.lexists(script) or "\0" in script:
        return script, ()
    if not project_tree.find_bundled(name):
        return script, ()
    which = "the file here" if os.path.isfile(name) else "the bundled program"
    return name, (f"there is no {script} here: running {which} of that name",)


def _is_module(script: str) -> bool:
    """Whether it is `pkg.train`, as `python -m` takes it, and no file has that name."""
    if not _DOTTED.fullmatch(script) or Path(script).exists():
        return False
    return any(path.is_file() for path in _list_module_files(script))


def _list_module_files(module: str) -> list[Path]:
    """Where `python -m` looks for it, from the current folder; then in `src`, where the ranks of a
    project with a pyproject.toml look, too."""
    parts, here = module.split("."), Path.cwd()
    places = [here, here / "src"] if (here / "pyproject.toml").is_file() else [here]
    return [
        place.joinpath(*parts, *last).with_suffix(".py")
        for place in places
        for last in ((), ("__main__",))
    ]


def may_be_installed(script: str) -> bool:
    """Whether the job's packages may have a command of that name: no program here has it. There may
    be a folder of that name, of a package with a command."""
    return (
        bool(_COMMAND.fullmatch(script))
        and script not in (*PYTHONS, *SHELLS)
        and not script.endswith(_ENDINGS)
        and (os.path.isdir(script) or not os.path.lexists(script))
        and not project_tree.find_bundled(script)
    )


def _installs(script: str, args: Sequence[str]) -> bool:
    return script in ("pip", "pip3") and [*args[:1]] == ["install"]


def _submits(script: str) -> bool:
    return script in (row.emits for row in BATCH_SYSTEMS.values())


def check_quoted(word: str) -> None:
    """Raises UsageError for a line of a shell that was typed as one word."""
    words = word.split()
    if len(words) < 2 or os.path.lexists(word):
        return
    line, first = bool(_OPERATOR.search(word)), words[0]
    known = first in (*PYTHONS, *SHELLS) or "=" in first or os.path.isfile(first) or which(first)
    if line or known:
        own = f"sh -c {shlex.quote(word) if word.isprintable() else '…'}" if line else f"-- {word}"
        raise UsageError(
            f"{_cut(word)!r} is one word, and no file has that name",
            hint=f"`clusterctl run {own}`" + " runs that line on each rank" * line,
        )


def check_there(words: Sequence[str]) -> None:
    """Raises UsageError for a script that is not here, behind a launcher or variables: it would
    fail on each node."""
    word, *rest = words
    missing = "/" not in word and not os.path.lexists(word) and not project_tree.find_bundled(word)
    if missing and word.endswith(_ENDINGS):
        raise make_missing_error(word, rest)


def _cut(text: str) -> str:
    return text if len(text) < 100 else f"{text[:97]}…"


def make_missing_error(script: str, args: Sequence[str] = ()) -> UsageError:
    """No file here, no program of ours and no command that is known has that name."""
    if os.path.isdir(script):
        return UsageError(f"{script} is a folder", hint="name the script in it")
    return UsageError(f"no script named {_cut(script)!r}", hint=_suggest(script, args))


def _find(script: str, args: Sequence[str]) -> tuple[Path, bool]:
    """The file of that name, and whether it is a bundled one."""
    path = Path(script)
    if not script or "\0" in script:
        raise UsageError(f"{_cut(script)!r} is not a path", hint="clusterctl run SCRIPT [ARGS...]")
    found = os.path.isfile(script)  # False, too, for a name that no file can have
    bundled = None if found else project_tree.find_bundled(script)
    if not found and bundled is None:
        raise make_missing_error(script, args)
    path = bundled or path
    if not os.access(path, os.R_OK):
        raise UsageError(f"{script} cannot be read", hint=f"chmod +r {script}")
    return path, bundled is not None


def resolve_module(module: str, args: tuple[str, ...], search: Search = ANYWHERE) -> Resolved:
    """`-m MODULE`: found from the current folder, as `python -m` does, or in a project's `src`."""
    here, candidates = Path.cwd(), _list_module_files(module)
    found = next((path for path in candidates if path.is_file()), None)
    if found is None and here.joinpath(module.split(".")[0]).exists():
        raise UsageError(
            f"no module named {module!r} in {here}",
            hint=f"looked for {candidates[0].relative_to(here)} and"
            f" {candidates[1].relative_to(here)}",
        )
    tree = search.find_tree(here, found)
    folder = _choose_folder(tree, here.resolve())
    program = Program(kind=ProgramKind.MODULE, target=module, args=args, folder=folder)
    return Resolved(program, tree)


def resolve_command(words: Sequence[str], search: Search = ANYWHERE) -> Resolved:
    """`-- COMMAND ARGS`: a program of the nodes, beside the files of the current folder. A script
    of the tree, a bundled program and what Python is to run are what they are without `--`."""
    if not words:
        raise UsageError("nothing to run", hint="clusterctl run -- COMMAND [ARGS...]")
    word, rest = words[0], tuple(words[1:])
    here, chosen, made_there = Path.cwd(), search.chosen, search.made_there
    search = replace(search, made_there=False)
    if word in PYTHONS:
        rest = rest[rest[:1] == ("-u",) :]  # the output of ranks is never buffered
        if rest[:1] == ("-m",) and len(rest) > 1:
            return resolve_module(rest[1], rest[2:], search)
        if rest and not rest[0].startswith("-"):
            return resolve_program(rest[0], rest[1:], search)
    ours = Path(word).absolute().is_relative_to(chosen or here) and Path(word).is_file()
    if ours or project_tree.find_bundled(word):
        return resolve_program(word, rest, search)
    if search.sources:
        raise _make_not_compiled_error(word)
    # A relative path is one of the copied files: those of nodes are on PATH, or absolute.
    relative = "/" in word and not os.path.isabs(word) and not made_there
    if relative and not any(os.path.exists(place / word) for place in (here, chosen or here)):
        raise UsageError(
            f"no file {word} here to copy to the nodes",
            hint="build it first, or give the full path that it has on the nodes",
        )
    tree, folder = project_tree.make_empty(here), "."
    if chosen or project_tree.may_stage(here):
        tree = search.find_tree(here)
        folder = _choose_folder(tree, here)
    program = Program(
        kind=ProgramKind.COMMAND,
        target=word,
        args=rest,
        interpreter=word if os.path.isabs(word) else "",
        folder=folder,
    )
    return Resolved(program, tree)


def _make_not_compiled_error(script: str) -> UsageError:
    return UsageError(
        f"--source: {script} is not compiled",
        hint="--source names files that are compiled together with a C, C++ or Fortran SCRIPT",
    )


def check_program(program: Program, cluster: Cluster, nodes: tuple[str, ...]) -> None:
    """Raises LaunchError where a node lacks what the program needs before it can even start."""
    if not program.needs_python:
        return
    missing = [name for name in nodes if not cluster.node(name).python]
    if missing:
        raise LaunchError(
            f"no Python on {', '.join(missing)}",
            hint="on the node: apt-get install python3",
        )
    if program.bundled:
        from clusterctl.core.catalog import BUNDLED  # its tables are of no use to other programs

        for name in nodes:
            python = cluster.node(name).facts.python
            lacks = [p for p in BUNDLED if python and p not in python.packages]
            if lacks and python:
                other = ", or name another Python in the file (python=/…)"
                hint = f"on the node: {python.executable} -m pip install {' '.join(lacks)}"
                raise LaunchError(
                    f"{python.executable} on {name} lacks {', '.join(lacks)}",
                    hint=hint + (other if cluster.attached else "") + f", then `{cluster.repair}`",
                )


def _choose_folder(tree: project_tree.Tree, wanted: Path) -> str:
    """The ranks' working directory: where the user stands if that is in the tree, else `wanted`."""
    for folder in (Path.cwd().resolve(), wanted):
        if folder.is_relative_to(tree.root):
            return str(folder.relative_to(tree.root))
    return "."


def _find_kind(path: Path) -> ProgramKind:
    if path.suffix == ".py":
        return ProgramKind.PYTHON
    if path.suffix in LANGUAGES:
        return ProgramKind.SOURCE
    name = shlex.quote(str(path))
    if path.suffix == ".ipynb":
        script = shlex.quote(str(path.with_suffix(".py")))
        raise UsageError(
            f"{path} is a notebook, not a program",
            hint=f"jupyter nbconvert --to script {name}, then clusterctl run {script}; or call its"
            " functions from the notebook: cluster.run(function) (docs/python.md)",
        )
    _check_line_endings(path)
    if os.access(path, os.X_OK):
        return ProgramKind.BINARY
    interpreter = _INTERPRETERS.get(path.suffix, "")
    with path.open("rb") as file:
        alone = not interpreter or file.read(2) == b"#!"
    hints = [f"chmod +x {name}, if it should be run as it is"] * alone
    hints += [f"clusterctl run -- {interpreter} {name}"] * bool(interpreter)
    raise UsageError(
        f"{path} is not a program: not .py, not a C, C++ or Fortran source, and not executable",
        hint="; or ".join(hints),
    )


def _check_line_endings(path: Path) -> None:
    """Raises UsageError for a script whose first line, as editors of Windows save it, names an
    interpreter that no node has: nodes would say that the script itself is missing, and a queue
    would refuse it."""
    with path.open("rb") as file:
        first = file.readline(256)
    if first.removeprefix(codecs.BOM_UTF8).startswith(b"#") and (
        first.endswith(b"\r\n") or first.startswith(codecs.BOM_UTF8)
    ):
        raise UsageError(
            f"{path} has Windows line endings or a byte order mark (BOM), so nodes do not find its"
            " interpreter",
            hint=f"sed -i '1s/^\\xEF\\xBB\\xBF//; s/\\r$//' {shlex.quote(str(path))} (or dos2unix)",
        )


_DIRECTIVE = re.compile(rb"#(SBATCH|PBS|\$ -)")


def _find_directives(path: Path) -> str:
    """What those of a batch script begin with, `#SBATCH or #$` for both; "" for other files."""
    kinds: dict[str, None] = {}
    with path.open("rb") as file:
        for line in file.read(HEAD).splitlines():
            if line.strip() and not line.startswith(b"#"):
                break  # directives come before the first command
            if found := _DIRECTIVE.match(line):
                kinds[found[0].split()[0].decode()] = None
    return " or ".join(kinds)


def _starts_ranks(path: Path) -> bool:
    """Whether it is a script that starts ranks itself: one for a queue, where there is one."""
    with suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as file:
        text = file.read(HEAD)
        return text.startswith("#!") and find_launcher(text) in ("srun", "mpirun", "mpiexec")
    return False


def _locate_source(source: Path, tree: project_tree.Tree, working: str) -> str:
    """A further source file, as the compiler finds it in the ranks' working directory."""
    location = source.resolve()
    if not source.is_file():
        raise UsageError(f"--source: no such file: {source}", hint="check the path")
    if source.suffix not in LANGUAGES:
        raise UsageError(
            f"--source: {source} is not a C, C++ or Fortran source",
            hint="add a library with -e LDLIBS=-lNAME, headers with -e CFLAGS=-IFOLDER",
        )
    if not location.is_relative_to(tree.root):
        raise project_tree.make_outside_error(f"--source: {source}", tree.root, "all of them")
    return os.path.relpath(location, tree.root / working)


def list_bundled() -> list[str]:
    """The names of the programs that travel with clusterctl."""
    paths = project_tree.list_bundled_files()
    return sorted(path.name for path in paths if path.suffix in {".py", *LANGUAGES})


def _suggest(script: str, args: Sequence[str]) -> str:
    if similar := find_similar(script):
        return f"did you mean {similar}?"
    if _submits(script):
        named = next(filter(os.path.isfile, args), "[OPTIONS] SCRIPT")
        return f"leave out {script}: clusterctl run {named} hands in a batch script"
    if _installs(script, args):
        found = re.search(r"\[([\w., -]+)\]", " ".join(args))
        extras = [f"--extra {name.strip()} " for name in found[1].split(",")] if found else []
        return (
            "what the project's files ask for is installed by itself:"
            f" `clusterctl run {''.join(extras)}SCRIPT`; --requirements FILE names others"
        )
    if part := own_project.find_part(Path.cwd(), script):
        return f"{part} of {own_project.OWN_PROJECT} has it: clusterctl run {part} {script}"
    if which(script):
        return f"for a command of the nodes: clusterctl run -- {shlex.join((script, *args))}"
    if close := find_closest(Path(script), PYTHONS):
        return f"did you mean {close}?"
    return f"give a path, or a bundled program: {', '.join(list_bundled())}"


def find_similar(script: str) -> str:
    """What somebody may have meant who typed that; "" if nothing is close."""
    path = Path(script)
    if close := find_closest(path, _list_files(path.parent)):
        return str(path.with_name(close))
    if path.parent != Path() and os.path.isfile(path.name):
        return f"./{path.name}"
    if close := find_closest(path, own_project.list_commands(Path.cwd())):
        return close
    close = find_closest(path, list_bundled())
    return close and f"the bundled {close}"


def _list_files(folder: Path) -> list[str]:
    """The names of the files there that may be programs; () where it cannot be read."""
    with suppress(OSError):
        found = (entry for entry in os.scandir(folder) if entry.is_file())
        return [e.name for e in found if e.name.endswith(_ENDINGS)]
    return []


def find_closest(path: Path, names: Sequence[str]) -> str:
    """The name that a slip of the finger may have meant; "" if none is that close. Endings, which
    make all of them alike, do not count."""
    from difflib import get_close_matches

    stems = {Path(name).stem: name for name in sorted(names)}
    close = get_close_matches(path.stem, stems, n=1, cutoff=CLOSE)
    return stems[close[0]] if close else ""


# -------------------------------------------------------------------------------------------------
# What the files of a program say about how it is started, as far as a search for words tells.


LARGEST = 4 << 20
"""Bytes of a file that are searched."""

_HEEDS = re.compile(rb"CLUSTERCTL_BACKEND|trainlib")
_MPI = re.compile(
    rb"mpi4py|mpi4jax|petsc4py|slepc4py|horovod|trainlib|libmpi|MPI_|\bmpif?\.h|\buse\s+mpi|['\"]mpi['\"]"
    rb"|mpirun|mpiexec",
    re.IGNORECASE,
)


def _read_programs(resolved: Resolved) -> Iterator[bytes]:
    """The beginnings of the files that may be a part of the program, and its arguments."""
    tree = resolved.tree
    for name in tree.files:
        path = tree.root / name
        with suppress(OSError):
            if path.suffix == ".py" or path.stat().st_mode & 0o111 or path.suffix in LANGUAGES:
                with path.open("rb") as file:
                    yield file.read(LARGEST)
    yield from (data for _, data in tree.written)
    yield from (os.fsencode(word) for word in resolved.program.args)


def may_use_mpi(resolved: Resolved, backend: str) -> bool:
    """Whether the program may call MPI, which then has to come from what starts its ranks. Of what
    the nodes have, nobody knows: commands other than Python, and modules that are not staged."""
    program = resolved.program
    if program.bundled or backend == "mpi":
        return True
    if program.kind is ProgramKind.COMMAND and program.target not in PYTHONS:
        return True
    if program.kind is ProgramKind.MODULE and not _has_module(resolved):
        return True
    return any(_MPI.search(text) for text in _read_programs(resolved))


def _has_module(resolved: Resolved) -> bool:
    """Whether a module that is started may be one of the tree."""
    name = resolved.program.target.split(".")[0]
    own = (f"/{name}.py", f"/{name}/")
    return any(word in f"/{file}" for file in resolved.tree.files for word in own)


def warn_of_backend(resolved: Resolved, backend: str) -> str:
    """That nothing in the staged files asks for --backend; "" where something may."""
    if backend == "auto" or resolved.program.bundled:
        return ""
    if any(_HEEDS.search(text) for text in _read_programs(resolved)):
        return ""
    return (
        f"--backend {backend} may have no effect: no staged program uses trainlib or reads"
        " CLUSTERCTL_BACKEND"
    )


def warn_of_launcher(resolved: Resolved, ranks: int) -> str:
    """That a shell script or a Makefile of the tree, a command line, or a module that is not of the
    tree starts ranks of its own on each rank; "" if it does not."""
    program, tree = resolved.program, resolved.tree
    words = program.args if program.target in SHELLS else (program.target,)
    makes = program.target == "make"
    words = ("GNUmakefile", "makefile", "Makefile") if makes else words
    foreign = program.kind is ProgramKind.MODULE and not _has_module(resolved)
    if ranks < 2 or not (foreign or program.kind in (ProgramKind.BINARY, ProgramKind.COMMAND)):
        return ""
    what, text, launcher = f"{program.target} may start", "", ""
    if program.target not in SHELLS and not resolved.asked.is_launcher:
        launcher = find_handed_on(program.args)
    if place := find_shell_text((program.target, *words)):
        what, text = f"the command of {program.target} -c starts", words[place - 1]
    elif names := [w for w in words if tree.has(os.path.join(program.folder, w))]:
        with suppress(OSError, UnicodeDecodeError):
            path = tree.root / program.folder / names[0]
            text = path.read_bytes()[:HEAD].decode()
            text = text if text.startswith("#!") or program.target in (*SHELLS, "make") else ""
            text = (_find_recipes(text, program.args) or text) if makes else text
            what = f"{names[0]} starts"
    launcher = find_launcher(text) or launcher
    return launcher and (
        f"{what} {launcher} itself, on each of {ranks} ranks: for one job of all"
        f" ranks, run what it starts (`run {launcher} …`); `run --once` starts it once"
    )


def _find_recipes(makefile: str, targets: Sequence[str]) -> str:
    """What make runs for these targets."""
    names = "|".join(map(re.escape, targets))
    return "".join(re.findall(rf"(?m)^(?:{names})[ \t]*:.*\n((?:\t.*\n?)+)", makefile))


# -------------------------------------------------------------------------------------------------
# Files that a program did not find on its node, and that are here: why they were not copied.


_NOT_FOUND = re.compile(r"No such file or directory: '([^'\n]+)'")
"""As Python says it."""
GIT_TIMEOUT = 10.0
NO_REPOSITORY = 128
"""What git exits with there."""


def find_lines(text: str) -> list[str]:
    """Where a program's errors name such a file."""
    return [line.strip() for line in text.splitlines() if _NOT_FOUND.search(line)]


def explain_missing_file(text: str) -> str:
    """What a program's errors say of the last such file, and how it gets to the nodes; "" where it
    is not here either, or was copied. Ranks start in the folder that corresponds to this one."""
    for name in reversed(_NOT_FOUND.findall(text)):
        if not os.path.exists(name):
            continue
        folder = shlex.quote(os.path.dirname(name) or name)
        if os.path.isabs(name):
            return (
                f"{name} is on this machine, but not on the node\n  `clusterctl data push {folder}`"
                " copies data to $CLUSTERCTL_DATA on each"
            )
        asked = process.run(("git", "check-ignore", "-q", "--", name), timeout=GIT_TIMEOUT)
        if asked.exit_code == NO_REPOSITORY:
            whole = os.path.commonpath((os.getcwd(), os.path.abspath(name)))
            return (
                f"{name} was not copied to the nodes: outside a git repository, only the program's"
                f" folder is\n  `--stage {shlex.quote(os.path.relpath(whole))}` copies the folder"
                " that holds both"
            )
        if asked.ok:
            return (
                f"{name} was not copied to the nodes, because git ignores it\n"
                f"  `--include {folder}` before the program copies it, too; `clusterctl data push"
                " FOLDER` copies large data, once, to $CLUSTERCTL_DATA on each node"
            )
    return ""

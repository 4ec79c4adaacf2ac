"""What the files of a program say about how it is started, as far as a search for words tells."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from clusterctl.compiling import LANGUAGES
from clusterctl.job_model import PYTHONS, SHELLS, ProgramKind
from clusterctl.jobs.launch_words import find_handed_on, find_launcher, find_shell_text
from clusterctl.jobs.launcher_options import LAUNCHERS
from clusterctl.jobs.program import HEAD, Resolved
from clusterctl.model import Mpi

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


def warn_of_no_mpi(resolved: Resolved, mpi: str, ranks: int, installed: Mpi | None) -> str:
    """That ranks which srun starts with `--mpi` do not find each other by MPI; "" if nothing
    mentions MPI. `installed`: on the launcher."""
    if ranks < 2 or resolved.program.bundled:
        return ""
    if mpi == "none":
        why = "--mpi none starts ranks without it: to MPI, each is rank 0 of 1"
    elif mpi == "pmi2" and installed and installed.flavour == "openmpi" and installed.major >= 5:
        why = (
            f"Open MPI {installed.version}, which is installed here, knows no PMI2: to it, each"
            " rank is rank 0 of 1 (use --mpi pmix, or leave --mpi out)"
        )
    else:
        return ""
    if not any(_MPI.search(text) for text in _read_programs(resolved)):
        return ""
    return f"a staged file or an argument mentions MPI, and {why}"


def warn_of_launcher(resolved: Resolved, ranks: int) -> str:
    """That a shell script of the tree, a command, or a module that is not of the tree starts ranks
    of its own on each rank; "" if it does not."""
    program, tree = resolved.program, resolved.tree
    words = program.args if program.target in SHELLS else (program.target,)
    if ranks < 2:
        return ""
    if program.kind is ProgramKind.MODULE and not _has_module(resolved):
        what = f"python -m {program.target} may start"
        return _warn_of_launcher(what, find_handed_on(program.args), ranks)
    if program.kind not in (ProgramKind.BINARY, ProgramKind.COMMAND):
        return ""
    if program.kind is ProgramKind.COMMAND and program.target not in SHELLS:
        found = "" if resolved.asked.launcher in LAUNCHERS else find_handed_on(program.args)
        return _warn_of_launcher(f"{program.target} may start", found, ranks)
    if place := find_shell_text((program.target, *words)):
        what = f"the command of {program.target} -c starts"
        return _warn_of_launcher(what, find_launcher(words[place - 1]), ranks)
    for word in words:
        path = tree.root / program.folder / word
        if not tree.has(os.path.join(program.folder, word)):
            continue
        with suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as file:
            text = file.read(HEAD)
            if text.startswith("#!") or program.target in SHELLS:
                return _warn_of_launcher(f"{word} starts", find_launcher(text), ranks)
    return ""


def _warn_of_launcher(what: str, launcher: str, ranks: int) -> str:
    return launcher and (
        f"{what} {launcher} itself, on each of {ranks} ranks: for one job of all"
        f" ranks, run what it starts (`run {launcher} …`); `run --once` starts it once"
    )

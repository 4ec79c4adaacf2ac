"""Source files: what is compiled, with which flags, and what is said when a compiler refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path

import pytest

from clusterctl.core.job import Program, ProgramKind
from clusterctl.errors import UsageError
from clusterctl.launch.compiling import FORTRAN, C, plan_compilation, suggest_repair
from tests.conftest import Need
from tests.unit.making import program
from tests.unit.scripts import write_program
from tests.unit.tables import read_rows, rows


def source(name: str, *further: str) -> Program:
    target = f"./{Path(name).stem}"
    return program(kind=ProgramKind.SOURCE, target=target, source=name, sources=further)


def build(
    what: Program, folder: Path, env: Mapping[str, str] = {}, path: str = ""
) -> subprocess.CompletedProcess[str]:
    """The compilation as a node does it."""
    made = plan_compilation(what, env)
    assert made
    return subprocess.run(
        ["/bin/sh", "-c", made.script],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path or os.environ["PATH"]},
    )


def output(what: Program, folder: Path) -> str:
    done = subprocess.run([what.target], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@rows("files, what, env, said", "compiling.programs_that_compile")
def test_programs_that_compile(
    files: dict[str, str],
    what: list[str],
    env: dict[str, str],
    said: str,
    tmp_path: Path,
    need: Need,
) -> None:
    for tool in ("gcc", "g++", "gfortran"):
        need(tool)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    asked = source(*what)
    done = build(asked, tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert output(asked, tmp_path) == said


def test_the_wrapper_of_an_mpi_goes_first_and_a_choice_before_it(tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    for name in ("mpicc", "cc", "mine"):
        write_program(bin / name, f'echo {name} "$@" >&2')
    what = source("hello.c")
    call = "-O2 -o ./hello ./hello.c -lm\n"
    assert build(what, tmp_path, path=str(bin)).stderr == f"mpicc {call}"
    assert build(what, tmp_path, {"CC": "mine -v"}, str(bin)).stderr == f"mine -v {call}"
    (bin / "mpicc").unlink()
    assert build(what, tmp_path, path=str(bin)).stderr == f"cc {call}"
    (bin / "cc").unlink()
    done = build(what, tmp_path, path=str(bin))
    assert (done.returncode, done.stderr) == (127, "no cc on this node to compile C\n")


def two_mpis(folder: Path) -> str:
    """A PATH with the wheel's mpirun, by a link as bootstrap makes it, before Debian's MPI."""
    tools = {
        "wheel/mpirun": "",
        "usr/mpirun": "",
        "usr/mpicc": 'echo mpicc "$@" >&2',
        "usr/mpifort": 'echo mpifort "$@" >&2',
        "usr/cc": "exit 1",
        "usr/gfortran": """
            case $* in
            *mpi*) echo "Fatal Error: Cannot open module file 'mpi.mod' for reading" >&2; exit 3 ;;
            esac
            echo gfortran "$@" >&2
            """,
    }
    for name, text in tools.items():
        write_program(folder / name, text)
    (folder / "local").mkdir()
    (folder / "local/mpirun").symlink_to(folder / "wheel/mpirun")
    return f"{folder}/local:{folder}/usr:{os.environ['PATH']}"


def test_fortran_is_compiled_by_the_mpi_whose_mpirun_starts_it(tmp_path: Path) -> None:
    """What Open MPI 4's mpifort has linked dies in MPI_Init under the mpirun of Open MPI 5; what
    its mpicc has linked runs."""
    path = two_mpis(tmp_path)
    call = "-O2 -o ./mpi ./mpi.{} -lm\n"
    assert build(source("mpi.c"), tmp_path, path=path).stderr == f"mpicc {call.format('c')}"
    done = build(source("mpi.f90"), tmp_path, path=path)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == (
        f"gfortran was used without MPI: {tmp_path}/wheel/mpifort does not exist, and"
        f" {tmp_path}/wheel/mpirun cannot start programs of another MPI"
    )
    assert "-e FC=FILE" in suggest_repair(FORTRAN, done.stderr)
    # A program without MPI needs no wrapper, and who names one may have a reason.
    plain = build(source("a.f90"), tmp_path, path=path)
    assert (plain.returncode, plain.stderr) == (0, "gfortran -O2 -o ./a ./a.f90 -lm\n")
    mine = build(source("mpi.f90"), tmp_path, {"FC": f"{tmp_path}/usr/mpifort"}, path)
    assert (mine.returncode, mine.stderr) == (0, f"mpifort {call.format('f90')}")
    # With Debian's own mpirun first, and with none (srun starts the ranks), its wrapper fits.
    (tmp_path / "local/mpirun").unlink()
    for _ in range(2):
        fits = build(source("mpi.f90"), tmp_path, path=path)
        assert (fits.returncode, fits.stderr) == (0, f"mpifort {call.format('f90')}")
        path = f"{tmp_path}/usr:{bare(tmp_path, 'readlink')}"
        (tmp_path / "usr/mpirun").unlink(missing_ok=True)


def bare(folder: Path, *tools: str) -> str:
    """A folder with these system tools alone."""
    place = folder / "bare"
    place.mkdir(exist_ok=True)
    for tool in tools:
        if not (place / tool).exists():
            found = shutil.which(tool)
            assert found
            (place / tool).symlink_to(found)
    return str(place)


def test_what_is_no_source_is_not_compiled() -> None:
    assert plan_compilation(program(), {"CFLAGS": "'"}) is None


def test_flags_that_are_no_words() -> None:
    with pytest.raises(UsageError, match="CFLAGS") as caught:
        plan_compilation(source("hello.c"), {"CFLAGS": "-DNAME='a"})
    assert caught.value.hint


@pytest.mark.parametrize("case", read_rows("compilers", "refusals"), ids=itemgetter("said"))
def test_advice_when_a_compiler_refuses(case: dict[str, str]) -> None:
    """The program may well be correct: nobody is told to correct it."""
    told = suggest_repair(C, case["said"])
    assert case["word"] in told
    assert "correct the program" not in told
    assert "{" not in told

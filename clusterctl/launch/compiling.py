"""How a source file becomes the program that ranks run: one compiler call, with make's variables.

`run -e CFLAGS=… -e LDLIBS=…` sets them, under the names and in the order that GNU make has:
https://www.gnu.org/software/make/manual/html_node/Catalogue-of-Rules.html
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from msgspec import Struct

from clusterctl.core import assets
from clusterctl.core.job import Program
from clusterctl.errors import UsageError


class Language(Struct, frozen=True):
    """`wrapper` is the compiler that an MPI brings, `plain` what it calls, and what does without.
    The person's own choice is in the variable `chooses`, their flags in `flags`; `package` has the
    compiler on Debian and Ubuntu. With `own_mpi` the wrapper has to be that of the MPI whose mpirun
    starts the ranks: mpif.h and modules of Fortran fit one MPI only, the ABI of C several."""

    name: str
    wrapper: str
    plain: str
    chooses: str
    flags: str
    package: str
    own_mpi: bool = False


C = Language("C", "mpicc", "cc", "CC", "CFLAGS", "gcc libc6-dev")
CXX = Language("C++", "mpicxx", "c++", "CXX", "CXXFLAGS", "g++")
FORTRAN = Language("Fortran", "mpifort", "gfortran", "FC", "FFLAGS", "gfortran", own_mpi=True)

LANGUAGES = {
    ".c": C,
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".C"), CXX),
    **dict.fromkeys((".f", ".F", ".f90", ".F90", ".f95", ".f03", ".f08"), FORTRAN),
}
"""By the ending of a source file."""

NO_COMPILER = 127


class Compilation(Struct, frozen=True):
    """A compiler call in the ranks' working directory: `arguments` after the compiler, which is
    `chosen`, or the first that there is of the language's own."""

    language: Language
    chosen: tuple[str, ...]
    arguments: tuple[str, ...]
    sources: tuple[str, ...] = ()
    """Of C++, which may use libtorch."""

    @property
    def line(self) -> str:
        """For people: the call as it is with an MPI."""
        return shlex.join((*(self.chosen or (self.language.wrapper,)), *self.arguments))

    @property
    def script(self) -> str:
        """The call as sh, in a shell of its own. It ends with NO_COMPILER where there is none."""
        return assets.render("job/compile.sh.j2", compilation=self, no_compiler=NO_COMPILER)


def plan_compilation(program: Program, env: Mapping[str, str]) -> Compilation | None:
    """How `program` is compiled; None where it is no source file. Raises UsageError for flags that
    are no words of a shell."""
    if not program.source:
        return None
    language = LANGUAGES["." + program.source.rpartition(".")[2]]

    def split_words(name: str) -> list[str]:
        try:
            return shlex.split(env.get(name, ""))
        except ValueError as error:
            raise UsageError(
                f"-e {name}={env[name]}: {error}", hint="close the quotes, as for a shell"
            ) from error

    # A name may begin with a dash. Modules of Fortran come before what uses them.
    sources = tuple(f"./{source}" for source in (*program.sources, program.source))
    return Compilation(
        language=language,
        sources=sources if language is CXX else (),
        chosen=tuple(split_words(language.chooses)),
        arguments=(
            "-O2",
            *split_words("CPPFLAGS"),
            *split_words(language.flags),
            *split_words("LDFLAGS"),
            *("-o", program.target),
            *sources,
            *split_words("LDLIBS"),
            "-lm",
        ),
    )


class Advice(Struct, frozen=True):
    """A row of compiling.toml."""

    pattern: str
    text: str


def suggest_repair(language: Language, said: str) -> str:
    """What to do about a compilation that failed, by what the compiler said."""
    rows = assets.load_table("launch/compiling.toml", dict[str, tuple[Advice, ...]])["advice"]
    text = next(row.text for row in rows if re.search(row.pattern, said, re.IGNORECASE))
    return text.format(flags=language.flags, chooses=language.chooses, wrapper=language.wrapper)

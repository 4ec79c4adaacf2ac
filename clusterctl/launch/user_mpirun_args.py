"""`--mpirun-arg`: options that a person adds to the mpirun of a job."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from clusterctl.errors import UsageError
from clusterctl.launch.mpi_transport import Flag

WHY = "--mpirun-arg"
_OURS = {
    **dict.fromkeys(("-np", "-n", "-c", "--np"), "use --ranks, or --ranks-per-node"),
    **dict.fromkeys(
        ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile"),
        "the workers of the cluster are its hosts; --nodes uses fewer",
    ),
    **dict.fromkeys(("-wdir", "--wdir", "-wd"), "ranks start in your current folder's copy"),
    **dict.fromkeys(("--output", "--output-filename"), "`clusterctl logs` has the output"),
    "-x": "use --env NAME=VALUE",
}
"""What clusterctl decides, and what to use instead."""
_NAMED = ("--mca", "--prtemca", "--pmixmca", "-mca")
"""Options whose first value is the name of what they set."""


def parse(values: Sequence[str]) -> list[tuple[str, ...]]:
    """Each option with its values. Raises UsageError for what clusterctl decides itself."""
    found: list[tuple[str, ...]] = []
    for value in values:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise UsageError(
                f"--mpirun-arg {value!r}: {error}", hint="close the quotation marks"
            ) from None
        if not words or not words[0].startswith("-"):
            raise UsageError(
                f"--mpirun-arg {value!r} is not an option of mpirun",
                hint="for example --mpirun-arg='--map-by slot:PE=2'",
            )
        for word in words:
            if word.startswith("-"):
                found.append((word,))
            else:
                found[-1] = (*found[-1], word)
    for words_of in found:
        _check(words_of)
    return found


def _check(words: tuple[str, ...]) -> None:
    if hint := _OURS.get(words[0].partition("=")[0]):
        raise UsageError(f"--mpirun-arg: clusterctl sets {words[0]} itself", hint=hint)
    orders = [part for word in words[1:] for part in word.lower().split(":")]
    if words[0] in ("--map-by", "--rank-by") and {"node", "span", "seq"} & set(orders):
        raise UsageError(
            f"--mpirun-arg: {' '.join(words)} distributes ranks over the nodes",
            hint="ranks fill one node after the other; --ranks-per-node sets how many each gets",
        )


def merge(flags: Sequence[Flag], values: Sequence[str]) -> list[Flag]:
    """clusterctl's flags, less those that these options set, and these."""
    own = parse(values)
    set_here = {_name_target(words) for words in own}
    kept = [flag for flag in flags if _name_target(flag[0]) not in set_here]
    return [*kept, *((words, WHY) for words in own)]


def _name_target(words: Sequence[str]) -> tuple[str, ...]:
    """What a flag sets: its name, and that of the parameter, where it has one."""
    name = "--mca" if words[0] == "-mca" else words[0]
    return (name, *words[1:2]) if name in _NAMED else (name,)

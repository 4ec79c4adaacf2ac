"""What each batch system adds to the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct, field

from clusterctl.errors import UsageError
from clusterctl.options import kinds
from clusterctl.options.kinds import Limit, Option, flag, text, texts

Declare = Callable[..., Option[Any]]
"""A kind of option: makes one of its `flags` and its `group`."""


class BatchOptions(Struct, frozen=True, kw_only=True):
    """`--NAME` of `attach` is its name in BATCH_SYSTEMS."""

    title: str
    """Its name for people."""
    emits: str
    """The format of its scripts, as `--emit` names it."""
    passed: Mapping[str, Declare]
    """By its spelling, the kind of each option of `run` that it takes as it is, beside those that
    all batch systems have. Where several have one, it is of the same kind."""
    sizes: tuple[str, ...] = ()
    """Those of its options that say how many ranks there are."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Options with a value that its users know and `run` does not have, and what to write."""
    misread: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Short options of `run` that mean something else there: the pattern of a value that shows that
    it was meant, and what to write; "": any option of the site's. What no other system has."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Those without a value in `run` that have any name for one there, and what to write."""
    confused: Mapping[str, str] = field(default_factory=dict)
    """Options without a value both here and there, and what to write for either."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Options that `run` has no name for, and how many words follow each."""
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of these, each sets what the options in its row mean that follow it, on the same line."""
    attaches: bool = False
    """Whether a value may stand in the word of a short option: `-N2`."""
    slots: str = ""
    """How to ask for slots, where those are allocated, not nodes."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """By option of `passed`: where else it has no effect."""


def _read_slots(words: list[str], option: str) -> str:
    """`mpi 8`, or from the least to the most that help: `2-8`, `2-`, `-8`, or several: `2,4-8`."""
    for item in words[1].split(","):
        ends = [end for end in item.split("-", 1) if end]
        numbers = ends and all(end.isdecimal() and int(end) for end in ends)
        if numbers and int(ends[0]) <= int(ends[-1]):
            continue
        raise UsageError(
            f"{option} {words[1]!r}: expected a number of slots, or the least and the most of them",
            hint=f"for example {words[0]} 8 or {words[0]} 2-8",
        )
    return f"{words[0]} {words[1]}"


def _take(names: str, words: int) -> dict[str, int]:
    return dict.fromkeys(names.split(), words)


_any_option = partial(texts, metavar="ARG")
"""For what has no name here, with its value: `--sbatch-arg --licenses=x`."""

BATCH_SYSTEMS = {
    "slurm": BatchOptions(
        title="Slurm",
        emits="sbatch",
        passed={  # in the order of the header of a script
            **dict.fromkeys(("--constraint", "--exclude", "--gpu-bind", "--gpus-per-task"), text),
            **dict.fromkeys(("--gres", "--mem-per-gpu", "--nodelist", "--qos"), text),
            **{"--reservation": text, "--exclusive": flag, "--mpi": text, "--cpus-per-task": text},
            **dict.fromkeys(("--gpus", "--gpus-per-node", "--mem", "--mem-per-cpu"), text),
            **dict.fromkeys(("--partition", "--signal"), text),
            "--sbatch-arg": _any_option,
        },
        limits={"--mpi": kinds.SRUN},
        short={
            **{"-A": "--account", "-C": "--constraint", "-G": "--gpus", "-J": "--job-name"},
            **{"-N": "--nodes", "-p": "--partition", "-t": "--time", "-w": "--nodelist"},
            **{"-a": "--array", "-x": "--exclude", "--wrap": "-- COMMAND", "--ntasks": "--ranks"},
        },
        others={
            **_take(
                "-b --begin --bb --bbf --acctg-freq --cluster-constraint -D --chdir -M --clusters"
                " --comment -S --gpus-per-socket --mcs-label"
                " --core-spec --cores-per-socket --cpu-freq --cpus-per-gpu --deadline --delay-boot"
                " --dependency --distribution --error --export --export-file -B --extra-node-info"
                " -F --nodefile --gid --gpu-freq --gres-flags --hint -i --input -L --licenses"
                " --kill-on-invalid-dep --mem-bind --mincpus --network --ntasks-per-core -o"
                " --ntasks-per-gpu --output --ntasks-per-socket --open-mode --power --prefer"
                " --priority --profile --sockets-per-node --switches --thread-spec --tmp --uid"
                " --threads-per-core --time-min --tres-bind --wait-all-nodes --wckey",
                1,
            ),
            **_take(
                "-H --hold -k --no-kill -O --overcommit -s --oversubscribe --contiguous --nice -W"
                " --no-requeue --propagate --reboot --spread-job --use-min-nodes --wait --test-only"
                " --parsable -Q --get-user-env --ignore-pbs",
                0,
            ),
        },
        attaches=True,
        misread={
            "-c": (r"\d+", "--cpus-per-task"),
            "-d": (r"(after|singleton|expand:)\w*.*", ""),
            "-e": (r"[^=]*[./%][^=]*", ""),
            "-m": (r"(block|cyclic|arbitrary|plane=\d+|\*)([:,][\w*,:]+)?", ""),
        },
        named={"-q": "--qos"},
    ),
    "sge": BatchOptions(
        title="Grid Engine",
        emits="qsub",
        passed={
            "-pe": partial(Option, metavar="NAME SLOTS", empty="", words=2, check=_read_slots),
            "-l": partial(texts, metavar="NAME[=VALUE]"),
            **dict.fromkeys(("--queue", "--project"), text),
            "--qsub-arg": _any_option,
        },
        sizes=("-pe",),
        short={"-A": "--account", "-M": "--mail-user", "-N": "--job-name", "-P": "--project"}
        | {"-r": "--requeue", "-t": "--array"},
        misread={
            "-c": (r"\d+", "-pe NAME"),
            "-e": (r"[^=]*[./$][^=]*", ""),
            "-m": (r"[abens]+", "--mail-type"),
            "-q": (r"[\w.]+\.q(@\S+)?", "--queue"),
            "-v": (r"[A-Za-z_]\w*[=,].*", "-e"),
        },
        named={"-q": "--queue", "-v": "-e"},
        confused={"-h": "--qsub-arg -h holds the job, --help shows the help"},
        others={
            **_take("-clear -clearp -clears -cwd -hard -notify -soft -terse -verify -V", 0),
            **_take(
                "-a -ac -ar -b -binding -C -ckpt -dc -display -dl -hold_jid -hold_jid_ad -i -j -jc"
                " -js -jsv -masterq -now -o -p -R -S -sc -shell -sync -tc -w -wd",
                1,
            ),
        },
        orders={"-soft": ("-l",), "-hard": ()},
        slots="request slots with -pe NAME SLOTS",
    ),
}
"""The row that makes a batch system known. By the same name, `batch` has the module NAME with a
class Name, and `machines` the module NAME with a class NameProvider."""

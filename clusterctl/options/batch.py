"""What each batch system adds to the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.options import table
from clusterctl.options.table import Group, Option, flag, text, texts
from clusterctl.options.values import integer

NATIVE = Group("Batch systems", native=True)
"""Of the options that a batch system takes as they are; `batch_systems` adds where they work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """`--NAME` of `attach` is its name in BATCH_SYSTEMS."""

    title: str
    """Its name for people."""
    emits: str
    """The format of its scripts, as `--emit` names it."""
    passed: tuple[Option[Any], ...]
    """Options of `run` that it takes as they are, beside those that all batch systems have."""
    dash_q: str
    """The option that its users mean by -q, which is --quiet here."""
    sizes: tuple[str, ...] = ()
    """Those of its options that say how many ranks there are."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Short options that its users know and `run` does not have, and what to write."""
    slots: str = ""
    """How to ask for slots, where those are allocated, not nodes."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """By option of another batch system: what to write here."""


def _pass_words(*names: str) -> tuple[Option[str], ...]:
    return tuple(text(f"--{name}", NATIVE) for name in names)


_GPUS = "-l gpu=N, or the name that your site uses"
_MEMORY = "-l h_vmem=SIZE (for each slot)"

BATCH_SYSTEMS = {
    "slurm": BatchOptions(
        title="Slurm",
        emits="sbatch",
        passed=(  # in the order of the header of a script
            *_pass_words("constraint", "exclude", "gpu-bind", "gpus-per-task", "gres"),
            *_pass_words("mem-per-gpu", "nodelist", "qos", "reservation"),
            flag("--exclusive", NATIVE),
            text("--mpi", NATIVE, limits=table.SRUN),
            *_pass_words("cpus-per-task", "gpus", "gpus-per-node", "mem", "mem-per-cpu"),
            *_pass_words("partition"),
            text("--signal", NATIVE, limits=table.SUPERVISED),
        ),
        dash_q="--qos",
        short={"-N": "--nodes", "-p": "--partition", "-t": "--time"},
    ),
    "sge": BatchOptions(
        title="Grid Engine",
        emits="qsub",
        passed=(
            Option(
                *("-pe", NATIVE, "", "NAME SLOTS"),
                empty="",
                words=2,
                check=lambda words, option: f"{words[0]} {integer(1)(words[1], option)}",
            ),
            texts("-l", NATIVE, "", "NAME=VALUE"),
            *_pass_words("queue", "project"),
        ),
        dash_q="--queue",
        sizes=("-pe",),
        slots="request slots with -pe NAME SLOTS",
        instead={
            "--cpus-per-task": "-pe NAME SLOTS with --ranks N",
            "--gpus": _GPUS,
            "--gpus-per-node": _GPUS,
            "--mem": _MEMORY,
            "--mem-per-cpu": _MEMORY,
            "--partition": "--queue NAME",
        },
    ),
}
"""The row that makes a batch system known. By the same name, `batch` has the module NAME with a
class Name, and `machines` the module NAME with a class NameProvider."""

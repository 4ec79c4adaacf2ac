"""Slurm on the command line."""

from __future__ import annotations

from typing import Any

from clusterctl.options import table
from clusterctl.options.batch import BatchOptions
from clusterctl.options.table import Group, Option, flag, text


def pass_on(group: Group) -> tuple[Option[Any], ...]:
    """In the order of the header of a script."""
    before = ("constraint", "exclude", "gpu-bind", "gpus-per-task", "gres", "mem-per-gpu")
    after = ("cpus-per-task", "gpus", "gpus-per-node", "mem", "mem-per-cpu", "partition")
    return (
        *(text(f"--{name}", group) for name in (*before, "nodelist", "qos", "reservation")),
        flag("--exclusive", group),
        text("--mpi", group, limits=(*group.limits, table.SRUN)),
        *(text(f"--{name}", group) for name in after),
        text("--signal", group, limits=(*group.limits, table.SUPERVISED)),
    )


OPTIONS = BatchOptions(
    title="Slurm",
    emits="sbatch",
    passed=pass_on,
    dash_q="--qos",
    short={"-N": "--nodes", "-p": "--partition", "-t": "--time"},
)

"""Verbs that measure how fast a cluster and a program are: each has two words."""

from __future__ import annotations

from clusterctl.errors import UsageError
from clusterctl.options.checks import byte_size, integer, names, one_of
from clusterctl.options.run import Run, Started, copy_options
from clusterctl.options.shared import JOBS, OPTIONS
from clusterctl.options.table import Common, Option, flag, number

BACKENDS = ("gloo", "mpi", "nccl")
SMALLEST = 8
"""Bytes of the first message that `reduce_all.py` sends."""


def parse_backends(text: str, option: str) -> tuple[str, ...]:
    check = one_of(*BACKENDS)
    return tuple(check(name, option) for name in names(text, option))


def parse_counts(text: str, option: str) -> tuple[int, ...]:
    """Different numbers of ranks, the smallest first."""
    check = integer(1, 100_000)
    found = tuple(sorted({check(word, option) for word in names(text, option)}))
    if not found:
        raise UsageError(f"{option} {text!r}: expected numbers", hint=f"for example {option} 1,2,4")
    return found


def parse_message_size(text: str, option: str) -> int:
    size = byte_size(text, option)
    if size < SMALLEST:
        raise UsageError(
            f"{option} {text}: the smallest message has {SMALLEST} bytes",
            hint=f"for example {option} 8MB",
        )
    return size


REPEATS = number("--repeats", OPTIONS, "Repeat each N times (default: 3)", check=integer(1, 1000))
NOW = flag("--now", OPTIONS, "Measure even while a job runs")


class BenchAllreduce(Common, heading=JOBS, module="bench"):
    """Measure all-reduces of many sizes in each backend, and compare them with the slowest link.

    The median of several repeats, with the smallest and the largest; bandwidths as nccl-tests
    defines them.
    """

    examples = (
        "clusterctl bench allreduce",
        "clusterctl bench allreduce --backends mpi,nccl --max-size 1GB --ranks 8",
    )
    backends = Option[tuple[str, ...]](
        *("--backends", OPTIONS, "Backends (default: all that the nodes have)", "gloo,mpi,nccl"),
        empty=(),
        check=parse_backends,
    )
    max_size = number(
        "--max-size", OPTIONS, "Largest message (default: 8MB)", "SIZE", check=parse_message_size
    )
    ranks = number("-n --ranks", OPTIONS, "Number of ranks (default: one per GPU or worker)")
    repeats = REPEATS
    now = NOW


class BenchScaling(Started, heading=JOBS, module="bench"):
    """Run a program with more and more ranks: its speed, where its time goes, and what it costs.

    Shows the median of several runs, the curve predicted from what `verify` has measured, and the
    cheapest and the fastest number of ranks. SCRIPT is a path, the name of a bundled program, or
    -- COMMAND; options after it are its own.
    """

    settings_of = ("run",)
    examples = ("clusterctl bench scaling --ranks 1,2,4 multinode_ddp_mpi.py 3 3 --metrics",)
    counts = Option[tuple[int, ...]](
        *("-n --ranks", OPTIONS, "Numbers of ranks: 1,2,4", "N,N,..."),
        empty=(),
        check=parse_counts,
        settable=False,
    )
    repeats = REPEATS
    now = NOW
    of_run = (
        Run.backend,
        Run.launcher,
        *copy_options(Run, groups=(Run.PROGRAM, Run.MORE_PROGRAM)),
        Run.timeout,
    )

"""Verbs about jobs that were started."""

from __future__ import annotations

from collections.abc import Collection

from clusterctl.errors import UsageError
from clusterctl.options import batch_systems, clusters, run, table
from clusterctl.options.run import Run, Started, copy_options
from clusterctl.options.table import (
    ARGUMENTS,
    JOBS,
    JSON_LINES,
    LAST_JOB,
    OF_JOB,
    OPTIONS,
    Common,
    Limit,
    Verb,
    cluster_option,
    file,
    flag,
    maybe,
    number,
    span,
    text,
    whole,
    words,
)
from clusterctl.options.values import byte_size, expression, integer, names, one_of


class Jobs(Common, heading=JOBS, module="jobs"):
    """List your jobs, including those of removed clusters, or the points of a sweep."""

    examples = (
        "clusterctl jobs",
        "clusterctl jobs 12",
        "clusterctl jobs --cluster lab --json",
        "clusterctl jobs --columns id,commit,loss,took,dollars",
    )
    job = whole(
        *("", ARGUMENTS, "Show only this job; of a sweep, each point with its last metrics"),
        "[JOB]",
    )
    columns = words("--columns", OPTIONS, "Columns to show, metrics too: id,commit,loss")
    all = flag("--all", OPTIONS, "Also those of verify, bench and up, which have ended")
    cluster = cluster_option(help="Show only this cluster")


class Logs(Common, heading=JOBS, module="jobs"):
    """Show a job's output, or the metrics that it has printed."""

    examples = (
        "clusterctl logs",
        "clusterctl logs 7 --follow --rank 0",
        "clusterctl logs 7 --metrics --csv",
    )
    job = LAST_JOB
    follow = flag("-f --follow", OPTIONS, "Follow the output until the job ends; Ctrl-C detaches")
    rank = whole("--rank", OPTIONS, "Show only this rank")
    tail = number(
        *("--tail", OPTIONS, "Show the last N lines of each rank"),
        limits=(table.exclude("follow"), table.exclude("metrics")),
    )
    grep = text(
        *("--grep", OPTIONS, "Show lines that match an expression", "REGEX"),
        check=expression,
        limits=table.exclude("metrics"),
    )
    metrics = flag("--metrics", OPTIONS, "Show only the metrics that ranks have printed")
    csv = flag(
        *("--csv", OPTIONS, "Print metrics as comma-separated values"),
        limits=(table.limit_to("metrics"), table.exclude("follow", "json")),
    )
    json = JSON_LINES
    cluster = OF_JOB

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """`12.3` is point 3 of job 12."""
        found: list[str] = []
        for word in words:
            job, dot, point = word.partition(".")
            is_point = dot and job.isdigit() and point.isdigit()
            found += ["--rank", point, job] if is_point else [word]
        return found


class Cancel(Common, heading=JOBS, module="jobs"):
    """Stop a job on all nodes, and verify that no process of it is left."""

    examples = ("clusterctl cancel 7",)
    job = LAST_JOB
    cluster = OF_JOB


class Fetch(Common, heading=JOBS, module="jobs"):
    """Copy the files that a job wrote from its nodes to this machine."""

    examples = ("clusterctl fetch", "clusterctl fetch 7 --to results")
    job = LAST_JOB
    to = file("--to", OPTIONS, "Folder (default: job-N here)", "DIR")
    cluster = OF_JOB


class Doctor(Common, heading=JOBS, module="insight"):
    """Say why a job hangs or has failed.

    Looks at all its nodes at once: stacks of the ranks, memory, disks, clocks, links, and what the
    ranks printed.
    """

    examples = ("clusterctl doctor", "clusterctl doctor 7 --json")
    job = LAST_JOB
    cluster = OF_JOB


class Top(Common, heading=JOBS, module="insight"):
    """Show what the ranks of a job and their nodes use: steps, processors, memory, network, cost.

    Refreshes in place on a terminal until the job ends. Nothing is installed on the nodes.
    """

    examples = ("clusterctl top", "clusterctl top 7 --once", "clusterctl top 7 --json")
    job = LAST_JOB
    interval = span("--interval", OPTIONS, "Time between updates (default: 2s)")
    once = flag("--once", OPTIONS, "Show one frame and end")
    json = JSON_LINES
    cluster = OF_JOB


class Report(Common, heading=JOBS, module="insight"):
    """Write one page about a cluster or a job: timeline, curves of metrics, measurements, cost.

    The page loads nothing from the network.
    """

    examples = ("clusterctl report", "clusterctl report 7 --output job-7.html")
    wanted = maybe(
        *("", ARGUMENTS, "Number of a job or name of a cluster (default: the only one)"),
        "[JOB|CLUSTER]",
    )
    output = file("--output", OPTIONS, "File, or - for stdout (default: report-NAME.html here)")


class Diff(Common, heading=JOBS, module="insight"):
    """Compare two jobs: how they were started, the files they ran with, and how they ended."""

    examples = ("clusterctl diff 7 9",)
    first = number("", ARGUMENTS, "Number of a job", "JOB", check=integer(0))
    second = number("", ARGUMENTS, "Number of the other one", "OTHER", check=integer(0))
    cluster = cluster_option(help="Cluster of both jobs (default: any)")


# -------------------------------------------------------------------------------------------------
# Verbs that measure how fast a cluster and a program are: each has two words.


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


class BenchAllreduce(Common, heading=JOBS, module="insight"):
    """Measure all-reduces of many sizes in each backend, and compare them with the slowest link.

    The median of several repeats, with the smallest and the largest; bandwidths as nccl-tests
    defines them.
    """

    examples = (
        "clusterctl bench allreduce",
        "clusterctl bench allreduce --backends mpi,nccl --max-size 1GB --ranks 8",
    )
    backends = words(
        *("--backends", OPTIONS, "Backends (default: all that the nodes have)", "gloo,mpi,nccl"),
        check=parse_backends,
    )
    max_size = number(
        "--max-size", OPTIONS, "Largest message (default: 8MB)", "SIZE", check=parse_message_size
    )
    ranks = number("-n --ranks", OPTIONS, "Number of ranks (default: one per GPU or worker)")
    repeats = REPEATS
    now = NOW


class BenchScaling(Started, heading=JOBS, module="insight"):
    """Run a program with more and more ranks: its speed, where its time goes, and what it costs.

    Shows the median of several runs, and the cheapest and the fastest number of ranks. SCRIPT is a
    path, the name of a bundled program, or -- COMMAND; options after it are its own.
    """

    settings_of = ("run",)
    examples = ("clusterctl bench scaling --ranks 1,2,4 multinode_ddp_mpi.py 3 3 --metrics",)
    counts = words(
        *("-n --ranks", OPTIONS, "Numbers of ranks: 1,2,4", "N,N,..."),
        check=parse_counts,
        settable=False,
    )
    repeats = REPEATS
    now = NOW
    of_run = (
        Run.backend,
        Run.launcher,
        *copy_options(Run, groups=(Run.PROGRAM, Run.PACKAGES, Run.MORE_PROGRAM)),
        Run.timeout,
    )


# -------------------------------------------------------------------------------------------------
# The verbs, in the order of `clusterctl --help`: each is a class with its options (see `table`),
# in the module of its heading.


VERBS: dict[str, type[Verb]] = {
    "up": clusters.Up,
    "down": clusters.Down,
    "status": clusters.Status,
    "list": clusters.List,
    "verify": clusters.Verify,
    "attach": clusters.Attach,
    "detach": clusters.Detach,
    "extend": clusters.Extend,
    "stop": clusters.Stop,
    "start": clusters.Start,
    "cost": clusters.Cost,
    "allow": clusters.Allow,
    "gc": clusters.Gc,
    "run": run.Run,
    "launch": run.Launch,
    "rerun": run.Rerun,
    "jobs": Jobs,
    "logs": Logs,
    "cancel": Cancel,
    "fetch": Fetch,
    "doctor": Doctor,
    "diff": Diff,
    "top": Top,
    "report": Report,
    "bench allreduce": BenchAllreduce,
    "bench scaling": BenchScaling,
    "ssh": clusters.Ssh,
    "cp": clusters.Cp,
    "forward": clusters.Forward,
    "ssh-config": clusters.SshConfig,
    "init": clusters.Init,
    "check": clusters.Check,
    "data get": clusters.DataGet,
    "data push": clusters.DataPush,
    "data list": clusters.DataList,
    "data index": clusters.DataIndex,
    "image build": clusters.ImageBuild,
}
FAMILIES = {
    "bench": "Measure all-reduces, and how a program scales.",
    "data": "Download, copy and list data sets.",
    "image": "Build node images.",
}
"""Words that verbs of two words begin with."""


def find_limit(verb: str, option: str, circumstances: Collection[str]) -> Limit | None:
    """Why the option (as it is written: `--spot`, `-pe`) has no effect there; None where it has.
    One that the verb does not have is srun's, and for a batch system."""
    options = (item.limits for item in VERBS[verb].options().values() if option in item.flags)
    limits = next(options, (batch_systems.ONLY,))
    return next((item for item in limits if not item.holds(circumstances)), None)

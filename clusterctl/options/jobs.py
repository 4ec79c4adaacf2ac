"""Verbs about jobs that were started."""

from __future__ import annotations

from clusterctl.options import limits as where
from clusterctl.options.checks import duration, expression, integer, names
from clusterctl.options.shared import JOBS, JSON_LINES, LAST_JOB, OF_JOB, OPTIONS
from clusterctl.options.table import (
    ARGUMENTS,
    Common,
    Option,
    amount,
    choice,
    cluster_option,
    file,
    flag,
    maybe,
    number,
    text,
)


class Jobs(Common, heading=JOBS, module="jobs"):
    """List your jobs, including those of removed clusters, or the points of a sweep."""

    examples = (
        "clusterctl jobs",
        "clusterctl jobs 12",
        "clusterctl jobs --cluster lab --json",
        "clusterctl jobs --columns id,commit,loss,took,dollars",
    )
    job = Option[int | None](
        *("", ARGUMENTS, "Show only this job; of a sweep, each point with its last metrics"),
        "[JOB]",
        empty=None,
        check=integer(0),
    )
    columns = Option[tuple[str, ...]](
        "--columns",
        OPTIONS,
        "Columns to show, metrics too: id,commit,loss",
        "A,B",
        empty=(),
        check=names,
    )
    all = flag("--all", OPTIONS, "Also those of verify, bench, drill and up, which have ended")
    cluster = cluster_option(help="Show only this cluster")


class Logs(Common, heading=JOBS, module="jobs"):
    """Show a job's output, or the metrics that it has printed."""

    examples = (
        "clusterctl logs",
        "clusterctl logs 7 --follow --rank 0",
        "clusterctl logs 7 --metrics --csv",
        "clusterctl logs 7 --metrics --export runs",
    )
    job = LAST_JOB
    follow = flag("-f --follow", OPTIONS, "Follow the output until the job ends; Ctrl-C detaches")
    rank = Option[int | None](
        "--rank", OPTIONS, "Show only this rank", "N", empty=None, check=integer(0)
    )
    tail = number(
        "--tail",
        OPTIONS,
        "Show the last N lines of each rank",
        limits=(where.FOLLOWED, where.NOT_METRICS),
    )
    grep = text(
        "--grep",
        OPTIONS,
        "Show lines that match an expression",
        "REGEX",
        check=expression,
        limits=where.NOT_METRICS,
    )
    metrics = flag("--metrics", OPTIONS, "Show only the metrics that ranks have printed")
    csv = flag(
        "--csv",
        OPTIONS,
        "Print metrics as comma-separated values",
        limits=(where.WITH_METRICS, where.NOT_FOLLOWED_OR_JSON, where.NOT_EXPORTED),
    )
    export = file(
        "--export",
        OPTIONS,
        "Write metrics to a .csv file, or for TensorBoard to a folder",
        "DIR|FILE.csv",
        limits=(where.WITH_METRICS, where.FOLLOWED),
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


class Doctor(Common, heading=JOBS, module="doctor"):
    """Say why a job hangs or has failed.

    Looks at all its nodes at once: stacks of the ranks, memory, disks, clocks, links, and what the
    ranks printed.
    """

    examples = ("clusterctl doctor", "clusterctl doctor 7 --bundle job-7.tar.gz")
    job = LAST_JOB
    bundle = file(
        "--bundle",
        OPTIONS,
        "Write all collected data to a .tar.gz file, without secrets",
        settable=False,
    )
    cluster = OF_JOB


class Top(Common, heading=JOBS, module="top"):
    """Show what the ranks of a job and their nodes use: steps, processors, memory, network, cost.

    Refreshes in place on a terminal until the job ends. Nothing is installed on the nodes.
    """

    examples = ("clusterctl top", "clusterctl top 7 --once", "clusterctl top 7 --json")
    job = LAST_JOB
    interval = amount("--interval", OPTIONS, "Time between updates (default: 2s)", "TIME", duration)
    once = flag("--once", OPTIONS, "Show one frame and end")
    json = JSON_LINES
    cluster = OF_JOB


class Report(Common, heading=JOBS, module="report"):
    """Write one page about a cluster or a job: timeline, curves of metrics, measurements, cost.

    The page loads nothing from the network. `--format md` writes the tables alone, as Markdown.
    """

    examples = ("clusterctl report", "clusterctl report 7 --output job-7.html")
    wanted = maybe(
        "",
        ARGUMENTS,
        "Number of a job or name of a cluster (default: the only one)",
        "[JOB|CLUSTER]",
    )
    format = choice("--format", OPTIONS, "Kind of page (default: html)", "html", "md", empty="html")
    output = file("--output", OPTIONS, "File, or - for stdout (default: report-NAME.html here)")


class Diff(Common, heading=JOBS, module="insight"):
    """Compare two jobs: how they were started, the files they ran with, and how they ended."""

    examples = ("clusterctl diff 7 9",)
    first = number("", ARGUMENTS, "Number of a job", "JOB", check=integer(0))
    second = number("", ARGUMENTS, "Number of the other one", "OTHER", check=integer(0))
    cluster = cluster_option(help="Cluster of both jobs (default: any)")

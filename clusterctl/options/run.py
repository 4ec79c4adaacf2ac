"""Verbs that start a job: `run`, `launch`, `rerun`."""

from __future__ import annotations

from typing import Any

from clusterctl.core.sweep import check_array, check_axis
from clusterctl.errors import UsageError
from clusterctl.options import batch_systems, table
from clusterctl.options.batch import BATCH_SYSTEMS
from clusterctl.options.clusters import Up, join_shared
from clusterctl.options.table import (
    ARGUMENTS,
    GENERAL,
    JOBS,
    JSON_LINES,
    LAST_JOB,
    OPTIONS,
    YES,
    Common,
    Group,
    Option,
    Verb,
    choice,
    cluster_option,
    file,
    files,
    flag,
    number,
    span,
    text,
    texts,
    whole,
)
from clusterctl.options.values import (
    byte_size,
    check_resume_args,
    integer,
    local_folder,
    node_choice,
    pattern,
    python_version,
)

ENV = "Variable for all ranks; repeatable"
ENV_FILE = "File of secret NAME=VALUE lines; repeatable"

STAGED = (table.STAGED,)
SUPERVISED = (table.STAGED, table.SUPERVISED)
SELDOM = "Less common, see docs/jobs.md"
"""What the help says before options that it only names, so that it fits on 60 lines."""


class Started(Common):
    """A verb with a program: its options, the program, and all that is the program's."""

    ends_at_argument = True
    command = texts("", ARGUMENTS, "", "SCRIPT [ARGS...]")

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """Options before SCRIPT are ours, the rest is the script's; `-m MODULE` or `--` ends
        ours."""
        index = 0
        while index < len(words):
            word = words[index]
            if word == "--":  # the parser takes one away: the other says that a command follows
                return [*words[:index], "--", *words[index:]]
            if not word.startswith("-"):
                break
            if cls.read_word(word)[0] == "-m":
                index += cls.count_words(word)
                return [*words[:index], "--", *words[index:]]
            if word == "-np":
                count = next(iter(words[index + 1 :]), "N")
                raise UsageError("unknown option -np", hint=f"did you mean `-n {count}`?")
            if word[:2] in batch_systems.SHORT and word != "-pe":
                raise UsageError(
                    f"unknown option {word[:2]}",
                    hint=f"did you mean {batch_systems.SHORT[word[:2]]}?",
                )
            index += cls.count_words(word)
        return words


class Run(Started, heading=JOBS, module="run"):
    """Run a program on all ranks and follow its output. SCRIPT is a path, the name of a bundled
    program, or -- COMMAND. Options after it are its own."""

    examples = ("clusterctl run --ranks 4 --env LR=0.1 train.py --epochs 3",)
    RANKS, PROGRAM = Group("Ranks", STAGED), Group("Program", STAGED)
    SWEEP, PACKAGES = Group("Ranks", SUPERVISED), Group("Program", SUPERVISED)
    JOB = Group("Job", SUPERVISED)
    MORE_PROGRAM = Group("Program", STAGED, lead=SELDOM)
    MORE_JOB = Group("Job", lead=SELDOM)

    ranks = number(
        "-n --ranks",
        RANKS,
        "Total ranks (default: one per GPU, else per worker)",
        limits=batch_systems.RANKS,
    )
    ranks_per_node = number(
        "--ranks-per-node --ntasks-per-node",
        RANKS,
        "Ranks on each node",
        limits=batch_systems.NODES,
    )
    nodes = text(
        *("--nodes", RANKS, "Number of workers, or their names (default: all)", "N|NAMES"),
        limits=batch_systems.NODES,
        check=node_choice,
    )
    once = flag("--once", RANKS, "Run one process, on one node")
    backend = choice("--backend", RANKS, "Communication library", "auto", "gloo", "nccl", "mpi")
    launcher = choice(
        *("--launcher", RANKS, "Program that starts ranks", "mpirun", "torchrun", "srun"),
        empty="auto",
        limits=(table.STAGED, table.NOT_ONCE),
    )
    mpirun_args = texts(
        *("--mpirun-arg", RANKS, "Option for mpirun: '--map-by numa'; repeatable", "ARG"),
        limits=(table.STAGED, table.MPIRUN),
    )
    sweep = texts(
        *("--sweep", SWEEP, "Run once per value: lr=0.1,0.01; repeatable", "NAME=VALUES"),
        check=check_axis,
        settable=False,
    )
    array = text(
        *("--array", SWEEP, "Run once per number: 0-99, 1,3,7 or 0-99%8", "NUMBERS"),
        check=check_array,
        settable=False,
    )
    python_module = text(
        "-m", PROGRAM, "Run a Python module instead of SCRIPT", "MODULE", settable=False
    )
    variables = texts("-e --env", PROGRAM, ENV, "NAME[=VALUE]")
    env_file = files("--env-file", PROGRAM, ENV_FILE)
    stage = file("--stage", PROGRAM, "Folder to copy (default: repository, else SCRIPT's)", "DIR")
    include = files("--include", PROGRAM, "Copy PATH even if git ignores it; repeatable", "PATH")
    max_stage = number(
        "--max-stage", MORE_PROGRAM, "Copy at most this (default: 200MB)", "SIZE", check=byte_size
    )
    source = files("--source", MORE_PROGRAM, "Also compile FILE; repeatable (-e CFLAGS=...)")
    requirements = text(
        "--requirements", PACKAGES, "Packages: FILE or none (default: the project's)", "FILE"
    )
    python = text(
        *("--python", PACKAGES, "Python version: 3.12 (default: that of the nodes)", "VERSION"),
        check=python_version,
    )
    stdin = flag(
        *("--stdin", MORE_PROGRAM, "Pass a pipe to rank 0; <FILE needs no option"),
        limits=SUPERVISED,
        settable=False,
    )
    allow_cpu = flag("--allow-cpu", PROGRAM, "Let GPU programs run without a GPU")
    detach = flag("-d --detach", JOB, "Start the job and return")
    timeout = span("--timeout", JOB, "Stop the job after TIME: 30m, 8h or 90 (seconds)")
    hang_timeout = span("--hang-timeout", JOB, "Stop an attempt that prints nothing for TIME: 10m")
    grace = span("--grace", JOB, "Time to save after SIGTERM (default: 5s)")
    pass_signal = flag(
        *("--pass-signal", JOB, "Give ranks the site's own signal, not SIGTERM"),
        limits=(batch_systems.ONLY, *SUPERVISED),
    )
    retries = number("--retries", JOB, "Retry after a failure, at most N times", check=integer(0))
    on_node_loss = choice(
        *("--on-node-loss", JOB, "If a node is lost", "replace", "shrink", "fail"),
        limits=(table.REPLACED, table.SUPERVISED),
    )
    resume_args = text(
        *("--resume-args", JOB, "Arguments to resume: '--resume {snapshot}'", "ARGS"),
        check=check_resume_args,
    )
    keep_files = texts(
        *("--keep-files", JOB, "Outputs to copy to the launcher; repeatable", "GLOB"),
        limits=(table.DIRECT, table.SUPERVISED),
        check=pattern,
    )
    sync = text(
        *("--sync", JOB, "Copy outputs to a folder here while the job runs", "DIR"),
        limits=(table.DIRECT, table.SUPERVISED, table.ATTENDED),
        check=local_folder,
    )
    now = flag(
        "--now", MORE_JOB, "Do not wait for other jobs", limits=(table.DIRECT, table.SUPERVISED)
    )
    dry_run = flag("--dry-run", JOB, "Print what would run, and why", limits=())
    emit = choice(
        "--emit",
        MORE_JOB,
        "Print a standalone script",
        "sh",
        *(system.emits for system in BATCH_SYSTEMS.values()),
        limits=STAGED,
        settable=False,
    )
    interactive = flag(
        *("--interactive", batch_systems.GROUP, "Open a shell, or run SCRIPT, on nodes"),
        limits=batch_systems.TERMINAL,
        settable=False,
    )
    modules = texts("--module", batch_systems.GROUP, "Environment module; repeatable", "NAME")
    venv = text("--venv", batch_systems.GROUP, "Virtual environment on the nodes", "DIR")
    container = text("--container", batch_systems.GROUP, "Apptainer image to run ranks in", "IMAGE")

    passed = batch_systems.PASSED
    json = flag("--json", GENERAL, "Print one JSON object per line", limits=table.NOT_TERMINAL)

    def pick_fields(self, spec: type[Any]) -> dict[str, Any]:
        found = super().pick_fields(spec)
        nodes: str = found.pop("nodes", "")
        if nodes.isdecimal():
            found["nodes"] = int(nodes)
        elif nodes:
            found["hosts"] = tuple(nodes.split(","))
        return found

    def collect_native(self) -> dict[str, str]:
        """What was given of the batch system's own options, by its names; a flag has no value."""
        given = {
            key.replace("_", "-"): self.values[key]
            for key, option in self.options().items()
            if option.group.native and self.values[key]
        }
        return {
            name: "" if value is True else ",".join(value) if isinstance(value, tuple) else value
            for name, value in given.items()
        }


def copy_options(
    verb: type[Verb], *without: str, groups: tuple[Group, ...]
) -> tuple[Option[Any], ...]:
    """The options of another verb that stand under these headings."""
    found = (item for item in verb.options().values() if item.group in groups and item.flags)
    return tuple(item for item in found if item.flag not in without)


class Launch(Started, heading=JOBS, module="launches"):
    """Create a cluster, run a program on it, copy its output files here, and remove the cluster.

    SCRIPT is a path, the name of a bundled program, or -- COMMAND; options after it are its own.
    Those before it are the options of `up` and `run`. The exit code is the program's. With
    --detach, the next command after the program's end copies its files here and removes the
    cluster. With `-c NAME` of an attached cluster, the program runs there, and nothing is created
    or removed.
    """

    settings_of = ("up", "run")
    examples = (
        "clusterctl launch train.py --epochs 3",
        "clusterctl launch --gpu g4dn:4 --spot --budget 20 train.py",
        "clusterctl launch --detach --gpu g4dn --ttl 12h train.py",
    )
    detach = flag(
        "-d --detach", OPTIONS, "Return once the program runs; a later command removes the cluster"
    )
    keep = flag("--keep", OPTIONS, "Leave the cluster running at the end")
    of_up = copy_options(Up, groups=(Up.MACHINE, Up.EC2))
    of_run = copy_options(
        *(Run, "--detach", "--dry-run"),
        groups=(Run.RANKS, Run.SWEEP, Run.PROGRAM, Run.PACKAGES, Run.MORE_PROGRAM, Run.JOB),
    )
    of_batch = copy_options(
        # `up` has options of the names of the last two.
        *(Run, "--interactive", "--reservation", "--gpus"),
        groups=(batch_systems.GROUP, *(option.group for option in batch_systems.PASSED)),
    )
    dry_run = flag("--dry-run", GENERAL, "Print the plan of the cluster and change nothing")
    yes = YES
    json = JSON_LINES
    cluster = cluster_option(help="A new cluster (default: named after SCRIPT), or an attached one")

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        return super().arrange(join_shared(cls, words))


def _read_job(text: str, option: str) -> int | None:
    """`arrange` gives "" where only the program's arguments are given."""
    return integer(0)(text, option) if text else None


class Rerun(Common, heading=JOBS, module="run"):
    """Run a job again with the same program, files and options, here or on another cluster."""

    examples = (
        "clusterctl rerun",
        "clusterctl rerun 7 --resume --cluster other",
        "clusterctl rerun 7 --resume -- --resume checkpoint.pt",
    )
    job = whole("", ARGUMENTS, LAST_JOB.help, LAST_JOB.metavar, check=_read_job)
    failed = flag("--failed", OPTIONS, "Of a sweep: only the points that did not succeed")
    arguments = texts("", ARGUMENTS, "Added to the program's arguments", "[-- ARGS...]")
    resume = flag("--resume", OPTIONS, "Start from the previous job's output files")
    ranks = number("-n --ranks", OPTIONS, "Number of ranks (default: as before)")
    variables = texts("-e --env", OPTIONS, ENV, "NAME[=VALUE]")
    env_file = files("--env-file", OPTIONS, ENV_FILE)
    detach = flag("-d --detach", OPTIONS, "Start the job and return")
    json = JSON_LINES
    cluster = cluster_option(help="Cluster to run on (default: that of the job)")

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """Without a number before it, all after `--` is still the program's."""
        end = cls.count_leading(words)
        return [*words[:end], "", *words[end:]] if words[end : end + 1] == ["--"] else words

"""The verbs, in the order of `clusterctl --help`: each is a class with its options."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import zip_longest
from typing import Any

from clusterctl.core.sweep import check_array, check_axis
from clusterctl.errors import UsageError
from clusterctl.options import batch_systems, kinds, values
from clusterctl.options.batch import BATCH_SYSTEMS
from clusterctl.options.kinds import (
    DEFAULT_NAME,
    GENERAL,
    JOBS,
    JSON_LINES,
    LAST_JOB,
    OF_JOB,
    OPTIONS,
    PROVIDER_OPTIONS,
    YES,
    Common,
    Group,
    Limit,
    Named,
    Option,
    Verb,
    amount,
    choice,
    cluster_option,
    file,
    files,
    flag,
    join_words,
    maybe,
    name_argument,
    number,
    span,
    text,
    texts,
    whole,
    words,
)

# -------------------------------------------------------------------------------------------------
# Verbs that create clusters, watch what they cost, and remove them.

CLUSTERS = "Clusters"
NEW_NAME = name_argument(DEFAULT_NAME)


class Up(Named, heading=CLUSTERS, module="clusters"):
    """Create a cluster, resume one, or change its number of workers."""

    examples = (
        "clusterctl up",
        "clusterctl up --gpu g4dn --ttl 4h --budget 20",
        "clusterctl up --provider docker --gpus all lab",
    )

    name = NEW_NAME
    cluster = cluster_option(help=f"Name of the cluster (default: {DEFAULT_NAME})")
    MACHINE = Group("Machines")
    provider = text(f"{join_words([*PROVIDER_OPTIONS], 'or')} (default: as options imply)", "NAME")
    workers = number("Number of workers besides the launcher (default: 2)")
    ttl = span("Shut down after 30m, 8h, 2d (default on EC2: 8h)", check=values.life_time)
    shared = flag("Give all nodes one folder, $CLUSTERCTL_SHARED, which `down` deletes")
    setup = file("Script that root runs on each node, once", "FILE")
    image = texts(
        "Container image of all nodes, or of a kind of node; repeatable",
        "[KIND=]IMAGE",
        limits=kinds.IMAGE,
    )
    gpus = words(
        "This machine's GPUs for the workers", "0,1|all", check=values.indices, limits=kinds.DOCKER
    )
    EC2 = Group("Amazon EC2", (kinds.EC2,))
    gpu = texts(
        "GPU workers: g4dn or T4, g4ad, g5, g6, g6e, g7, p4d, p5, p5en; repeatable", "FAMILY[:N]"
    )
    cpu = texts("CPU workers of this instance type; repeatable", "TYPE[:N]")
    instance_type = text("Instance type of the workers", "TYPE")
    launcher_type = text("Type of the launcher (default: t3.micro)", "TYPE")
    region = text("Region (default: that of the AWS CLI)", "NAME")
    regions = words("Regions to try, in this order")
    zones = words("Availability zones to try, in this order")
    spot = flag("Use spot workers: cheaper, may be interrupted")
    spot_fallback = flag("Use on-demand workers if no spot is available")
    runtime = choice(
        "Run ranks in containers, or on the host (default with NVIDIA)", "docker", "host"
    )
    ami = text("Machine image of the workers", "ID")
    disk = number("Disk size of each worker, 8 to 16384", "GB", check=values.integer(8, 16384, 100))
    efa = flag("Use Elastic Fabric Adapters, on instance types that have them")
    vpc = text("VPC for the machines (default: a new one)", "ID")
    subnet = words("Subnets for the machines, tried in this order")
    private = flag("Give workers no public addresses (adds a NAT gateway)")
    tag = texts("Tag for the cluster's AWS resources; repeatable", "KEY=VALUE")
    ssh_cidr = text(
        "Networks that may connect (default: your address)", "A,B", limits=kinds.SSH_CIDR
    )
    instance_connect = flag("Connect through an endpoint of AWS, where SSH is closed")
    max_hourly = amount("Refuse a cluster that costs more per hour", "USD", check=values.budget)
    budget = amount("Shut down before it costs more than this", "USD", check=values.budget)
    idle = Option[float | None](
        "End machines that are unused for this long (default: 1h)",
        "TIME|off",
        empty=None,
        check=values.idle_time,
    )
    boot_timeout = span("Time for machines to boot (default: 10m)")
    dry_run = flag("Print the plan and change nothing", group=GENERAL)
    yes = YES


_FETCH = flag("Save outputs to job-N, a shared folder to shared-NAME, first", flags="--fetch")
_DISCARD = flag("Delete unfetched job outputs and the shared folder", flags="--discard")


class Down(Named, heading=CLUSTERS, module="clusters"):
    """Remove a cluster and verify that nothing of it is left.

    Job outputs that you have not fetched, and files in a shared folder, are deleted only with your
    consent. On a terminal you are asked; with --yes, with --json or without a terminal, add --fetch
    or --discard.
    """

    examples = ("clusterctl down", "clusterctl down lab --yes --fetch")
    fetch = _FETCH
    discard = _DISCARD
    force = flag("Save no logs or outputs, and do not ask")
    yes = YES


class Status(Named, heading=CLUSTERS, module="status"):
    """Show the nodes, age, cost and running jobs of a cluster."""

    examples = ("clusterctl status", "clusterctl status lab --live")
    live = flag("Query the nodes now")


class List(Common, heading=CLUSTERS, module="status", function="list_clusters"):
    """List your clusters."""

    examples = ("clusterctl list",)
    cluster = cluster_option(help="Show only this cluster")


class Verify(Named, heading=CLUSTERS, module="insight"):
    """Measure the nodes and links of a cluster, and compare them with the expected values.

    Exit code 8 if something is below its limit.
    """

    examples = ("clusterctl verify", "clusterctl verify lab --quick")
    quick = flag("Take about five seconds: no GEMM")
    now = flag("Measure even while a job runs")


class Attach(Named, heading=CLUSTERS, module="clusters"):
    """Use machines that already exist: SSH hosts, or a site with Slurm or Grid Engine."""

    examples = (
        "clusterctl attach lab --hosts hosts.txt --user me",
        "clusterctl attach hpc --slurm me@login.example.org",
        "clusterctl attach --sge",
    )

    name = NEW_NAME
    cluster = cluster_option(help=f"Name of the cluster (default: {DEFAULT_NAME})")
    hosts = file("SSH hosts, one HOST [slots=N] ... per line")
    sites = tuple(
        maybe(f"Site with {BATCH_SYSTEMS[name].title} (default: here)", "[LOGIN]", flags=flag)
        for flag, name in batch_systems.FLAGS.items()
    )
    user = text("User to log in as", "NAME", limits=kinds.HERE)
    identity = file("SSH private key (default: ssh_config and agent)", limits=kinds.HERE)
    workdir = text("Folder for files, shared by a site's nodes (default: ~/.clusterctl)", "DIR")
    bootstrap = flag("Install missing programs with sudo", limits=kinds.limit_to("hosts"))

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """`--slurm` and the like may stand alone: then this machine is the login node."""
        found: list[str] = []
        for word, following in zip_longest(words, words[1:], fillvalue="-"):
            found.append(word)
            if word in batch_systems.FLAGS and following.startswith("-"):
                found.append("")
        return found

    @property
    def logins(self) -> dict[str, str | None]:
        """By flag: the login node of each batch system, "" for this machine, None if not given."""
        return {site.flag: self.values[site.key] for site in self.sites}


class Detach(Named, heading=CLUSTERS, module="clusters"):
    """Stop using attached machines: remove clusterctl's files and keys, nothing else.

    Job outputs that you have not fetched are deleted only with your consent, as by `down`.
    """

    examples = ("clusterctl detach lab", "clusterctl detach lab --yes --fetch")
    fetch = _FETCH
    discard = _DISCARD
    force = flag("Save nothing, do not ask, and skip hosts that do not answer")
    yes = YES


class Extend(Named, heading=CLUSTERS, module="lifetime"):
    """Move the deadline of a cluster. An earlier deadline needs your consent."""

    examples = ("clusterctl extend --ttl 4h",)
    ttl = span("New time to live, from now on: 30m, 8h, 2d", check=values.life_time)
    yes = YES


class Stop(Named, heading=CLUSTERS, module="lifetime"):
    """Stop the machines of a cluster on EC2. Their disks stay, and cost money, until the deadline.

    Running jobs are ended first, with SIGTERM.
    """

    examples = ("clusterctl stop", "clusterctl stop lab --yes")
    yes = YES


class Start(Named, heading=CLUSTERS, module="lifetime"):
    """Start the machines of a stopped cluster again, with their disks and new addresses."""

    examples = ("clusterctl start lab",)
    yes = YES


class Cost(Common, heading=CLUSTERS, module="status", function="cost"):
    """Show what was spent, by day, cluster or job, also on clusters that are gone."""

    examples = ("clusterctl cost --since 30d", "clusterctl cost --by job --csv")
    since = span("Show only the last TIME (default: 30d)", empty=30 * 86400.0)
    by = choice("Group by (default: day)", "day", "cluster", "job", empty="day")
    csv = flag("Print comma-separated values")
    cluster = cluster_option(help="Show only clusters with this name")


class Allow(Common, heading=CLUSTERS, module="access"):
    """Set the networks that may connect to a cluster on EC2: those given, and no others.

    Without any, only your present address: run it if your address has changed.
    """

    examples = ("clusterctl allow", "clusterctl allow 203.0.113.7 198.51.100.0/24")
    networks = texts("Networks (default: your present address)", "[CIDR...]", flags="")


class Gc(Common, heading=CLUSTERS, module="lifetime"):
    """Find clusters on EC2 without a local record, and remove them or take one back.

    It searches all regions of the account. --yes removes your own clusters, and another user's
    cluster only if -c gives its id.
    """

    examples = ("clusterctl gc --dry-run", "clusterctl gc --adopt lab --region eu-west-1")
    adopt = text("Take this cluster back instead of removing it", "NAME", settable=False)
    region = texts("Region (default: all); repeatable", "NAME")
    dry_run = flag("Print what is found and change nothing", group=GENERAL)
    cluster = cluster_option(kinds.exclude("adopt"), help="Remove only this cluster")
    yes = YES


# -------------------------------------------------------------------------------------------------
# Verbs that start a job.

ENV = "Variable for all ranks; repeatable"
ENV_FILE = "File of secret NAME=VALUE lines; repeatable"

STAGED = (kinds.STAGED,)
SUPERVISED = (kinds.STAGED, kinds.SUPERVISED)
OURS, AT_SITES = (kinds.DIRECT, kinds.SUPERVISED), (batch_systems.ONLY, kinds.STAGED)
SELDOM = "Less common, see docs/reference.md"
"""What the help says before options that it only names, so that it fits on 60 lines."""


class Started(Common):
    """A verb with a program: its options, the program, and all that is the program's."""

    ends_at_argument = True
    command = texts("", "SCRIPT [ARGS...]", flags="")

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """Options before SCRIPT are ours, the rest is the script's; `-m MODULE` or `--` ends
        ours."""
        places = cls.list_leading(words)
        modules = [i for i, at in enumerate(places[:-1], 1) if cls.read_word(words[at])[0] == "-m"]
        end = places[modules[0] if modules else -1]
        # The parser takes one `--` away: the other says that a command follows.
        follows = modules or words[end : end + 1] == ["--"]
        return [*words[:end], "--", *words[end:]] if follows else words


class Run(Started, heading=JOBS, module="run"):
    """Run a program on all ranks and follow its output. SCRIPT is a path, the name of a bundled
    program, or -- COMMAND. Options after it are its own."""

    examples = ("clusterctl run --ranks 4 --env LR=0.1 train.py --epochs 3",)
    MORE_PROGRAM, MORE_JOB = Group("Program", lead=SELDOM), Group("Job", lead=SELDOM)
    MORE_PACKAGES = Group("Program", (kinds.SUPERVISED,), lead=SELDOM)
    RANKS = Group("Ranks", STAGED)
    ranks = number(
        "Total ranks (default: one per GPU, else per worker)",
        flags="-n --ranks",
        limits=batch_systems.RANKS,
    )
    ranks_per_node = number(
        "Ranks on each node", flags="--ranks-per-node --ntasks-per-node", limits=batch_systems.NODES
    )
    nodes = text(
        "Number of workers, or their names (default: all)",
        "N|NAMES",
        limits=batch_systems.NODES,
        check=values.node_choice,
    )
    once = flag("Run one process, on one node")
    backend = choice("Communication library", "auto", "gloo", "nccl", "mpi")
    launcher = choice(
        "Program that starts ranks",
        "mpirun",
        "torchrun",
        "srun",
        empty="auto",
        limits=(kinds.STAGED, kinds.NOT_ONCE, batch_systems.LAUNCHERS),
    )
    mpirun_args = texts(
        "Option for mpirun: '--map-by numa'; repeatable",
        "ARG",
        flags="--mpirun-arg",
        limits=(kinds.STAGED, kinds.MPIRUN),
    )
    SWEEP = Group("Ranks", SUPERVISED)
    sweep = texts(
        "Run once per value: lr=0.1,0.01; repeatable",
        "NAME=VALUES",
        check=check_axis,
        limits=(*SUPERVISED, kinds.NOT_ARRAY),
        settable=False,
    )
    array = text(
        "Run once per number: 0-99, 1,3,7 or 0-99%8", "NUMBERS", check=check_array, settable=False
    )
    PROGRAM = Group("Program")
    python_module = text(
        "Run a Python module instead of SCRIPT", "MODULE", flags="-m", settable=False
    )
    variables = texts(ENV, "NAME[=VALUE]", flags="-e --env")
    env_file = files(ENV_FILE)
    stage = file("Folder to copy (default: repository, else SCRIPT's)", "DIR")
    include = files("Copy PATH even if git ignores it; repeatable", "PATH")
    max_stage = number(
        "Copy at most this (default: 200MB)", "SIZE", group=MORE_PROGRAM, check=values.byte_size
    )
    source = files("Also compile FILE; repeatable (-e CFLAGS=...)", group=MORE_PROGRAM)
    PACKAGES = Group("Program", (kinds.SUPERVISED,))
    requirements = text("Packages: FILE or none (default: the project's)", "FILE")
    python = text(
        "Python version: 3.12 (default: that of the nodes)", "VERSION", check=values.python_version
    )
    setup = text("Run lines of sh once per node, before ranks", "LINES", check=values.not_blank)
    extra = texts("Also packages of this extra; repeatable", "NAME", group=MORE_PACKAGES)
    group = texts("Also packages of this dependency group; repeatable", "NAME", group=MORE_PACKAGES)
    stdin = flag(
        "Pass a pipe to rank 0; <FILE needs no option",
        group=MORE_PROGRAM,
        limits=SUPERVISED,
        settable=False,
    )
    allow_cpu = flag("Let GPU programs run without a GPU", group=MORE_PROGRAM)
    JOB = Group("Job", SUPERVISED)
    detach = flag("Start the job and return", flags="-d --detach")
    timeout = span("Stop the job after TIME: 30m, 8h or 90 (seconds)")
    hang_timeout = span("Stop an attempt that prints nothing for TIME: 10m")
    grace = span("Time to save after SIGTERM (default: 5s)")
    pass_signal = flag(
        "Give ranks the site's own signal, not SIGTERM",
        group=MORE_JOB,
        limits=(batch_systems.ONLY, *SUPERVISED),
    )
    retries = number("Retry after a failure, at most N times", check=values.at_least_zero)
    on_node_loss = choice(
        "If a node is lost", "replace", "shrink", "fail", limits=(kinds.REPLACED, kinds.SUPERVISED)
    )
    resume_args = text(
        "Arguments to resume: '--resume {snapshot}'", "ARGS", check=values.check_resume_args
    )
    keep_files = texts(
        "Outputs to copy to the launcher; repeatable", "GLOB", limits=OURS, check=values.pattern
    )
    sync = text(
        "Copy outputs to a folder here while the job runs",
        "DIR",
        limits=(*OURS, kinds.ATTENDED),
        check=values.local_folder,
    )
    now = flag("Do not wait for other jobs", group=MORE_JOB, limits=OURS)
    dry_run = flag("Print what would run, and why", limits=())
    emit = choice(
        "Print a standalone script",
        "sh",
        *(system.emits for system in BATCH_SYSTEMS.values()),
        group=MORE_JOB,
        limits=STAGED,
        settable=False,
    )
    interactive = flag(
        "Open a shell, or run SCRIPT, in this terminal",
        group=batch_systems.GROUP,
        limits=batch_systems.TERMINAL,
        settable=False,
    )
    own_folder = flag(
        "Run a batch script in its folder (login node only)",
        flags="--in-place",
        group=MORE_PROGRAM,
        limits=AT_SITES,
        settable=False,
    )
    modules = texts(
        "Environment module; repeatable", "NAME", flags="--module", group=batch_systems.GROUP
    )
    venv = text("Virtual environment on the nodes", "DIR", group=batch_systems.GROUP)
    container = text(
        "Apptainer image to run ranks in", "IMAGE", group=batch_systems.GROUP, limits=AT_SITES
    )

    passed = batch_systems.PASSED
    notify = text(
        "Tell a command or a URL when the job has ended",
        "CMD|URL",
        group=MORE_JOB,
        limits=(kinds.ATTENDED, *SUPERVISED),
    )
    yes = flag("Install packages of gigabytes without a question", flags="-y --yes", group=MORE_JOB)
    json = flag("Print one JSON object per line", group=GENERAL, limits=kinds.NOT_TERMINAL)

    @property
    def parts(self) -> tuple[str, ...]:
        """Extras and groups of the project, as uv takes them."""
        extras = (word for name in self.extra for word in ("--extra", name))
        return (*extras, *(word for name in self.group for word in ("--group", name)))

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
        found = {}
        for name, value in given.items():
            if isinstance(value, tuple):
                value = ("\n" if name.endswith("-arg") else ",").join(value)
            found[name] = "" if value is True else value
        return found


OF_PROGRAM = (Run.PROGRAM, Run.PACKAGES, Run.MORE_PROGRAM, Run.MORE_PACKAGES)


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
        "Return once the program runs; a later command removes the cluster", flags="-d --detach"
    )
    keep = flag("Leave the cluster running at the end")
    of_up = copy_options(Up, "--setup", groups=(Up.MACHINE, Up.EC2))
    of_run = copy_options(
        *(Run, "--detach", "--dry-run"),
        groups=(Run.RANKS, Run.SWEEP, *OF_PROGRAM, Run.JOB),
    )
    of_batch = copy_options(
        # `up` has options of the names of the last two.
        *(Run, "--interactive", "--reservation", "--gpus"),
        groups=(batch_systems.GROUP, *(option.group for option in batch_systems.PASSED)),
    )
    dry_run = flag("Print the plan of the cluster and change nothing", group=GENERAL)
    yes = YES
    json = JSON_LINES
    cluster = cluster_option(help="A new cluster (default: named after SCRIPT), or an attached one")


def _read_job(text: str, option: str) -> int | None:
    """`arrange` gives "" where only the program's arguments are given."""
    return values.job_number(text, option) if text else None


class Rerun(Common, heading=JOBS, module="run"):
    """Run a job again with the same program, files and options, here or on another cluster."""

    examples = (
        "clusterctl rerun",
        "clusterctl rerun 7 --resume --cluster other",
        "clusterctl rerun 7 --resume -- --resume checkpoint.pt",
    )
    job = whole(LAST_JOB.help, LAST_JOB.metavar, flags="", check=_read_job)
    failed = flag("Of a sweep: only the points that did not succeed")
    arguments = texts("Added to the program's arguments", "[-- ARGS...]", flags="")
    resume = flag("Start from the previous job's output files")
    ranks = number("Number of ranks (default: as before)", flags="-n --ranks")
    variables = texts(ENV, "NAME[=VALUE]", flags="-e --env")
    env_file = files(ENV_FILE)
    detach = flag("Start the job and return", flags="-d --detach")
    json = JSON_LINES
    cluster = cluster_option(help="Cluster to run on (default: that of the job)")

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """Without a number before it, all after `--` is still the program's."""
        end = cls.list_leading(words)[-1]
        return [*words[:end], "", *words[end:]] if words[end : end + 1] == ["--"] else words


# -------------------------------------------------------------------------------------------------
# Verbs about jobs that were started.


class Jobs(Common, heading=JOBS, module="jobs"):
    """List your jobs, including those of removed clusters, or the points of a sweep."""

    examples = ("clusterctl jobs", "clusterctl jobs 12", "clusterctl jobs --cluster lab --json")
    job = whole(
        "Show only this job; of a sweep, each point with its last metrics",
        "[JOB]",
        flags="",
        check=values.job_number,
    )
    all = flag("Also those of verify, bench and up, which have ended")
    cluster = cluster_option(help="Show only this cluster")


class Logs(Common, heading=JOBS, module="jobs"):
    """Show a job's output, or the metrics that it has printed."""

    examples = (
        "clusterctl logs",
        "clusterctl logs 7 --follow --rank 0",
        "clusterctl logs 7 --metrics --csv",
    )
    job = LAST_JOB
    follow = flag("Follow the output until the job ends; Ctrl-C detaches", flags="-f --follow")
    rank = whole("Show only this rank")
    metrics = flag("Show only the metrics that ranks have printed")
    csv = flag(
        "Print metrics as comma-separated values",
        limits=(kinds.limit_to("metrics"), kinds.exclude("follow", "json")),
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
    """Stop jobs on all nodes, and verify that no process of them is left."""

    examples = ("clusterctl cancel 7", "clusterctl cancel 7 8 9")
    jobs: Option[tuple[int, ...]] = Option(
        "Numbers of the jobs (default: the last one)",
        "[JOB...]",
        flags="",
        empty=(),
        many=True,
        check=values.job_number,
    )
    cluster = OF_JOB


class Fetch(Common, heading=JOBS, module="jobs"):
    """Copy the files that a job wrote from its nodes to this machine."""

    examples = ("clusterctl fetch", "clusterctl fetch 7 --to results")
    job = LAST_JOB
    to = file("Folder (default: job-N here)", "DIR")
    cluster = OF_JOB


class Doctor(Common, heading=JOBS, module="insight"):
    """Say why a job hangs or has failed.

    Looks at all its nodes at once: stacks of the ranks, memory, disks, clocks, links, and what the
    ranks printed. With --cluster, first at machines that do not run or answer: the end of their
    consoles.
    """

    examples = ("clusterctl doctor", "clusterctl doctor 7 --json", "clusterctl doctor -c lab")
    job = LAST_JOB
    cluster = cluster_option(help="Check the machines of this cluster, then its last job")


class Diff(Common, heading=JOBS, module="insight"):
    """Compare two jobs: how they were started, the files they ran with, and how they ended."""

    examples = ("clusterctl diff 7 9",)
    first = number("Number of a job", "JOB", flags="", check=values.job_number)
    second = number("Number of the other one", "OTHER", flags="", check=values.job_number)
    cluster = cluster_option(help="Cluster of both jobs (default: any)")


class Top(Common, heading=JOBS, module="insight"):
    """Show what the ranks of a job and their nodes use: steps, processors, memory, network, cost.

    Refreshes in place on a terminal until the job ends. Nothing is installed on the nodes.
    """

    examples = ("clusterctl top", "clusterctl top 7 --once", "clusterctl top 7 --json")
    job = LAST_JOB
    interval = span("Time between updates (default: 2s)")
    once = flag("Show one frame and end")
    json = JSON_LINES
    cluster = OF_JOB


class Report(Common, heading=JOBS, module="insight"):
    """Write one page about a cluster or a job: jobs, curves of metrics, measurements, cost.

    The page loads nothing from the network.
    """

    examples = ("clusterctl report", "clusterctl report 7 --output job-7.html")
    wanted = maybe(
        "Number of a job or name of a cluster (default: the only one)", "[JOB|CLUSTER]", flags=""
    )
    output = file("File, or - for stdout (default: report-NAME.html here)")


# -------------------------------------------------------------------------------------------------
# Verbs that measure how fast a cluster and a program are: each has two words.


BACKENDS = ("gloo", "mpi", "nccl")
SMALLEST = 8
"""Bytes of the first message that `reduce_all.py` sends."""


def parse_backends(text: str, option: str) -> tuple[str, ...]:
    return tuple(values.one_of(BACKENDS, name, option) for name in values.names(text, option))


def parse_counts(text: str, option: str) -> tuple[int, ...]:
    """Different numbers of ranks, the smallest first."""
    check = values.integer(1, 100_000)
    words = [word.strip() for word in text.split(",") if word.strip()]
    found = tuple(sorted({check(word, option) for word in words}))
    if not found:
        raise UsageError(f"{option} {text!r}: expected numbers", hint=f"for example {option} 1,2,4")
    return found


def parse_message_size(text: str, option: str) -> int:
    size = values.byte_size(text, option)
    if size < SMALLEST:
        raise UsageError(
            f"{option} {text}: the smallest message has {SMALLEST} bytes",
            hint=f"for example {option} 8MB",
        )
    return size


REPEATS = number(
    "Repeat each N times (default: 3)", flags="--repeats", check=values.integer(1, 1000)
)
NOW = flag("Measure even while a job runs", flags="--now")


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
        "Backends (default: all that the nodes have)", "gloo,mpi,nccl", check=parse_backends
    )
    max_size = number("Largest message (default: 8MB)", "SIZE", check=parse_message_size)
    ranks = number("Number of ranks (default: one per GPU or worker)", flags="-n --ranks")
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
        "Numbers of ranks: 1,2,4", "N,N,...", flags="-n --ranks", check=parse_counts, settable=False
    )
    repeats = REPEATS
    now = NOW
    of_run = (
        Run.backend,
        Run.launcher,
        *copy_options(Run, groups=OF_PROGRAM),
        Run.timeout,
    )


# -------------------------------------------------------------------------------------------------
# Verbs about nodes and about this machine.


MACHINES = "Nodes and this machine"


class Ssh(Common, heading=MACHINES, module="access"):
    """Open a shell on a node, or run one command there."""

    ends_at_argument = True
    examples = ("clusterctl ssh", "clusterctl ssh worker-1 -- nvidia-smi")
    node = text("Node (default: the launcher)", "[NODE]", flags="")
    command = texts("Command to run instead of a shell", "[COMMAND...]", flags="")
    timeout = amount(
        "With --json: stop the command after this time (default: 600)",
        "SECONDS",
        check=values.seconds,
        empty=600.0,
        limits=kinds.limit_to("json"),
    )

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """Options before the command are ours, also between NODE and the command, which begins at
        `--` or at the first word after NODE; all from there on is the command's."""
        end = cls.list_leading(words)[-1]
        ours, rest, node = words[:end], words[end:], ""
        if rest and rest[0] != "--":
            node, *rest = rest
            end = cls.list_leading(rest)[-1]
            ours, rest = ours + rest[:end], rest[end:]
        return [*ours, "--", node, *rest[rest[:1] == ["--"] :]]


class Cp(Common, heading=MACHINES, module="access"):
    """Copy a file or a folder to or from a node."""

    examples = ("clusterctl cp data.csv worker-1:", "clusterctl cp worker-1:out.txt .")
    source = text("Path here, or NODE:PATH", "SOURCE", flags="")
    target = text("NODE:PATH, or a path here", "TARGET", flags="")
    timeout = amount("Time limit (default: 3600)", "SECONDS", check=values.seconds, empty=3600.0)


class Forward(Common, heading=MACHINES, module="access"):
    """Make a port of a node, such as TensorBoard's or Jupyter's, reachable on this machine."""

    examples = ("clusterctl forward worker-1:6006", "clusterctl forward 8888 --port 9000")
    target = text("Node (default: the launcher) and port", "[NODE:]PORT", flags="")
    port = number("Port on this machine (default: the same)", check=values.integer(1, 65535))


class SshConfig(Common, heading=MACHINES, module="access", name="ssh-config"):
    """Let plain ssh, rsync and editors reach the nodes as CLUSTER-NODE.

    Adds one line to ~/.ssh/config, for all clusters. A cluster that is removed disappears from it.
    """

    examples = ("clusterctl ssh-config", "ssh default-worker-1")
    show = flag("Print the line and change nothing", flags="--print", settable=False)
    remove = flag("Remove the line again", limits=kinds.exclude("print"), settable=False)
    cluster = cluster_option(kinds.NEVER)


class Init(Common, heading=MACHINES, module="access"):
    """Write a commented clusterctl.toml for the project in this folder."""

    examples = ("clusterctl init", "clusterctl init --print")
    only_print = flag("Print it, and write no file", flags="--print", settable=False)
    cluster = cluster_option(kinds.NEVER)


class Check(Common, heading=MACHINES, module="access"):
    """Check this machine: tools, packages, credentials and clusters.

    With --real, three small machines are created on EC2 and removed, for at most $0.10.
    """

    settings_of = ("up",)
    examples = ("clusterctl check", "clusterctl check --real")
    real = flag("Create a cluster on EC2, and remove it again")
    REAL = Group(OPTIONS.heading, (kinds.limit_to("real"),))
    of_up: tuple[Option[Any], ...] = (
        *(Up.region.move(REAL), Up.ssh_cidr.move(REAL), Up.vpc.move(REAL)),
        *(Up.subnet.move(REAL), Up.tag.move(REAL), Up.runtime.move(REAL)),
    )
    yes = YES
    cluster = cluster_option(kinds.NEVER)


# -------------------------------------------------------------------------------------------------
# Verbs about data sets and node images: each has two words.


DATA = "Data sets and images"
_WORKERS = ("nvidia", "cpu", "amd")
_RECIPES = "launcher, cpu or nvidia, or your own Dockerfile"


class DataGet(Common, heading=DATA, module="data"):
    """Download data sets and copy them to $CLUSTERCTL_DATA on every worker.

    A URL (https:// or s3://) is downloaded by one worker, which passes it on to the others.
    A download that broke off is resumed, and its checksum is verified. A token for
    https:// is taken from CLUSTERCTL_HTTPS_TOKEN.
    """

    examples = (
        "clusterctl data get mnist",
        "clusterctl data get cifar10 --no-push",
        "clusterctl data get s3://my-bucket/train --name images",
    )
    names = texts("mnist, cifar10, imagenette, or a URL", "NAME|URL...", flags="")
    OF_URL = Group(OPTIONS.heading, (kinds.limit_to("url", "works only with a URL"),))
    name = text("Name of the folder on the workers", "NAME", group=OF_URL)
    sha256 = text("Checksum of the file", "HEX", group=OF_URL, check=values.sha256_hex)
    mirror = text("URL of a folder with the files", "URL", group=OPTIONS, env="CLUSTERCTL_MIRROR")
    no_push = flag("Do not copy to the workers", group=OPTIONS)
    cluster = cluster_option(kinds.exclude("no-push"))


class DataPush(Common, heading=DATA, module="data"):
    """Copy data sets to $CLUSTERCTL_DATA on every worker."""

    examples = ("clusterctl data push mnist", "clusterctl data push ./images --name images")
    names = texts("Data set, or a folder", "NAME...", flags="")
    name = maybe("Name of the folder on the workers", "NAME")


class DataList(Common, heading=DATA, module="data"):
    """List the data sets, and which of them are on this machine."""

    examples = ("clusterctl data list",)
    cluster = cluster_option(kinds.NEVER)


class DataIndex(Common, heading=DATA, module="data"):
    """Write a YAML index of image folders."""

    passes_options = True
    examples = ("clusterctl data index train val",)
    words = texts("Folders and options of the program", "TRAIN VALIDATION...", flags="")
    json = flag(group=GENERAL, limits=kinds.NEVER)
    cluster = cluster_option(kinds.NEVER)


class ImageBuild(Common, heading=DATA, module="data"):
    """Build a node image from its recipe, or your own Dockerfile, with this machine's Docker."""

    examples = ("clusterctl image build cpu", "clusterctl image build lab/Dockerfile")
    name = text(_RECIPES, "NAME|FILE", flags="")
    push = text("Push the image there, as REPO/NAME", "REPO")
    base = text("Build on this Debian image", "IMAGE")
    cluster = cluster_option(kinds.NEVER)


class ImageAmi(Common, heading=DATA, module="data"):
    """Make a machine image on EC2 with what `up` installs on workers.

    One worker is set up as by `up`, and removed again. Later clusters use the image by
    themselves; its snapshot costs money until --remove. Without KIND, the images are listed.
    """

    settings_of = ("up",)
    examples = ("clusterctl image ami nvidia", "clusterctl image ami nvidia --remove")
    kind = maybe("nvidia, cpu or amd", "[KIND]", flags="", check=partial(values.one_of, _WORKERS))
    remove = flag(
        "Remove the images of that kind, with their snapshots",
        limits=kinds.limit_to("kind", "removes the images of a KIND", "name one"),
        settable=False,
    )
    everyones = flag(
        "With --remove: also those that other users have made",
        limits=kinds.limit_to("remove", "works only with --remove", "add it"),
        settable=False,
    )
    MAKING = Group(OPTIONS.heading, (kinds.limit_to("making", "works only to make an image"),))
    region = Up.region.move(OPTIONS)
    of_up: tuple[Option[Any], ...] = (
        *(Up.runtime.move(MAKING), Up.ssh_cidr.move(MAKING), Up.vpc.move(MAKING)),
        *(Up.subnet.move(MAKING), Up.tag.move(MAKING)),
    )
    yes = YES
    cluster = cluster_option(kinds.NEVER)


# -------------------------------------------------------------------------------------------------
# All of them.


VERBS = Verb.known
FAMILIES = {
    "bench": "Measure all-reduces, and how a program scales.",
    "data": "Download, copy and list data sets.",
    "image": "Build node images, and machine images on EC2.",
}
"""Words that verbs of two words begin with."""


def find_limit(verb: str, option: str, circumstances: Collection[str]) -> Limit | None:
    """Why the option (as it is written: `--spot`, `-pe`) has no effect there; None where it has.
    One that the verb does not have is srun's, and for a batch system."""
    options = (item.limits for item in VERBS[verb].options().values() if option in item.flags)
    limits = next(options, (batch_systems.ONLY,))
    return next((item for item in limits if not item.holds(circumstances)), None)

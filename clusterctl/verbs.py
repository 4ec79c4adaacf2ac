"""The verbs, in the order of `clusterctl --help`, each with its options (see `options`)."""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest
from typing import Any

from clusterctl import option_limits as where
from clusterctl.errors import UsageError
from clusterctl.option_limits import Limit
from clusterctl.options import (
    ARGUMENTS,
    DEFAULT_NAME,
    GENERAL,
    Common,
    Group,
    Named,
    Option,
    Verb,
    amount,
    budget,
    byte_size,
    choice,
    cluster_option,
    duration,
    expression,
    file,
    files,
    flag,
    indices,
    life_time,
    maybe,
    name_argument,
    names,
    number,
    pattern,
    seconds,
    text,
    texts,
    whole,
)

CLUSTERS, JOBS, MACHINES = "Clusters", "Jobs", "Nodes and this machine"
DATA = "Data sets and images"

OPTIONS = Group("Options")
YES = flag("-y --yes", GENERAL, "Do not ask for confirmation")
JSON_LINES = flag("--json", GENERAL, "Print one JSON object per line")
JOB = number("", ARGUMENTS, "Number of the job", "JOB", check=whole(0))
LAST_JOB = Option[int | None](
    "", ARGUMENTS, "Number of the job (default: the last one)", "[JOB]", empty=None, check=whole(0)
)
NEW_NAME = name_argument(DEFAULT_NAME)
ENV = "Variable for all ranks; repeatable"
ENV_FILE = "Secret NAME=VALUE lines; repeatable"


class Up(Named, heading=CLUSTERS, module="clusters"):
    """Create a cluster, resume one, or change its number of workers."""

    examples = (
        "clusterctl up",
        "clusterctl up --gpu g4dn --ttl 4h --budget 20",
        "clusterctl up --provider docker --gpus all lab",
    )
    MACHINE = Group("Machines")
    EC2 = Group("Amazon EC2", (where.EC2,))

    name = NEW_NAME
    cluster = cluster_option(help=f"Name of the cluster (default: {DEFAULT_NAME})")
    provider = text(
        "--provider", MACHINE, "local, docker or ec2 (default: as options imply)", "NAME"
    )
    workers = number("--workers", MACHINE, "Number of workers besides the launcher (default: 2)")
    ttl = amount(
        "--ttl", MACHINE, "Shut down after 30m, 8h, 2d (default on EC2: 8h)", "TIME", life_time
    )
    image = texts(
        "--image",
        MACHINE,
        "Container image of all nodes, or of a kind of node; repeatable (Docker and EC2)",
        "[KIND=]IMAGE",
        limits=where.IMAGE,
    )
    gpus = Option[tuple[str, ...]](
        "--gpus",
        MACHINE,
        "This machine's GPUs for the workers (Docker)",
        "0,1|all",
        empty=(),
        check=indices,
        limits=where.DOCKER,
    )
    gpu = texts("--gpu", EC2, "GPU workers: g4dn or T4, g4ad, g5, g6; repeatable", "FAMILY[:N]")
    cpu = texts("--cpu", EC2, "CPU workers of this instance type; repeatable", "TYPE[:N]")
    instance_type = text("--instance-type", EC2, "Instance type of the workers", "TYPE")
    launcher_type = text("--launcher-type", EC2, "Type of the launcher (default: t3.micro)", "TYPE")
    region = text("--region", EC2, "Region (default: that of the AWS CLI)", "NAME")
    regions = Option[tuple[str, ...]](
        "--regions", EC2, "Regions to try, in this order", "A,B", empty=(), check=names
    )
    zones = Option[tuple[str, ...]](
        "--zones", EC2, "Availability zones to try, in this order", "A,B", empty=(), check=names
    )
    spot = flag("--spot", EC2, "Use spot workers: cheaper, may be interrupted")
    spot_fallback = flag("--spot-fallback", EC2, "Use on-demand workers if no spot is available")
    runtime = choice(
        "--runtime", EC2, "Run ranks in (default: docker)", "docker", "host", limits=where.RUNTIME
    )
    ami = text("--ami", EC2, "Machine image of the workers", "ID")
    disk = number(
        "--disk", EC2, "Disk size of each worker, 8 to 16384", "GB", check=whole(8, 16384)
    )
    efa = flag("--efa", EC2, "Use Elastic Fabric Adapters, on instance types that have them")
    reservation = text("--reservation", EC2, "Capacity Reservation or Block of the workers", "ID")
    vpc = text("--vpc", EC2, "Make the machines in this VPC (default: make one)", "ID")
    subnet = Option[tuple[str, ...]](
        "--subnet",
        EC2,
        "Subnets to make them in, tried in this order",
        "A,B",
        empty=(),
        check=names,
    )
    ssh_cidr = text("--ssh-cidr", EC2, "Networks that may connect (default: your address)", "A,B")
    max_hourly = amount("--max-hourly", EC2, "Refuse what costs more per hour", "USD", budget)
    budget = amount("--budget", EC2, "Shut down before it costs more than this", "USD", budget)
    boot_timeout = amount(
        "--boot-timeout", EC2, "Time for machines to boot (default: 10m)", "TIME", duration
    )
    dry_run = flag("--dry-run", GENERAL, "Print the plan and change nothing")
    yes = YES


class Down(Named, heading=CLUSTERS, module="clusters"):
    """Remove a cluster and verify that nothing of it is left.

    Job outputs that you have not fetched are deleted only with your consent. On a terminal you are
    asked; with --yes, with --json or without a terminal, add --fetch or --discard.
    """

    examples = ("clusterctl down", "clusterctl down lab --yes --fetch")
    fetch = flag("--fetch", OPTIONS, "Save unfetched job outputs to job-N in this folder first")
    discard = flag("--discard", OPTIONS, "Delete unfetched job outputs")
    force = flag("--force", OPTIONS, "Save no logs or outputs, and do not ask")
    yes = YES


class Status(Named, heading=CLUSTERS, module="clusters"):
    """Show the nodes, age, cost and running jobs of a cluster."""

    examples = ("clusterctl status", "clusterctl status lab --live")
    live = flag("--live", OPTIONS, "Query the nodes now")


class List(Common, heading=CLUSTERS, module="listing", function="list_clusters"):
    """List your clusters, or with --all every cluster in your AWS account."""

    examples = ("clusterctl list", "clusterctl list --all")
    everywhere = flag("--all", OPTIONS, "Ask AWS, in all regions, for everybody's clusters")
    cluster = cluster_option(help="Show only this cluster")


class Verify(Named, heading=CLUSTERS, module="insight"):
    """Measure the nodes and links of a cluster, and compare them with what they promise.

    Exit code 8 if something is below its limit.
    """

    examples = ("clusterctl verify", "clusterctl verify lab --quick")
    quick = flag("--quick", OPTIONS, "Take about five seconds: no GEMM, no all-reduce")
    now = flag("--now", OPTIONS, "Measure also while a job runs")


class Attach(Named, heading=CLUSTERS, module="attach"):
    """Use machines that already exist: SSH hosts, or a site with Slurm or Grid Engine."""

    examples = (
        "clusterctl attach lab --hosts hosts.txt --user me",
        "clusterctl attach hpc --slurm me@login.example.org",
        "clusterctl attach --sge",
    )

    name = NEW_NAME
    cluster = cluster_option(help=f"Name of the cluster (default: {DEFAULT_NAME})")
    hosts = file("--hosts", OPTIONS, "SSH hosts, one HOST [slots=N] ... per line")
    slurm = maybe("--slurm", OPTIONS, "Site with Slurm (default: here)", "[LOGIN]")
    sge = maybe("--sge", OPTIONS, "Site with Grid Engine (default: here)", "[LOGIN]")
    user = text("--user", OPTIONS, "User to log in as", "NAME", limits=where.HERE)
    identity = file(
        "--identity", OPTIONS, "SSH private key (default: ssh_config and agent)", limits=where.HERE
    )
    workdir = text(
        "--workdir",
        OPTIONS,
        "Folder for files, shared by a site's nodes (default: ~/.clusterctl)",
        "DIR",
    )
    bootstrap = flag(
        "--bootstrap", OPTIONS, "Install missing programs with sudo", limits=where.HOSTS
    )

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """`--slurm` and `--sge` may stand alone: then this machine is the login node."""
        found: list[str] = []
        for word, following in zip_longest(words, words[1:], fillvalue="-"):
            found.append(word)
            if word in ("--slurm", "--sge") and following.startswith("-"):
                found.append("")
        return found


class Detach(Named, heading=CLUSTERS, module="attach"):
    """Stop using attached machines: remove clusterctl's files and keys, nothing else."""

    examples = ("clusterctl detach lab",)
    force = flag("--force", OPTIONS, "Save nothing, do not ask, and skip hosts that do not answer")
    yes = YES


class Extend(Named, heading=CLUSTERS, module="money"):
    """Move the deadline of a cluster. An earlier deadline needs your consent."""

    examples = ("clusterctl extend --ttl 4h",)
    ttl = amount("--ttl", OPTIONS, "New time to live, from now on: 30m, 8h, 2d", "TIME", life_time)
    yes = YES


class Stop(Named, heading=CLUSTERS, module="money"):
    """Stop the machines of a cluster on EC2. Their disks stay, and cost money, until the deadline.

    Running jobs are ended first, with SIGTERM.
    """

    examples = ("clusterctl stop", "clusterctl stop lab --yes")
    yes = YES


class Start(Named, heading=CLUSTERS, module="money"):
    """Start the machines of a stopped cluster again, with their disks and new addresses."""

    examples = ("clusterctl start lab",)
    yes = YES


class Cost(Common, heading=CLUSTERS, module="spending", function="show"):
    """Show what was spent, by day, cluster or job, also on clusters that are gone."""

    examples = ("clusterctl cost --since 30d", "clusterctl cost --by job --csv")
    since = amount(
        "--since", OPTIONS, "Only of this time (default: 30d)", "TIME", duration, 30 * 86400.0
    )
    by = choice("--by", OPTIONS, "Rows (default: day)", "day", "cluster", "job", empty="day")
    csv = flag("--csv", OPTIONS, "Print comma-separated values")
    cluster = cluster_option(help="Only of clusters of this name")


class Allow(Common, heading=CLUSTERS, module="clusters"):
    """Set the networks that may connect to a cluster on EC2: those given, and no others.

    Without any, only your present address: run it if your address has changed.
    """

    examples = ("clusterctl allow", "clusterctl allow 203.0.113.7 198.51.100.0/24")
    networks = texts("", ARGUMENTS, "Networks (default: your present address)", "[CIDR...]")


class Gc(Common, heading=CLUSTERS, module="money"):
    """Find clusters on EC2 without a local record, and remove them or take one back.

    It searches all regions of the account. --yes removes your own clusters, and one of somebody
    else only if -c names its id.
    """

    examples = ("clusterctl gc --dry-run", "clusterctl gc --adopt lab --region eu-west-1")
    adopt = text(
        "--adopt", OPTIONS, "Take this cluster back instead of removing it", "NAME", settable=False
    )
    region = texts("--region", OPTIONS, "Region (default: all); repeatable", "NAME")
    dry_run = flag("--dry-run", GENERAL, "Print what is found and change nothing")
    cluster = cluster_option(where.NOT_ADOPT, help="Remove only this cluster")
    yes = YES


STAGED = (where.STAGED,)
BATCH = Group("Batch systems (Slurm and Grid Engine)", (where.BATCH, where.STAGED))
BOTH = Group(BATCH.heading, (where.BATCH,), True, "Passed to either")
SLURM = Group(BATCH.heading, (where.SLURM,), True, "Passed to Slurm")
SGE = Group(BATCH.heading, (where.SGE,), True, "Passed to Grid Engine")
SHORT = {"-N": "--nodes", "-p": "--partition", "-t": "--time"}
"""Short options of sbatch that `run` does not have, and what to write."""


def _passed(group: Group, *names: str, **more: Any) -> tuple[Option[str], ...]:
    """Options that go to the batch system as they are."""
    return tuple(text(f"--{name}", group, **more) for name in names)


class Started(Common):
    """A verb with a program: its options, the program, and all that is the program's."""

    ends_at_argument = True
    command = texts(
        *("", ARGUMENTS, "Path, name of a bundled program, or -- COMMAND"), "SCRIPT [ARGS...]"
    )

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
            if cls.spelled(word)[0] == "-m":
                index += cls.width(word)
                return [*words[:index], "--", *words[index:]]
            if word == "-np":
                count = next(iter(words[index + 1 :]), "N")
                raise UsageError("unknown option -np", hint=f"did you mean `-n {count}`?")
            if word[:2] in SHORT and word != "-pe":
                raise UsageError(
                    f"unknown option {word[:2]}", hint=f"did you mean {SHORT[word[:2]]}?"
                )
            index += cls.width(word)
        return words


class Run(Started, heading=JOBS, module="start"):
    """Run a program on all ranks of the cluster and follow its output. Options after SCRIPT are its
    own."""

    examples = (
        "clusterctl run train.py --epochs 3",
        "clusterctl run --ranks 4 --env LR=0.1 -- python -m package.train",
        "clusterctl run --partition gpu --gpus-per-node 4 --time 2:00:00 train.py",
    )
    RANKS, PROGRAM = Group("Ranks", STAGED), Group("Program", STAGED)
    JOB = Group("Job", (where.STAGED, where.SUPERVISED))

    ranks = number(
        "-n --ranks",
        RANKS,
        "Number of ranks (default: one per GPU, else per worker)",
        limits=where.NOT_SGE_TERMINAL,
    )
    ranks_per_node = number(
        "--ranks-per-node --ntasks-per-node", RANKS, "Ranks on each node", limits=where.NODES
    )
    nodes = number("--nodes", RANKS, "Number of workers (default: all)", limits=where.NODES)
    once = flag("--once", RANKS, "Run it once, on one node")
    backend = choice("--backend", RANKS, "Communication library", "auto", "gloo", "nccl", "mpi")
    launcher = choice(
        "--launcher", RANKS, "Program that starts ranks", "mpirun", "torchrun", "srun", empty="auto"
    )
    python_module = text("-m", PROGRAM, "Run a Python module, not SCRIPT", "MODULE", settable=False)
    variables = texts("-e --env", PROGRAM, ENV, "NAME[=VALUE]")
    env_file = files("--env-file", PROGRAM, ENV_FILE)
    stage = file("--stage", PROGRAM, "Folder to copy (default: the repository)", "DIR")
    max_stage = number(
        "--max-stage", PROGRAM, "Copy at most this (default: 200MB)", "SIZE", check=byte_size
    )
    source = files("--source", PROGRAM, "Compile with SCRIPT; repeatable (flags: -e CFLAGS=...)")
    requirements = text(
        *("--requirements", PROGRAM, "Packages: FILE or none (default: uv.lock)"),
        "FILE",
        limits=(where.STAGED, where.SUPERVISED),
    )
    allow_cpu = flag("--allow-cpu", PROGRAM, "Let GPU programs run without a GPU")
    detach = flag("-d --detach", JOB, "Start the job and return")
    timeout = amount("--timeout", JOB, "Stop the job after this time: 30m", "TIME", duration)
    hang_timeout = amount(
        "--hang-timeout",
        JOB,
        "End an attempt silent for so long: 10m",
        "TIME",
        duration,
    )
    retries = number("--retries", JOB, "Retry after a failure, at most N times", check=whole(0))
    on_node_loss = choice(
        "--on-node-loss",
        JOB,
        "Continue on new nodes, or on those left",
        "replace",
        "shrink",
        "fail",
        limits=(where.REPLACED, where.SUPERVISED, where.FOLLOWED),
    )
    keep_files = texts(
        "--keep-files",
        JOB,
        "Outputs to copy to the launcher meanwhile; repeatable",
        "GLOB",
        limits=(where.COPIED, where.SUPERVISED),
        check=pattern,
    )
    now = flag("--now", JOB, "Do not wait for other jobs", limits=(where.DIRECT, where.SUPERVISED))
    dry_run = flag("--dry-run", JOB, "Print what would run, and why", limits=())
    emit = choice(
        "--emit",
        JOB,
        "Print a standalone script",
        "sh",
        "sbatch",
        "qsub",
        limits=STAGED,
        settable=False,
    )
    interactive = flag(
        "--interactive",
        BATCH,
        "Open a shell, or run SCRIPT, on nodes",
        limits=where.TERMINAL,
        settable=False,
    )
    modules = texts(
        "--module", BATCH, "Environment module; repeatable", "NAME", old="environment_module"
    )
    venv = text("--venv", BATCH, "Virtual environment on the nodes", "DIR")
    container = text("--container", BATCH, "Apptainer image to run ranks in", "IMAGE")

    passed = (
        *_passed(BOTH, "account", "job-name", "mail-type", "mail-user", "time"),
        flag("--requeue", BOTH, limits=(where.BATCH, where.SUPERVISED, where.ENDS_ONCE)),
        *_passed(SLURM, "constraint", "exclude", "gpu-bind", "gpus-per-task", "gres"),
        *_passed(SLURM, "mem-per-gpu", "nodelist", "qos", "reservation"),
        flag("--exclusive", SLURM),
        *_passed(SLURM, "cpus-per-task", limits=where.on_sge("-pe NAME SLOTS with --ranks N")),
        *_passed(SLURM, "gpus", "gpus-per-node", limits=where.GPUS_ON_SGE),
        *_passed(SLURM, "mem", "mem-per-cpu", limits=where.MEMORY_ON_SGE),
        *_passed(SLURM, "partition", limits=where.on_sge("--queue NAME")),
        *_passed(SLURM, "signal", limits=(where.SLURM, where.SUPERVISED)),
    )

    pe = Option(
        "-pe",
        SGE,
        "Grid Engine: parallel environment and slots",
        "NAME SLOTS",
        empty="",
        words=2,
        check=lambda words, option: f"{words[0]} {whole(1)(words[1], option)}",
    )
    resources = texts("-l", SGE, "Grid Engine: resource; repeatable", "NAME=VALUE", old="resource")
    queue = text("--queue", SGE)
    project = text("--project", SGE)
    json = flag("--json", GENERAL, "Print one JSON object per line", limits=where.NOT_TERMINAL)

    def native(self) -> dict[str, str]:
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


def _of(verb: type[Verb], *without: str, groups: tuple[Group, ...]) -> tuple[Option[Any], ...]:
    """The options of another verb that stand under these headings."""
    found = (item for item in verb.options().values() if item.group in groups and item.flags)
    return tuple(item for item in found if item.flag not in without)


class Launch(Started, heading=JOBS, module="launch"):
    """Create a cluster, run a program on it, bring its output files here, and remove the cluster.

    Takes the options of `up` and `run`. The exit code is the program's.
    """

    settings_of = ("up", "run")
    examples = (
        "clusterctl launch train.py --epochs 3",
        "clusterctl launch --gpu g4dn:4 --spot --budget 20 train.py",
    )
    keep = flag("--keep", OPTIONS, "Leave the cluster running at the end")
    of_up = _of(Up, groups=(Up.MACHINE, Up.EC2))
    of_run = _of(
        Run, "--detach", "--now", "--emit", "--dry-run", groups=(Run.RANKS, Run.PROGRAM, Run.JOB)
    )
    dry_run = flag("--dry-run", GENERAL, "Print the plan of the cluster and change nothing")
    yes = YES
    json = JSON_LINES
    cluster = cluster_option(help="Name of the new cluster (default: that of the program)")


class Rerun(Common, heading=JOBS, module="start"):
    """Run a job again with the same program, files and options, here or on another cluster."""

    examples = (
        "clusterctl rerun",
        "clusterctl rerun 7 --resume --cluster other",
        "clusterctl rerun 7 --resume -- --resume checkpoint.pt",
    )
    job = Option[int | None](
        *("", ARGUMENTS, LAST_JOB.help, LAST_JOB.metavar),
        empty=None,
        check=lambda text, option: whole(0)(text, option) if text else None,
    )
    arguments = texts("", ARGUMENTS, "Added to the program's arguments", "[-- ARGS...]")
    resume = flag("--resume", OPTIONS, "Start from the previous job's output files")
    ranks = number("-n --ranks", OPTIONS, "Number of ranks (default: as before)")
    variables = texts("-e --env", OPTIONS, ENV, "NAME[=VALUE]")
    env_file = files("--env-file", OPTIONS, ENV_FILE)
    detach = flag("-d --detach", OPTIONS, "Start the job and return")
    json = JSON_LINES

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """Without a number before it, all after `--` is still the program's."""
        end = cls.leading(words)
        return [*words[:end], "", *words[end:]] if words[end : end + 1] == ["--"] else words


class Jobs(Common, heading=JOBS, module="jobs"):
    """List your jobs, including those of removed clusters."""

    examples = ("clusterctl jobs", "clusterctl jobs --cluster lab --json")
    cluster = cluster_option(help="Show only this cluster")


class Logs(Common, heading=JOBS, module="jobs"):
    """Show a job's output."""

    examples = ("clusterctl logs", "clusterctl logs 7 --follow --rank 0")
    job = LAST_JOB
    follow = flag("-f --follow", OPTIONS, "Follow the output until the job ends; Ctrl-C detaches")
    rank = Option[int | None](
        "--rank", OPTIONS, "Show only this rank", "N", empty=None, check=whole(0)
    )
    tail = number("--tail", OPTIONS, "Show the last N lines of each rank", limits=where.FOLLOWED)
    grep = text("--grep", OPTIONS, "Show lines that match an expression", "REGEX", check=expression)
    json = JSON_LINES


class Cancel(Common, heading=JOBS, module="jobs"):
    """Stop a job on all nodes, and verify that no process of it is left."""

    examples = ("clusterctl cancel 7",)
    job = LAST_JOB


class Fetch(Common, heading=JOBS, module="jobs"):
    """Copy the files that a job wrote from its nodes to this machine."""

    examples = ("clusterctl fetch", "clusterctl fetch 7 --to results")
    job = LAST_JOB
    to = file("--to", OPTIONS, "Folder (default: job-N here)", "DIR")


class Doctor(Common, heading=JOBS, module="insight"):
    """Say why a job hangs or has failed.

    Looks at all its nodes at once: stacks of the ranks, memory, disks, clocks, links, and what the
    ranks printed.
    """

    examples = ("clusterctl doctor", "clusterctl doctor 7 --bundle job-7.tar.gz")
    job = LAST_JOB
    bundle = file("--bundle", OPTIONS, "Write all that was seen, without secrets", settable=False)


class Diff(Common, heading=JOBS, module="insight"):
    """Compare two jobs: how they were started, the files they ran with, and how they ended."""

    examples = ("clusterctl diff 7 9",)
    first = number("", ARGUMENTS, "Number of a job", "JOB", check=whole(0))
    second = number("", ARGUMENTS, "Number of the other one", "OTHER", check=whole(0))


class Ssh(Common, heading=MACHINES, module="clusters"):
    """Open a shell on a node, or run one command there."""

    ends_at_argument = True
    examples = ("clusterctl ssh", "clusterctl ssh worker-1 -- nvidia-smi")
    node = text("", ARGUMENTS, "Node (default: the launcher)", "[NODE]")
    command = texts("", ARGUMENTS, "Command to run instead of a shell", "[COMMAND...]")
    timeout = amount(
        "--timeout",
        OPTIONS,
        "With --json: stop the command after this time (default: 600)",
        "SECONDS",
        seconds,
        empty=600.0,
        limits=where.WITH_JSON,
    )

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """Options before the command are ours, also between NODE and the command, which begins at
        `--` or at the first word after NODE; all from there on is the command's."""
        end = cls.leading(words)
        ours, rest, node = words[:end], words[end:], ""
        if rest and rest[0] != "--":
            node, *rest = rest
            end = cls.leading(rest)
            ours, rest = ours + rest[:end], rest[end:]
        return [*ours, "--", node, *rest[rest[:1] == ["--"] :]]


class SshConfig(Common, heading=MACHINES, module="machine", function="ssh_config"):
    """Let plain ssh, rsync and editors reach the nodes as CLUSTER-NODE.

    Adds one line to ~/.ssh/config, for all clusters. A cluster that is removed disappears from it.
    """

    examples = ("clusterctl ssh-config", "ssh default-worker-1")
    show = flag("--print", OPTIONS, "Print the line and change nothing", settable=False)
    remove = flag(
        "--remove", OPTIONS, "Take the line out again", limits=where.NOT_PRINTED, settable=False
    )
    cluster = cluster_option(where.ALL_CLUSTERS)


class Forward(Common, heading=MACHINES, module="clusters"):
    """Make a port of a node, such as TensorBoard's or Jupyter's, reachable on this machine."""

    examples = ("clusterctl forward worker-1:6006", "clusterctl forward 8888 --port 9000")
    target = text("", ARGUMENTS, "Node (default: the launcher) and port", "[NODE:]PORT")
    port = number(
        "--port", OPTIONS, "Port on this machine (default: the same)", check=whole(1, 65535)
    )


class Cp(Common, heading=MACHINES, module="clusters"):
    """Copy a file or a folder to or from a node."""

    examples = ("clusterctl cp data.csv worker-1:", "clusterctl cp worker-1:out.txt .")
    source = text("", ARGUMENTS, "Path here, or NODE:PATH", "SOURCE")
    target = text("", ARGUMENTS, "NODE:PATH, or a path here", "TARGET")
    timeout = amount(
        "--timeout", OPTIONS, "Time limit (default: 3600)", "SECONDS", seconds, empty=3600.0
    )


class Check(Common, heading=MACHINES, module="machine"):
    """Check this machine: tools, packages, credentials and clusters.

    With --real, three small machines are created on EC2 and removed, for at most $0.10.
    """

    settings_of = ("up",)
    examples = ("clusterctl check", "clusterctl check --real")
    real = flag("--real", OPTIONS, "Create and remove a cluster on EC2, and write a report")
    region = text("--region", OPTIONS, "Region of --real", "NAME", limits=where.REAL)
    ssh_cidr = text(
        "--ssh-cidr", OPTIONS, "Networks that may connect to it", "A,B", limits=where.REAL
    )
    runtime = choice(
        "--runtime", OPTIONS, "Run ranks in (default: docker)", "docker", "host", limits=where.REAL
    )
    yes = YES
    cluster = cluster_option(where.ONLY_THIS_MACHINE)


class DataGet(Common, heading=DATA, module="data"):
    """Download data sets and copy them to $CLUSTERCTL_DATA on every worker.

    A download that broke off is resumed, and its checksum is verified.
    """

    examples = ("clusterctl data get mnist", "clusterctl data get cifar10 --no-push")
    names = texts("", ARGUMENTS, "mnist, cifar10 or imagenette", "NAME...")
    mirror = text(
        "--mirror", OPTIONS, "URL of a folder with the files", "URL", env="CLUSTERCTL_MIRROR"
    )
    no_push = flag("--no-push", OPTIONS, "Do not copy to the workers")
    cluster = cluster_option(where.PUSHED)


class DataPush(Common, heading=DATA, module="data"):
    """Copy data sets to $CLUSTERCTL_DATA on every worker."""

    examples = ("clusterctl data push mnist", "clusterctl data push ./images --name images")
    names = texts("", ARGUMENTS, "Data set, or a folder", "NAME...")
    name = maybe("--name", OPTIONS, "Name of the folder on the workers", "NAME")


class DataList(Common, heading=DATA, module="data"):
    """List the data sets, and which of them are on this machine."""

    examples = ("clusterctl data list",)
    cluster = cluster_option(where.ONLY_LOCAL_DATA)


class DataIndex(Common, heading=DATA, module="data"):
    """Write a YAML index of image folders."""

    passes_options = True
    examples = ("clusterctl data index train val",)
    words = texts("", ARGUMENTS, "Folders and options of the program", "TRAIN VALIDATION...")
    json = flag("--json", GENERAL, limits=where.NO_JSON)
    cluster = cluster_option(where.ONLY_LOCAL_DATA)


class ImageBuild(Common, heading=DATA, module="images"):
    """Build a node image from its recipe with this machine's Docker."""

    examples = ("clusterctl image build cpu", "clusterctl image build nvidia --push ghcr.io/me")
    name = text("", ARGUMENTS, "launcher, cpu, nvidia or amd", "NAME")
    push = text("--push", OPTIONS, "Push the image there, as REPO/NAME", "REPO")
    base = text("--base", OPTIONS, "Build on this Debian image", "IMAGE")
    cluster = cluster_option(where.BUILT_HERE)


class ImageLock(Common, heading=DATA, module="images"):
    """Add missing checksums to docker/downloads.json: download the files and hash them."""

    examples = ("clusterctl image lock nvidia",)
    name = text("", ARGUMENTS, "launcher, cpu, nvidia or amd", "NAME")
    cluster = cluster_option(where.BUILT_HERE)


VERBS: dict[str, type[Verb]] = {
    "up": Up,
    "down": Down,
    "status": Status,
    "list": List,
    "verify": Verify,
    "attach": Attach,
    "detach": Detach,
    "extend": Extend,
    "stop": Stop,
    "start": Start,
    "cost": Cost,
    "allow": Allow,
    "gc": Gc,
    "run": Run,
    "launch": Launch,
    "rerun": Rerun,
    "jobs": Jobs,
    "logs": Logs,
    "cancel": Cancel,
    "fetch": Fetch,
    "doctor": Doctor,
    "diff": Diff,
    "ssh": Ssh,
    "cp": Cp,
    "forward": Forward,
    "ssh-config": SshConfig,
    "check": Check,
    "data get": DataGet,
    "data push": DataPush,
    "data list": DataList,
    "data index": DataIndex,
    "image build": ImageBuild,
    "image lock": ImageLock,
}
FAMILIES = {"data": "Download, copy and list data sets.", "image": "Build node images."}
"""Words that verbs of two words begin with."""


def limit(verb: str, option: str, circumstances: Collection[str]) -> Limit | None:
    """Why the option (as it is written: `--spot`, `-pe`) has no effect there; None where it has."""
    found = next(item for item in VERBS[verb].options().values() if option in item.flags)
    return next((item for item in found.limits if not item.holds(circumstances)), None)

"""Verbs that create clusters, watch what they cost, and remove them."""

from __future__ import annotations

from itertools import zip_longest

from clusterctl.options import batch_systems
from clusterctl.options import limits as where
from clusterctl.options.checks import (
    begins_file_system,
    budget,
    duration,
    idle_time,
    indices,
    integer,
    life_time,
    names,
    shared_folder,
)
from clusterctl.options.provider_options import BREAKABLE, PROVIDER_OPTIONS, join_words
from clusterctl.options.shared import OPTIONS, YES
from clusterctl.options.table import (
    ARGUMENTS,
    DEFAULT_NAME,
    GENERAL,
    Common,
    Group,
    Named,
    Option,
    Verb,
    amount,
    choice,
    cluster_option,
    file,
    flag,
    maybe,
    name_argument,
    number,
    text,
    texts,
)

CLUSTERS = "Clusters"
NEW_NAME = name_argument(DEFAULT_NAME)


def join_shared(verb: type[Verb], words: list[str]) -> list[str]:
    """`--shared` may stand alone, also before another argument: what looks like a file system is
    its value, and nothing else. What is a program's own stays as it is."""
    found, index = list[str](), 0
    while index < len(words):
        word, following = words[index], words[index + 1 : index + 2]
        option = word.startswith("-")
        if word == "--" or (verb.read_word(word)[0] == "-m" if option else verb.ends_at_argument):
            break
        end = index + (verb.count_words(word) if option else 1)
        if word == "--shared":
            given = following and begins_file_system(following[0])
            end = index + 1 + bool(given)
            found.append(f"{word}={following[0] if given else where.LAUNCHER}")
        else:
            found += words[index:end]
        index = end
    return found + words[index:]


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
        "--provider",
        MACHINE,
        f"{join_words([*PROVIDER_OPTIONS], 'or')} (default: as options imply)",
        "NAME",
    )
    workers = number("--workers", MACHINE, "Number of workers besides the launcher (default: 2)")
    ttl = amount(
        "--ttl", MACHINE, "Shut down after 30m, 8h, 2d (default on EC2: 8h)", "TIME", life_time
    )
    shared = text(
        "--shared",
        MACHINE,
        "Give all nodes one folder, $CLUSTERCTL_SHARED: a new one, which `down` deletes, or this"
        " file system of EFS or FSx",
        "[ID]",
        check=shared_folder,
        alone=where.LAUNCHER,
        limits=where.FILE_SYSTEM,
    )
    image = texts(
        "--image",
        MACHINE,
        "Container image of all nodes, or of a kind of node; repeatable",
        "[KIND=]IMAGE",
        limits=where.IMAGE,
    )
    gpus = Option[tuple[str, ...]](
        "--gpus",
        MACHINE,
        "This machine's GPUs for the workers",
        "0,1|all",
        empty=(),
        check=indices,
        limits=where.DOCKER,
    )
    gpu = texts(
        "--gpu", EC2, "GPU workers: g4dn or T4, g4ad, g5, g6, p4d, p5; repeatable", "FAMILY[:N]"
    )
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
        "--runtime",
        EC2,
        "Run ranks in containers or on the host (default: docker)",
        "docker",
        "host",
        limits=where.RUNTIME,
    )
    ami = text("--ami", EC2, "Machine image of the workers", "ID")
    disk = number(
        "--disk", EC2, "Disk size of each worker, 8 to 16384", "GB", check=integer(8, 16384)
    )
    efa = flag("--efa", EC2, "Use Elastic Fabric Adapters, on instance types that have them")
    reservation = text(
        "--reservation", EC2, "Capacity Reservation or Capacity Block for the workers", "ID"
    )
    vpc = text("--vpc", EC2, "VPC for the machines (default: a new one)", "ID")
    subnet = Option[tuple[str, ...]](
        "--subnet",
        EC2,
        "Subnets for the machines, tried in this order",
        "A,B",
        empty=(),
        check=names,
    )
    private = flag("--private", EC2, "Give workers no public addresses (adds a NAT gateway)")
    tag = texts("--tag", EC2, "Tag for the cluster's AWS resources; repeatable", "KEY=VALUE")
    ssh_cidr = text(
        "--ssh-cidr",
        EC2,
        "Networks that may connect (default: your address)",
        "A,B",
        limits=where.SSH_CIDR,
    )
    instance_connect = flag(
        "--instance-connect", EC2, "Connect through an endpoint of AWS, where SSH is closed"
    )
    max_hourly = amount(
        "--max-hourly", EC2, "Refuse a cluster that costs more per hour", "USD", budget
    )
    budget = amount("--budget", EC2, "Shut down before it costs more than this", "USD", budget)
    idle = Option[float | None](
        "--idle",
        EC2,
        "End workers that are unused for this long (default: 1h)",
        "TIME|off",
        empty=None,
        check=idle_time,
    )
    boot_timeout = amount(
        "--boot-timeout", EC2, "Time for machines to boot (default: 10m)", "TIME", duration
    )
    verify = choice(
        "--verify",
        MACHINE,
        "Measure the nodes at the end (default: on for EC2, else off)",
        "on",
        "off",
    )
    dry_run = flag("--dry-run", GENERAL, "Print the plan and change nothing")
    yes = YES

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        return join_shared(cls, words)

    @property
    def measure(self) -> bool | None:
        """Whether nodes are measured at the end; None: where they cost money."""
        return {"on": True, "off": False}.get(self.verify)


_FETCH = flag("--fetch", OPTIONS, "Save outputs to job-N, a shared folder to shared-NAME, first")
_DISCARD = flag("--discard", OPTIONS, "Delete unfetched job outputs and the shared folder")


class Down(Named, heading=CLUSTERS, module="clusters"):
    """Remove a cluster and verify that nothing of it is left.

    Job outputs that you have not fetched, and files in a shared folder, are deleted only with your
    consent. On a terminal you are asked; with --yes, with --json or without a terminal, add --fetch
    or --discard.
    """

    examples = ("clusterctl down", "clusterctl down lab --yes --fetch")
    fetch = _FETCH
    discard = _DISCARD
    force = flag("--force", OPTIONS, "Save no logs or outputs, and do not ask")
    yes = YES


class Status(Named, heading=CLUSTERS, module="status"):
    """Show the nodes, age, cost and running jobs of a cluster."""

    examples = ("clusterctl status", "clusterctl status lab --live")
    live = flag("--live", OPTIONS, "Query the nodes now")


class List(Common, heading=CLUSTERS, module="status", function="list_clusters"):
    """List your clusters, or with --all every cluster in your AWS account."""

    examples = ("clusterctl list", "clusterctl list --all")
    everywhere = flag("--all", OPTIONS, "List all users' clusters on EC2, in all regions")
    cluster = cluster_option(help="Show only this cluster")


class Verify(Named, heading=CLUSTERS, module="insight"):
    """Measure the nodes and links of a cluster, and compare them with the expected values.

    Exit code 8 if something is below its limit.
    """

    examples = ("clusterctl verify", "clusterctl verify lab --quick")
    quick = flag("--quick", OPTIONS, "Take about five seconds: no GEMM, no all-reduce")
    now = flag("--now", OPTIONS, "Measure even while a job runs")


class Drill(Named, heading=CLUSTERS, module="drill"):
    """Inject faults into a test cluster while a program runs, and report what was lost.

    Exit code 8 if anything was lost, or if a wrong reason was reported.
    """

    examples = ("clusterctl drill", "clusterctl drill --faults kill-node,partition --seed 7")
    name = name_argument("drill")
    cluster = cluster_option(help="Name of the cluster (default: drill, removed at the end)")
    provider = choice(
        "--provider",
        OPTIONS,
        "Provider of a new cluster (default: local)",
        *BREAKABLE,
    )
    workers = number("--workers", OPTIONS, "Number of workers of a new cluster (default: 2)")
    faults = Option[tuple[str, ...]](
        "--faults", OPTIONS, "Faults to inject (default: all)", "A,B", empty=(), check=names
    )
    rounds = number("--rounds", OPTIONS, "How often each fault is injected (default: 1)")
    seed = number(
        "--seed", OPTIONS, "Random seed for nodes and times (default: 0)", check=integer(0)
    )
    steps = number("--steps", OPTIONS, "Steps of the program, 0.1 s each (default: 450)")
    dry_run = flag("--dry-run", GENERAL, "Print the plan and break nothing")
    yes = YES


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
    sites = tuple(
        maybe(
            flag,
            OPTIONS,
            f"Site with {batch_systems.SYSTEMS[name].title} (default: here)",
            "[LOGIN]",
        )
        for flag, name in batch_systems.FLAGS.items()
    )
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
    shared = flag("--shared", OPTIONS, limits=batch_systems.NOT_MOUNTED)

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


class Detach(Named, heading=CLUSTERS, module="attach"):
    """Stop using attached machines: remove clusterctl's files and keys, nothing else.

    Job outputs that you have not fetched are deleted only with your consent, as by `down`.
    """

    examples = ("clusterctl detach lab", "clusterctl detach lab --yes --fetch")
    fetch = _FETCH
    discard = _DISCARD
    force = flag("--force", OPTIONS, "Save nothing, do not ask, and skip hosts that do not answer")
    yes = YES


class Extend(Named, heading=CLUSTERS, module="lifetime"):
    """Move the deadline of a cluster. An earlier deadline needs your consent."""

    examples = ("clusterctl extend --ttl 4h",)
    ttl = amount("--ttl", OPTIONS, "New time to live, from now on: 30m, 8h, 2d", "TIME", life_time)
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


class Cost(Common, heading=CLUSTERS, module="cost", function="show"):
    """Show what was spent, by day, cluster or job, also on clusters that are gone."""

    examples = ("clusterctl cost --since 30d", "clusterctl cost --by job --csv")
    since = amount(
        "--since", OPTIONS, "Show only the last TIME (default: 30d)", "TIME", duration, 30 * 86400.0
    )
    by = choice("--by", OPTIONS, "Group by (default: day)", "day", "cluster", "job", empty="day")
    csv = flag("--csv", OPTIONS, "Print comma-separated values")
    cluster = cluster_option(help="Show only clusters with this name")


class Allow(Common, heading=CLUSTERS, module="access"):
    """Set the networks that may connect to a cluster on EC2: those given, and no others.

    Without any, only your present address: run it if your address has changed.
    """

    examples = ("clusterctl allow", "clusterctl allow 203.0.113.7 198.51.100.0/24")
    networks = texts("", ARGUMENTS, "Networks (default: your present address)", "[CIDR...]")


class Gc(Common, heading=CLUSTERS, module="gc"):
    """Find clusters on EC2 without a local record, and remove them or take one back.

    It searches all regions of the account. --yes removes your own clusters, and another user's
    cluster only if -c gives its id.
    """

    examples = ("clusterctl gc --dry-run", "clusterctl gc --adopt lab --region eu-west-1")
    adopt = text(
        "--adopt", OPTIONS, "Take this cluster back instead of removing it", "NAME", settable=False
    )
    region = texts("--region", OPTIONS, "Region (default: all); repeatable", "NAME")
    dry_run = flag("--dry-run", GENERAL, "Print what is found and change nothing")
    cluster = cluster_option(where.NOT_ADOPT, help="Remove only this cluster")
    yes = YES

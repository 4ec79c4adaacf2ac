"""Verbs that create clusters, watch what they cost, and remove them."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from clusterctl.options import batch_systems, table
from clusterctl.options.batch import BATCH_SYSTEMS
from clusterctl.options.table import (
    ARGUMENTS,
    DEFAULT_NAME,
    GENERAL,
    OPTIONS,
    PROVIDER_OPTIONS,
    YES,
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
    join_words,
    maybe,
    name_argument,
    number,
    span,
    text,
    texts,
    words,
)
from clusterctl.options.values import (
    LAUNCHER,
    begins_file_system,
    budget,
    idle_time,
    indices,
    integer,
    life_time,
    seconds,
    sha256_hex,
    shared_folder,
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
            found.append(f"{word}={following[0] if given else LAUNCHER}")
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
    EC2 = Group("Amazon EC2", (table.EC2,))

    name = NEW_NAME
    cluster = cluster_option(help=f"Name of the cluster (default: {DEFAULT_NAME})")
    provider = text(
        *(
            "--provider",
            MACHINE,
            f"{join_words([*PROVIDER_OPTIONS], 'or')} (default: as options imply)",
        ),
        "NAME",
    )
    workers = number("--workers", MACHINE, "Number of workers besides the launcher (default: 2)")
    ttl = span("--ttl", MACHINE, "Shut down after 30m, 8h, 2d (default on EC2: 8h)", life_time)
    shared = text(
        "--shared",
        MACHINE,
        "Give all nodes one folder, $CLUSTERCTL_SHARED: a new one, which `down` deletes, or this"
        " file system of EFS or FSx",
        "[ID]",
        check=shared_folder,
        alone=LAUNCHER,
        limits=table.FILE_SYSTEM,
    )
    image = texts(
        *("--image", MACHINE, "Container image of all nodes, or of a kind of node; repeatable"),
        "[KIND=]IMAGE",
        limits=table.IMAGE,
    )
    gpus = words(
        *("--gpus", MACHINE, "This machine's GPUs for the workers", "0,1|all", indices),
        limits=table.DOCKER,
    )
    gpu = texts(
        "--gpu", EC2, "GPU workers: g4dn or T4, g4ad, g5, g6, p4d, p5; repeatable", "FAMILY[:N]"
    )
    cpu = texts("--cpu", EC2, "CPU workers of this instance type; repeatable", "TYPE[:N]")
    instance_type = text("--instance-type", EC2, "Instance type of the workers", "TYPE")
    launcher_type = text("--launcher-type", EC2, "Type of the launcher (default: t3.micro)", "TYPE")
    region = text("--region", EC2, "Region (default: that of the AWS CLI)", "NAME")
    regions = words("--regions", EC2, "Regions to try, in this order")
    zones = words("--zones", EC2, "Availability zones to try, in this order")
    spot = flag("--spot", EC2, "Use spot workers: cheaper, may be interrupted")
    spot_fallback = flag("--spot-fallback", EC2, "Use on-demand workers if no spot is available")
    runtime = choice(
        *("--runtime", EC2, "Run ranks in containers or on the host (default: docker)"),
        *("docker", "host"),
    )
    ami = text("--ami", EC2, "Machine image of the workers", "ID")
    disk = number(
        "--disk", EC2, "Disk size of each worker, 8 to 16384", "GB", check=integer(8, 16384)
    )
    efa = flag("--efa", EC2, "Use Elastic Fabric Adapters, on instance types that have them")
    vpc = text("--vpc", EC2, "VPC for the machines (default: a new one)", "ID")
    subnet = words("--subnet", EC2, "Subnets for the machines, tried in this order")
    private = flag("--private", EC2, "Give workers no public addresses (adds a NAT gateway)")
    tag = texts("--tag", EC2, "Tag for the cluster's AWS resources; repeatable", "KEY=VALUE")
    ssh_cidr = text(
        *("--ssh-cidr", EC2, "Networks that may connect (default: your address)", "A,B"),
        limits=table.SSH_CIDR,
    )
    instance_connect = flag(
        "--instance-connect", EC2, "Connect through an endpoint of AWS, where SSH is closed"
    )
    max_hourly = amount(
        "--max-hourly", EC2, "Refuse a cluster that costs more per hour", "USD", budget
    )
    budget = amount("--budget", EC2, "Shut down before it costs more than this", "USD", budget)
    idle = Option[float | None](
        *("--idle", EC2, "End workers that are unused for this long (default: 1h)", "TIME|off"),
        empty=None,
        check=idle_time,
    )
    boot_timeout = span("--boot-timeout", EC2, "Time for machines to boot (default: 10m)")
    verify = choice(
        *("--verify", MACHINE, "Measure the nodes at the end (default: on for EC2, else off)"),
        *("on", "off"),
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
            f"Site with {BATCH_SYSTEMS[name].title} (default: here)",
            "[LOGIN]",
        )
        for flag, name in batch_systems.FLAGS.items()
    )
    user = text("--user", OPTIONS, "User to log in as", "NAME", limits=table.HERE)
    identity = file(
        "--identity", OPTIONS, "SSH private key (default: ssh_config and agent)", limits=table.HERE
    )
    workdir = text(
        "--workdir",
        OPTIONS,
        "Folder for files, shared by a site's nodes (default: ~/.clusterctl)",
        "DIR",
    )
    bootstrap = flag(
        "--bootstrap", OPTIONS, "Install missing programs with sudo", limits=table.limit_to("hosts")
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
    ttl = span("--ttl", OPTIONS, "New time to live, from now on: 30m, 8h, 2d", life_time)
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
    since = span("--since", OPTIONS, "Show only the last TIME (default: 30d)", empty=30 * 86400.0)
    by = choice("--by", OPTIONS, "Group by (default: day)", "day", "cluster", "job", empty="day")
    csv = flag("--csv", OPTIONS, "Print comma-separated values")
    cluster = cluster_option(help="Show only clusters with this name")


class Allow(Common, heading=CLUSTERS, module="access"):
    """Set the networks that may connect to a cluster on EC2: those given, and no others.

    Without any, only your present address: run it if your address has changed.
    """

    examples = ("clusterctl allow", "clusterctl allow 203.0.113.7 198.51.100.0/24")
    networks = texts("", ARGUMENTS, "Networks (default: your present address)", "[CIDR...]")


class Gc(Common, heading=CLUSTERS, module="lifetime"):
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
    cluster = cluster_option(table.exclude("adopt"), help="Remove only this cluster")
    yes = YES


# -------------------------------------------------------------------------------------------------
# Verbs about nodes and about this machine.


MACHINES = "Nodes and this machine"


class Ssh(Common, heading=MACHINES, module="access"):
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
        limits=table.limit_to("json"),
    )

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """Options before the command are ours, also between NODE and the command, which begins at
        `--` or at the first word after NODE; all from there on is the command's."""
        end = cls.count_leading(words)
        ours, rest, node = words[:end], words[end:], ""
        if rest and rest[0] != "--":
            node, *rest = rest
            end = cls.count_leading(rest)
            ours, rest = ours + rest[:end], rest[end:]
        return [*ours, "--", node, *rest[rest[:1] == ["--"] :]]


class SshConfig(Common, heading=MACHINES, module="access", function="ssh_config"):
    """Let plain ssh, rsync and editors reach the nodes as CLUSTER-NODE.

    Adds one line to ~/.ssh/config, for all clusters. A cluster that is removed disappears from it.
    """

    examples = ("clusterctl ssh-config", "ssh default-worker-1")
    show = flag("--print", OPTIONS, "Print the line and change nothing", settable=False)
    remove = flag(
        "--remove", OPTIONS, "Remove the line again", limits=table.exclude("print"), settable=False
    )
    cluster = cluster_option(table.NEVER)


class Forward(Common, heading=MACHINES, module="access"):
    """Make a port of a node, such as TensorBoard's or Jupyter's, reachable on this machine."""

    examples = ("clusterctl forward worker-1:6006", "clusterctl forward 8888 --port 9000")
    target = text("", ARGUMENTS, "Node (default: the launcher) and port", "[NODE:]PORT")
    port = number(
        "--port", OPTIONS, "Port on this machine (default: the same)", check=integer(1, 65535)
    )


class Cp(Common, heading=MACHINES, module="access"):
    """Copy a file or a folder to or from a node."""

    examples = ("clusterctl cp data.csv worker-1:", "clusterctl cp worker-1:out.txt .")
    source = text("", ARGUMENTS, "Path here, or NODE:PATH", "SOURCE")
    target = text("", ARGUMENTS, "NODE:PATH, or a path here", "TARGET")
    timeout = amount(
        "--timeout", OPTIONS, "Time limit (default: 3600)", "SECONDS", seconds, empty=3600.0
    )


class Init(Common, heading=MACHINES, module="access"):
    """Write a commented clusterctl.toml for the project in this folder."""

    examples = ("clusterctl init", "clusterctl init --print")
    only_print = flag("--print", OPTIONS, "Print it, and write no file", settable=False)
    cluster = cluster_option(table.NEVER)


class Check(Common, heading=MACHINES, module="access"):
    """Check this machine: tools, packages, credentials and clusters.

    With --real, three small machines are created on EC2 and removed, for at most $0.10.
    """

    settings_of = ("up",)
    examples = ("clusterctl check", "clusterctl check --real")
    real = flag("--real", OPTIONS, "Create and remove a cluster on EC2, and write a report")
    REAL = Group(OPTIONS.heading, (table.limit_to("real"),))
    of_up: tuple[Option[Any], ...] = (
        *(Up.region.move(REAL), Up.ssh_cidr.move(REAL), Up.vpc.move(REAL)),
        *(Up.subnet.move(REAL), Up.tag.move(REAL), Up.runtime.move(REAL)),
    )
    yes = YES
    cluster = cluster_option(table.NEVER)


# -------------------------------------------------------------------------------------------------
# Verbs about data sets and node images: each has two words.


DATA = "Data sets and images"
_RECIPES = "launcher, cpu, nvidia, nvidia-mpi or amd"


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
    names = texts("", ARGUMENTS, "mnist, cifar10, imagenette, or a URL", "NAME|URL...")
    name = text(
        "--name",
        OPTIONS,
        "Name of the folder on the workers",
        "NAME",
        limits=table.limit_to("url", "works only with a URL"),
    )
    sha256 = text(
        "--sha256",
        OPTIONS,
        "Checksum of the file",
        "HEX",
        limits=table.limit_to("url", "works only with a URL"),
        check=sha256_hex,
    )
    mirror = text(
        "--mirror", OPTIONS, "URL of a folder with the files", "URL", env="CLUSTERCTL_MIRROR"
    )
    no_push = flag("--no-push", OPTIONS, "Do not copy to the workers")
    cluster = cluster_option(table.exclude("no-push"))


class DataPush(Common, heading=DATA, module="data"):
    """Copy data sets to $CLUSTERCTL_DATA on every worker."""

    examples = ("clusterctl data push mnist", "clusterctl data push ./images --name images")
    names = texts("", ARGUMENTS, "Data set, or a folder", "NAME...")
    name = maybe("--name", OPTIONS, "Name of the folder on the workers", "NAME")


class DataList(Common, heading=DATA, module="data"):
    """List the data sets, and which of them are on this machine."""

    examples = ("clusterctl data list",)
    cluster = cluster_option(table.NEVER)


class DataIndex(Common, heading=DATA, module="data"):
    """Write a YAML index of image folders."""

    passes_options = True
    examples = ("clusterctl data index train val",)
    words = texts("", ARGUMENTS, "Folders and options of the program", "TRAIN VALIDATION...")
    json = flag("--json", GENERAL, limits=table.NEVER)
    cluster = cluster_option(table.NEVER)


class ImageBuild(Common, heading=DATA, module="data"):
    """Build a node image from its recipe with this machine's Docker."""

    examples = ("clusterctl image build cpu", "clusterctl image build nvidia --push ghcr.io/me")
    name = text("", ARGUMENTS, _RECIPES, "NAME")
    push = text("--push", OPTIONS, "Push the image there, as REPO/NAME", "REPO")
    base = text("--base", OPTIONS, "Build on this Debian image", "IMAGE")
    cluster = cluster_option(table.NEVER)

"""Verbs about nodes and about this machine."""

from __future__ import annotations

from clusterctl.options import limits as where
from clusterctl.options.checks import integer, names, seconds
from clusterctl.options.shared import OPTIONS, YES
from clusterctl.options.table import (
    ARGUMENTS,
    Common,
    Option,
    amount,
    choice,
    cluster_option,
    flag,
    number,
    text,
    texts,
)

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
        limits=where.WITH_JSON,
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
        "--remove", OPTIONS, "Remove the line again", limits=where.NOT_PRINTED, settable=False
    )
    cluster = cluster_option(where.ALL_CLUSTERS)


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


class Init(Common, heading=MACHINES, module="init"):
    """Write a commented clusterctl.toml for the project in this folder."""

    examples = ("clusterctl init", "clusterctl init --print")
    only_print = flag("--print", OPTIONS, "Print it, and write no file", settable=False)
    cluster = cluster_option(where.FOR_A_FOLDER)


class Check(Common, heading=MACHINES, module="check"):
    """Check this machine: tools, packages, credentials and clusters.

    With --real, three small machines are created on EC2 and removed, for at most $0.10.
    """

    settings_of = ("up",)
    examples = ("clusterctl check", "clusterctl check --real")
    real = flag("--real", OPTIONS, "Create and remove a cluster on EC2, and write a report")
    region = text("--region", OPTIONS, "Region for --real", "NAME", limits=where.REAL)
    ssh_cidr = text(
        "--ssh-cidr", OPTIONS, "Networks that may connect to it", "A,B", limits=where.REAL
    )
    vpc = text("--vpc", OPTIONS, "VPC for it (default: a new one)", "ID", limits=where.REAL)
    subnet = Option[tuple[str, ...]](
        "--subnet", OPTIONS, "Subnets for it", "A,B", empty=(), check=names, limits=where.REAL
    )
    tag = texts(
        "--tag", OPTIONS, "Tag for everything that is created", "KEY=VALUE", limits=where.REAL
    )
    runtime = choice(
        "--runtime",
        OPTIONS,
        "Run ranks in containers or on the host (default: docker)",
        "docker",
        "host",
        limits=where.REAL,
    )
    yes = YES
    cluster = cluster_option(where.ONLY_THIS_MACHINE)

"""`--mpirun-arg`: options that a person adds to the mpirun of a job."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from clusterctl.errors import UsageError
from clusterctl.launch.mpi_transport import UCX_WITHOUT_RDMA, Flag, list_rdma_devices
from clusterctl.model import Node

WHY = "--mpirun-arg"
_OURS = {
    **dict.fromkeys(("-np", "-n", "-c", "--np"), "use --ranks, or --ranks-per-node"),
    **dict.fromkeys(
        ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile"),
        "use --nodes N, or --nodes NAME,NAME",
    ),
    **dict.fromkeys(("-wdir", "--wdir", "-wd"), "ranks start in your current folder's copy"),
    **dict.fromkeys(("--output", "--output-filename"), "`clusterctl logs` has the output"),
    "-x": "use --env NAME=VALUE",
}
"""What clusterctl decides, and what to use instead."""
_NAMED = ("--mca", "--prtemca", "--pmixmca", "-mca")
"""Options whose first value is the name of what they set."""


def parse(values: Sequence[str]) -> list[tuple[str, ...]]:
    """Each option with its values. Raises UsageError for what clusterctl decides itself."""
    found: list[tuple[str, ...]] = []
    for value in values:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise UsageError(
                f"--mpirun-arg {value!r}: {error}", hint="close the quotation marks"
            ) from None
        if not words or not words[0].startswith("-"):
            raise UsageError(
                f"--mpirun-arg {value!r} is not an option of mpirun",
                hint="for example --mpirun-arg='--map-by slot:PE=2'",
            )
        for word in words:
            if word.startswith("-"):
                found.append((word,))
            else:
                found[-1] = (*found[-1], word)
    once: dict[tuple[str, ...], tuple[str, ...]] = {}
    for words_of in found:
        _check(words_of)
        other = once.setdefault(_name_target(words_of), words_of)
        if other != words_of and words_of[0] in (*_NAMED, "--map-by", "--bind-to", "--rank-by"):
            raise UsageError(
                f"--mpirun-arg: {' '.join(other)} and {' '.join(words_of)} contradict each other",
                hint="leave one of the two out",
            )
    return found


def _check(words: tuple[str, ...]) -> None:
    if hint := _OURS.get(words[0].partition("=")[0]):
        raise UsageError(f"--mpirun-arg: clusterctl sets {words[0]} itself", hint=hint)
    orders = [part for word in words[1:] for part in word.lower().split(":")]
    if words[0] in ("--map-by", "--rank-by") and {"node", "span", "seq"} & set(orders):
        raise UsageError(
            f"--mpirun-arg: {' '.join(words)} distributes ranks over the nodes",
            hint="ranks fill one node after the other; --ranks-per-node sets how many each gets",
        )


def merge(flags: Sequence[Flag], values: Sequence[str], nodes: Sequence[Node] = ()) -> list[Flag]:
    """clusterctl's flags, less those that these options set, and these. `nodes` are those of the
    job, where they are known. Raises UsageError for a network that they do not have, and for cores
    that a rank would have without being bound to them."""
    own = [_keep_on_node(words) for words in parse(values)]
    set_here = {_name_target(words) for words in own}
    bindings = [words[-1] for words in own if words[0] == "--bind-to"]
    for words in own:
        if words[0] == "--map-by" and ":pe=" in words[-1].lower():  # it binds, too
            set_here.add(("--bind-to",))
            if wrong := [word for word in bindings if not word.startswith(("core", "hwt"))]:
                raise UsageError(
                    f"{' '.join(words)} and --bind-to {wrong[0]} contradict each other",
                    hint="leave one of the two out",
                )
        if _name_target(words) == ("--mca", "btl_tcp_if_include"):
            _check_networks(" ".join(words), words[-1].split(","), nodes)
    kept = [flag for flag in flags if _name_target(flag[0]) not in set_here]
    if ("pml", "ucx") in {words[1:] for words in own} and not all(map(list_rdma_devices, nodes)):
        kept += [flag for flag in UCX_WITHOUT_RDMA if _name_target(flag[0]) not in set_here]
    return [*kept, *((words, WHY) for words in own)]


def _keep_on_node(words: tuple[str, ...]) -> tuple[str, ...]:
    """Mapping by cores and the like: without the last word, PRRTE does not look at the slots of a
    node where there may be more processes than slots, and the first node gets all ranks (5.0.11).
    """
    place, *more = words[-1].split(":")
    if words[0] != "--map-by" or place.lower() == "slot":
        return words
    kept = [word for word in more if "oversubscribe" not in word.lower()]
    return (words[0], ":".join((place, *kept, "NOOVERSUBSCRIBE")))


def _check_networks(typed: str, networks: Sequence[str], nodes: Sequence[Node]) -> None:
    """Open MPI would end the job, or wait for ever."""
    for node in nodes:
        known = {item.device: item for item in node.facts.interfaces if item.up}
        for network in networks:
            if not any(
                network == name or _is_within(network, item.address) for name, item in known.items()
            ):
                raise UsageError(
                    f"{typed}: {node.name} has no network {network}",
                    hint=f"leave it out, or choose one of: {', '.join(known)}",
                )


def _is_within(network: str, address: str) -> bool:
    try:
        return ip_address(address) in ip_network(network, strict=False)
    except ValueError:  # the name of a device
        return False


def _name_target(words: Sequence[str]) -> tuple[str, ...]:
    """What a flag sets: its name, and that of the parameter, where it has one."""
    name = "--mca" if words[0] == "-mca" else words[0]
    return (name, *words[1:2]) if name in _NAMED else (name,)

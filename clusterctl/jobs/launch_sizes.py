"""What the options of `run` leave open, the words of another launcher fill. Settings are weaker
than both; two that contradict each other are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.job_model import JobSpec
from clusterctl.jobs.launch_hosts import NamedHost, deal
from clusterctl.jobs.launch_words import OPTIONS, Asked, find_other_value, make_contradiction
from clusterctl.launch.placement import find_workers
from clusterctl.model import Cluster, Node

_COUNTS = ("ranks", "ranks_per_node")


def fill(
    asked: Asked, spec: JobSpec, settings: Collection[str], cluster: Cluster
) -> tuple[JobSpec, Asked]:
    """The job as the words want it, as far as its own options do not say, and the words with the
    nodes that they have chosen.

    Args:
        settings: Fields of `spec`, and native options, that come from settings.
    """
    own: dict[str, Any] = {name: value for name in OPTIONS if (value := getattr(spec, name))}
    typed = {name: value for name, value in own.items() if name not in settings}
    weak = {name: value for name, value in own.items() if name in settings}
    says_nodes = asked.hosts or asked.excluded or "nodes" in asked.typed
    hosts = () if "nodes" in settings and says_nodes else spec.hosts
    asked = _drop_foreign_devices(_choose_hosts(asked, hosts, cluster), cluster)
    if asked.hosts:
        weak.pop("nodes", None)
    elif hosts and "nodes" not in settings:
        typed["nodes"] = len(hosts)
    sizes = fill_sizes(typed, weak, asked, len(asked.hosts or hosts or cluster.workers))
    if asked.hosts:
        hosts, sizes = place_on_hosts(sizes, asked, cluster)
        asked = replace(asked, hosts=tuple(map(NamedHost, dict.fromkeys(hosts))))
    elif hosts:
        sizes.pop("nodes", None)
    elif any(asked.node_range):
        asked = replace(asked, sizes={**asked.sizes, "nodes": sizes["nodes"]})
    for name, value in asked.native.items():
        if name not in settings and spec.native.get(name, value) != value:
            raise make_contradiction(
                f"--{name} {spec.native[name]}", f"{asked.launcher} {asked.typed[name]}"
            )
    for name, value in asked.env.items():
        if "env" not in settings and spec.env.get(name, value) != value:
            raise make_contradiction(
                f"--env {name}={spec.env[name]}", f"{asked.launcher} with {name}={value}"
            )
    for option in asked.mpirun_args:
        if "mpirun_args" not in settings and (other := find_other_value(option, spec.mpirun_args)):
            raise make_contradiction(f"--mpirun-arg '{other}'", f"{asked.launcher} {option}")
    mpirun_args = [arg for arg in spec.mpirun_args if not find_other_value(arg, asked.mpirun_args)]
    env = {**spec.env, **asked.env} if "env" in settings else {**asked.env, **spec.env}
    filled = replace(
        spec,
        env=env,
        native={**spec.native, **asked.native},
        mpirun_args=(*asked.mpirun_args, *mpirun_args),
        hosts=hosts,
        **{**dict.fromkeys(own, 0), **sizes},
    )
    return filled, asked


def fill_sizes(
    typed: Mapping[str, float], settings: Mapping[str, float], asked: Asked, workers: int = 0
) -> dict[str, Any]:
    """Sizes by their names in JobSpec: what was typed, what the words say, and of the settings
    those that contradict neither."""
    words = dict(asked.sizes)
    least, most = asked.node_range
    if least:
        nodes = typed.get("nodes", 0)
        if nodes and not least <= nodes <= most:
            raise make_contradiction(f"--nodes {nodes:g}", asked.typed["nodes"])
        words["nodes"] = nodes or max(least, min(most, workers or most))
    for name, value in words.items():
        if typed.get(name, value) != value:
            raise make_contradiction(f"{OPTIONS[name]} {typed[name]:g}", asked.typed[name])
    found = {**typed, **words}
    said = {**{name: f"{OPTIONS[name]} {v:g}" for name, v in typed.items()}, **asked.typed}
    ranks, each, nodes = (found.get(name, 0) for name in (*_COUNTS, "nodes"))
    if ranks and each and nodes and ranks != each * nodes:
        raise UsageError(
            f"{said['ranks']} is not {said['ranks_per_node']} times {said['nodes']}",
            hint="leave one of them out",
        )
    if ranks and nodes > ranks:
        raise UsageError(
            f"{said['ranks']} and {said['nodes']}: some nodes would have no rank",
            hint=f"--ranks {nodes:g} or more, or fewer nodes",
        )
    counted = not found.keys().isdisjoint(_COUNTS)
    for name, value in settings.items():
        weaker = name in _COUNTS and counted
        weaker |= name == "nodes" and bool(ranks) and (bool(each) or value > ranks)
        if name not in found and not weaker:
            found[name] = value
    return found


def _choose_hosts(asked: Asked, own: Sequence[str], cluster: Cluster) -> Asked:
    """With the hosts by their names on the cluster, and without the excluded ones."""
    if not (asked.hosts or asked.excluded):
        return asked
    typed = asked.typed["hosts"]
    if not cluster.workers:  # those of the queue
        if asked.excluded:
            raise UsageError(f"{typed}: the queue chooses the nodes", hint="leave it out")
        return asked
    nodes = find_workers(cluster, [host.name for host in asked.hosts], typed) or cluster.workers
    slots = [host.slots for host in asked.hosts] or [0] * len(nodes)
    without = {node.name for node in find_workers(cluster, asked.excluded, typed)}
    hosts: dict[str, int] = {}
    for node, count in zip(nodes, slots, strict=True):
        if node.name not in without:
            hosts[node.name] = hosts.get(node.name, 0) + count
    if not hosts:
        raise UsageError(f"{typed} leaves no worker", hint="exclude fewer")
    if own:
        chosen = [node.name for node in find_workers(cluster, own, "--nodes")]
        if set(chosen) != set(hosts):
            raise make_contradiction(f"--nodes {','.join(own)}", typed)
    return replace(asked, hosts=tuple(NamedHost(name, count) for name, count in hosts.items()))


def _drop_foreign_devices(asked: Asked, cluster: Cluster) -> Asked:
    """Without `NCCL_SOCKET_IFNAME=ens5` and the like where workers have no such network device:
    programs would not find each other."""
    foreign = [
        f"{name}={value}"
        for name, value in asked.env.items()
        if name.endswith("_SOCKET_IFNAME") and not value.startswith("^")
        for node in cluster.workers
        if not any(
            device.device.startswith(wanted)
            for device in node.facts.interfaces
            for wanted in value.lstrip("=").split(",")
        )
    ]
    env = {name: value for name, value in asked.env.items() if f"{name}={value}" not in foreign}
    return replace(asked, env=env, ignored=(*asked.ignored, *dict.fromkeys(foreign)))


def place_on_hosts(
    sizes: Mapping[str, Any], asked: Asked, cluster: Cluster
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The nodes, one of them several times where they get unlike numbers of ranks, and the sizes
    that go with them: as mpirun does it, all slots are taken unless a number of ranks is given."""
    typed, found = asked.typed["hosts"], {**sizes}
    names = [host.name for host in asked.hosts]
    nodes = found.pop("nodes", 0)
    if nodes > len(names):
        said = asked.typed.get("nodes", f"--nodes {nodes:g}")
        raise make_contradiction(said, typed)
    each, ranks = int(found.get("ranks_per_node", 0)), int(found.get("ranks", 0))
    names = names[: int(nodes) or (-(-ranks // each) if each and ranks else len(names))]
    if not cluster.workers or not any(host.slots for host in asked.hosts):
        return tuple(names), found
    workers: list[Node] = [cluster.node(name) for name in names]
    known = dict(asked.hosts)
    slots = [known[node.name] or node.slots or 1 for node in workers]
    if each > min(slots) or ranks > sum(slots):
        said = "ranks_per_node" if each > min(slots) else "ranks"
        text = asked.typed.get(said, f"{OPTIONS[said]} {found[said]}")
        raise make_contradiction(text, typed)
    if each:
        return tuple(names), found
    counts = deal(ranks or sum(slots), slots, by_turns=asked.by_turns or bool(nodes))
    used = [(name, count) for name, count in zip(names, counts, strict=True) if count]
    found["ranks"] = sum(counts)
    if [count for _, count in used] == deal(sum(counts), [sum(counts)] * len(used), by_turns=True):
        return tuple(name for name, _ in used), found
    return tuple(name for name, count in used for _ in range(count)), found

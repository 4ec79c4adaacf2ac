"""Machines, memory, disks, links and clocks: what breaks a job by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterctl.core.stacks import explain_kernel, name_ranks
from clusterctl.insight.doctor.findings import KILLED, Evidence, Finding
from clusterctl.insight.node_views import KernelLine, NodeView, Silence

CLOCK = 1.0
"""Seconds that clocks may differ by before it is told."""
SOON = 10.0
"""Seconds between the kernel's line about a killed process and the end of its rank."""
MISSED = {
    "list": "list the processes of the job on {}",
    "rest": "look at all disks and links of {}",
    "stacks": "read all stacks of the ranks on {}",
    "watch": "watch the ranks on {}: those that wait may only be slow",
}
"""What there may be no time for: it goes on after "to"."""
LITTLE_MEMORY = 0.03
"""Free share of a node's memory below which programs are about to be killed."""


def judge_machines(evidence: Evidence) -> Iterator[Finding]:
    for view in evidence.nodes.values():
        if view.error and not view.late:
            yield Finding(
                "unreachable",
                f"{view.name} does not answer: {view.error}",
                "`clusterctl status --live` asks again; `clusterctl up` replaces a machine that is"
                " gone",
                nodes=(view.name,),
            )
        if view.spot:
            yield Finding(
                "spot",
                f"EC2 is taking back the spot instance {view.name}",
                f"`clusterctl fetch {evidence.job.id}` saves its files; `clusterctl rerun"
                f" {evidence.job.id} --resume` continues on another node",
                (view.spot,),
                nodes=(view.name,),
            )
        for line in _find_since_start(evidence, view, r"Xid|fallen off|GPU reset|amdgpu"):
            yield Finding(
                "gpu",
                f"a GPU of {view.name} has failed",
                "restart the node, or replace it if that happens again",
                (line.text,),
                nodes=(view.name,),
            )
        for line in _find_since_start(
            evidence, view, r"I/O error|EXT4-fs|XFS|Hardware Error|Machine"
        ):
            yield Finding(
                "hardware",
                f"the kernel of {view.name} reports an error of its hardware",
                "replace the node",
                (line.text,),
                nodes=(view.name,),
                serious=False,
            )


def judge_late_nodes(evidence: Evidence) -> Iterator[Finding]:
    """Nodes that have not answered in time, which may only be busy, as may this machine: what the
    others show comes first."""
    late = [view for view in evidence.nodes.values() if view.late]
    if late:
        names = tuple(view.name for view in late)
        yield Finding(
            "unreachable",
            f"{', '.join(names)} {'has' if len(late) == 1 else 'have'} not answered in time",
            "if they or this machine are busy, run `clusterctl doctor` again later;"
            " `clusterctl status --live` asks all nodes; `clusterctl up` replaces a machine that is"
            " gone",
            tuple(dict.fromkeys(view.error for view in late)),
            nodes=names,
        )


def list_missed(evidence: Evidence) -> Iterator[Finding]:
    if evidence.missed:
        told = (MISSED[word].format(", ".join(names)) for word, names in evidence.missed.items())
        yield Finding(
            "time",
            f"there was no time to {'; to '.join(told)}",
            "run `clusterctl doctor` again when these machines are less busy",
            tuple(_describe_waits(evidence)),
            nodes=tuple(
                dict.fromkeys(name for names in evidence.missed.values() for name in names)
            ),
            serious=False,
        )


def _describe_waits(evidence: Evidence) -> Iterator[str]:
    """What the kernel says of ranks whose stacks there was no time to read."""
    found: dict[str, list[int]] = {}
    for number, rank in sorted(evidence.ranks.items()):
        if rank.alive and not rank.stack and (wait := explain_kernel(rank.waits)):
            found.setdefault(wait.text, []).append(number)
    for text, numbers in found.items():
        yield f"{name_ranks(numbers)} {'is' if len(numbers) == 1 else 'are'} {text}"


def _find_since_start(evidence: Evidence, view: NodeView, pattern: str) -> list[KernelLine]:
    """The last line of that kind since the job has started."""
    began = (evidence.job.started or evidence.job.created) + view.offset - 1
    found = [k for k in view.kernel if k.when >= began and re.search(pattern, k.text)]
    return found[-1:]


def judge_memory(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that the kernel killed for want of memory. Nodes that share a machine share its log,
    so a line counts for the rank that ended with it."""
    seen: set[str] = set()
    began = evidence.job.started or evidence.job.created
    for number, rank in sorted(evidence.ranks.items()):
        view = evidence.nodes[rank.node]
        if rank.alive or rank.exit_code not in (KILLED, None):
            continue
        near = [
            line
            for line in view.kernel
            if "Kill" in line.text
            and line.when >= began + view.offset - 1
            and (not rank.ended or abs(line.when - rank.ended) <= SOON)
        ]
        if near:
            seen.add(near[-1].text)
            yield Finding(
                "memory",
                f"the kernel killed {evidence.name_rank(number)}: out of memory",
                "use a smaller batch, fewer ranks per node (--ranks-per-node), or larger nodes",
                (near[-1].text,),
                (number,),
                (rank.node,),
            )
    for view in evidence.nodes.values():
        if view.memory_total and view.memory_free < LITTLE_MEMORY * view.memory_total:
            yield Finding(
                "little-memory",
                f"{view.name} has {view.memory_free / 2**20:.1f} of"
                f" {view.memory_total / 2**20:.1f} GiB of memory left",
                "use a smaller batch, fewer ranks per node (--ranks-per-node), or larger nodes",
                nodes=(view.name,),
                serious=False,
            )


def judge_disks(evidence: Evidence) -> Iterator[Finding]:
    for view in evidence.nodes.values():
        for disk in view.disks:
            if disk.full:
                left = f"is full: {disk.free} KiB free"
                yield Finding(
                    "disk",
                    f"{disk.mount} of {view.name} {'has no inodes left' if disk.inodes else left}",
                    "free space there, or create the cluster with a larger --disk",
                    nodes=(view.name,),
                    serious=not disk.elsewhere,
                )


def judge_networks(evidence: Evidence) -> Iterator[Finding]:
    silent = [name for name, view in evidence.nodes.items() if view.error]
    for view in evidence.nodes.values():
        for peer, how in view.peers.items():
            if how != "ok" and peer not in silent:
                yield Finding(
                    "network",
                    f"{view.name} cannot reach {peer}: {how}",
                    "check routes, firewalls and security groups between them",
                    nodes=(view.name, peer),
                )


def judge_silences(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that send and get no answer. A firewall may let SSH pass, so that nodes reach each
    other, and not what ranks use."""
    names = {view.address: view.name for view in evidence.nodes.values() if view.address}
    told = {frozenset(finding.nodes) for finding in judge_networks(evidence)}
    told |= {frozenset((view.name,)) for view in evidence.nodes.values() if view.error}
    for number, rank in sorted(evidence.ranks.items()):
        for silence in sorted(set(rank.silent), key=lambda item: (item.made, item.port))[:1]:
            peer = names.get(silence.address, "")
            known = {frozenset((rank.node, peer)), frozenset((peer,))}
            if not known & told:
                yield _judge_silence(evidence, number, silence, peer)


def _judge_silence(evidence: Evidence, number: int, silence: Silence, peer: str) -> Finding:
    text = f"port {silence.port} of {peer or silence.address}"
    what = "its connection to" if silence.made else "it tries to connect to"
    return Finding(
        "network",
        f"{evidence.name_rank(number)} gets no answer: {what} {text}",
        "let all TCP ports pass between the nodes (security group, firewall), not that of SSH alone"
        if peer
        else "no node of the job has that address: it is that of a node which is gone, or of"
        " another machine; look where the program takes it from, and check the route to it",
        ranks=(number,),
        nodes=(evidence.ranks[number].node, *([peer] if peer else ())),
        serious=bool(peer),
    )


def judge_clocks(evidence: Evidence) -> Iterator[Finding]:
    views = [view for view in evidence.nodes.values() if not view.error]
    middle = sorted(view.offset for view in views)[len(views) // 2] if views else 0.0
    for view in views:
        difference = view.offset - middle
        if abs(difference) > CLOCK + view.uncertainty:
            yield Finding(
                "clock",
                f"the clock of {view.name} is {abs(difference):.1f} s"
                f" {'ahead' if difference > 0 else 'behind'}",
                "start a time service there (chrony, or systemd-timesyncd)",
                nodes=(view.name,),
                serious=False,
            )

"""`doctor`: looks at a job on all its nodes at once, and says why it hangs or has failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl import assets, stacks, timeouts
from clusterctl.actions import doctor_bundle, jobs, open_pool
from clusterctl.errors import UsageError
from clusterctl.formats import count
from clusterctl.insight import doctor, node_views
from clusterctl.insight.doctor import Evidence, Finding, waits
from clusterctl.insight.node_views import NodeView, Rank
from clusterctl.job_model import Job, JobState
from clusterctl.jobs import control, systems
from clusterctl.jobs import py_spy as own_spy
from clusterctl.jobs.logs import read_stored
from clusterctl.jobs.start import list_nodes, list_rank_nodes
from clusterctl.model import Cluster, NodeResult, Phase, Reporter
from clusterctl.stacks import name_ranks as name_ranks
from clusterctl.state import Store
from clusterctl.timeouts import Deadline
from clusterctl.transport.pool import Pool

LIMIT, LEAST = 13.0, 6.0
"""Seconds from the start of the command to the end of the look, and those that the look has in any
case: on a busy machine Python alone may take as long as the rest."""
CONNECT, ANSWER = 4.0, 8.0
"""Seconds that a node may take to say its time, and for the first part of the look."""
RECORDER = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where PyTorch's flight recorder writes, by its name now and before: the beginning of a path."""
SETTLE = 1.0
"""Seconds after which ranks that end are looked at again."""
DUMP = 6
"""Seconds that the stack of one process may take."""
HELPERS = 16
"""Processes beside the ranks' own whose stacks are read on a node."""
TAIL = 64_000
"""Bytes of each output of each rank that are read."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`stacks`: ranks at the same place together. `summary` where nothing is wrong."""

    job: Job
    findings: tuple[Finding, ...]
    stacks: tuple[stacks.Folded, ...]
    summary: str
    seconds: float
    evidence: Evidence


def diagnose(
    store: Store,
    number: int,
    where: str | None,
    report: Reporter,
    *,
    bundle: Path | None,
    redact: Callable[[str], str],
    whole_command: bool = False,
) -> Diagnosis:
    """Asks the nodes within the limit, which counts from the start of this process where it is a
    `whole_command`; after `down`, what was saved of the job is judged. `bundle`: a file for all
    that was seen, without what `redact` takes out. UsageError where it cannot be written."""
    if bundle and not bundle.absolute().parent.is_dir():
        raise UsageError(f"{bundle.parent} is not a folder", hint="choose another --bundle FILE")
    began = time.monotonic()
    spent = timeouts.measure_age() if whole_command else 0.0
    deadline = Deadline(max(LEAST, LIMIT - spent))
    job = jobs.find_job(store, number, where)
    cluster = jobs.find_cluster(store, job)
    if cluster is None or cluster.phase is not Phase.READY:
        found = _load_stored(store, job)
    else:
        with open_pool(store, cluster) as pool:
            if not job.state.ended and store.is_handed_in(job.id):
                job = control.refresh(job, cluster, pool, deadline.limit(ANSWER))
                store.save_job(job)
            found = _collect(job, cluster, pool, report, deadline)
        if all(view.absent or view.error for view in found.nodes.values()):
            found = replace(found, ranks=_load_stored(store, job).ranks)
    # The stacks of an attempt that was ended count until another one runs.
    hang = next((item for item in job.hangs if item.attempt == job.attempt), None)
    if hang and job.state.ended:
        found = doctor.restore_stacks(found, hang)
    findings = doctor.judge(found)
    if hang and job.state.ended:
        findings += (doctor.describe_hang(hang),)
    summary = doctor.summarize(found, findings)
    if cluster and job.state is JobState.QUEUED:
        summary = systems.load(cluster).describe_wait(job)
    diagnosis = Diagnosis(
        job=job,
        findings=findings,
        stacks=stacks.fold(found.stacks, callers=True),
        summary=summary,
        seconds=time.monotonic() - began,
        evidence=found,
    )
    if bundle:
        doctor_bundle.write(job, found, findings, bundle, redact)
    return diagnosis


def _load_stored(store: Store, job: Job) -> Evidence:
    """What the state home has of the job: its output, and the rank that failed first."""
    ranks: dict[int, Rank] = {}
    nodes: dict[str, NodeView] = {}
    for pieces in read_stored(store.locate_job_folder(job.id)):
        for piece in pieces:
            if piece.rank is not None:
                nodes.setdefault(piece.node, NodeView(piece.node))
                rank = ranks.setdefault(piece.rank, Rank(piece.rank, piece.node))
                text = piece.data.decode(errors="replace")
                if piece.stream == "stdout":
                    rank.out = (rank.out + text)[-TAIL:]
                else:
                    rank.err = (rank.err + text)[-TAIL:]
    if failure := job.failure:
        nodes.setdefault(failure.node, NodeView(failure.node))
        rank = ranks.setdefault(failure.rank, Rank(failure.rank, failure.node))
        rank.exit_code, rank.ended = failure.exit_code, job.finished or 0.0
    return Evidence(job, nodes, ranks)


def _collect(
    job: Job, cluster: Cluster, pool: Pool, report: Reporter, deadline: Deadline
) -> Evidence:
    names = list_nodes(job, cluster)
    views = {view.name: view for view in read_clocks(names, pool, deadline)}
    there = [name for name in names if not views[name].error]
    scripts = {name: _render_look(job, cluster, name, there) for name in there}
    found = _look(job, cluster, pool, views, scripts, min(ANSWER, deadline.left))
    if any(rank.alive for rank in found.ranks.values()):
        _add_stacks(found, cluster, pool, report, deadline)
    if not job.state.ended and doctor.is_ending(found) and deadline.left > SETTLE + 1:
        time.sleep(SETTLE)
        scripts = {name: _render_look(job, cluster, name, ()) for name in there}
        limit = min(ANSWER, deadline.left)
        found = doctor.keep_stacks(found, _look(job, cluster, pool, found.nodes, scripts, limit))
    if any(rank.alive for rank in found.ranks.values()):
        return _watch(found, cluster, pool, report, deadline)
    return found


def _look(
    job: Job,
    cluster: Cluster,
    pool: Pool,
    known: Mapping[str, NodeView],
    scripts: Mapping[str, bytes],
    limit: float,
) -> Evidence:
    """What these nodes show now; of the others, and of all clocks, what is known."""
    views = dict(known)
    for result in pool.run("exec /bin/sh -s", list(scripts), stdin=scripts, timeout=limit):
        view = node_views.read_look(result.node, result.text)
        view.error = result.error if not result.text else ""
        view.address = cluster.node(result.node).private_address
        before = views[result.node]
        view.offset, view.uncertainty = before.offset, before.uncertainty
        views[result.node] = view
    return doctor.assemble(job, views)


def read_clocks(names: Sequence[str], pool: Pool, deadline: Deadline) -> tuple[NodeView, ...]:
    """How far the clocks of these nodes are off, or why they do not answer. Each has CONNECT
    seconds for both, the connection and its time, and no more than the deadline leaves."""
    clocks: dict[str, tuple[float, float]] = {}

    def read_clock(name: str) -> NodeResult:
        limit = deadline.limit(CONNECT)
        pool.find_transport(name).connect(limit.left)
        before = time.time()
        result = pool.find_transport(name).run("date +%s.%N", timeout=limit.left)
        after = time.time()
        if result.ok:
            when = float(result.text.split()[-1])
            clocks[name] = when - (before + after) / 2, (after - before) / 2
        return result

    views = []
    for result in pool.call_each(read_clock, names):
        offset, uncertainty = clocks.get(result.node, (0.0, 0.0))
        view = NodeView(result.node, error=result.error, offset=offset, uncertainty=uncertainty)
        views.append(view)
    return tuple(views)


def _render_look(job: Job, cluster: Cluster, name: str, there: Sequence[str]) -> bytes:
    """Each node that runs ranks tries to reach the next one of those that answer."""
    node = cluster.node(name)
    ring = [other for other in list_rank_nodes(job, cluster) if other in there]
    peers = []
    if name in ring and len(ring) > 1 and not cluster.one_host:
        peer = cluster.node(ring[(ring.index(name) + 1) % len(ring)])
        peers = [{"name": peer.name, "host": peer.name}]
    return assets.render(
        "insight/look.sh.j2",
        id=job.id,
        node=name,
        root=node.root,
        tag=f"{cluster.id}/{job.id};",
        python_folder=node.python.rpartition("/")[0] or "/nowhere",
        spot=cluster.spec.cloud.spot and bool(node.machine),
        kernel=node_views.KERNEL,
        tail=TAIL,
        peers=peers,
        python=node.python,
        working=job.spec.program.folder,
        recorder=next((job.spec.env[name] for name in RECORDER if name in job.spec.env), ""),
    ).encode()


def _add_stacks(
    found: Evidence, cluster: Cluster, pool: Pool, report: Reporter, deadline: Deadline
) -> None:
    """Adds the stacks of all ranks that live, and what they use of the processor."""
    by_node: dict[str, dict[int, Rank]] = {}
    helpers: dict[str, dict[int, Rank]] = {}
    for rank in found.ranks.values():
        if rank.alive and (main := rank.main):
            by_node.setdefault(rank.node, {})[main.pid] = rank
            more = helpers.setdefault(rank.node, {})
            more |= {p.pid: rank for p in rank.others[: max(0, HELPERS - len(more))]}
    scripts: dict[str, str] = {}
    for name, ranks in by_node.items():
        view, node = found.nodes[name], cluster.node(name)
        scripts[name] = assets.render(
            "insight/stacks.sh.j2",
            node=name,
            root=node.root,
            spy=view.spy,
            sudo="sudo -n" if view.user and view.ptrace_scope else "",
            pids=list(ranks),
            helpers=list(helpers[name]),
            stopped=[pid for pid, rank in ranks.items() if rank.stopped],
            limit=max(1, min(DUMP, int(deadline.left / 2) - 1)),
        )
    spies, why = _bring_spy(found, cluster, list(by_node))
    report(f"reading the stacks of {count(sum(map(len, by_node.values())), 'rank')}")

    def ask(name: str) -> NodeResult:
        return pool.find_transport(name).run(
            scripts[name], stdin=spies[name], timeout=deadline.left
        )

    for result in pool.call_each(ask, list(by_node)):
        dumps = node_views.read_dumps(result.text)
        node = cluster.node(result.node)
        scope = found.nodes[result.node].ptrace_scope
        for pid, rank in by_node[result.node].items():
            work = f"{node.root}/jobs/{found.job.id}/work"
            rank.stack = stacks.parse(dumps.stacks.get(pid, ""), work)
            rank.usage = dumps.usage.get(pid)
            rank.running = pid in dumps.running
            rank.throttled = dumps.throttled.get(pid, 0.0)
            rank.no_stack = (
                why or result.error or _explain_no_stack(dumps.failed.get(pid, ""), rank, scope)
            )
        for pid, rank in helpers[result.node].items():
            work = f"{node.root}/jobs/{found.job.id}/work"
            if stack := stacks.parse(dumps.stacks.get(pid, ""), work):
                rank.helpers = {**rank.helpers, f"its process {pid}": stack}


def _bring_spy(
    found: Evidence, cluster: Cluster, names: Sequence[str]
) -> tuple[Mapping[str, bytes], str]:
    """What each of these nodes is given of py-spy: nothing where it has its own; and why there is
    nothing to give."""
    without = [name for name in names if not found.nodes[name].spy]
    why = (
        own_spy.explain_missing({cluster.node(name).facts.arch for name in names})
        if without
        else ""
    )
    spy = own_spy.compress() if without and not why else b""
    return {name: spy if name in without else b"" for name in names}, why


def _watch(
    found: Evidence, cluster: Cluster, pool: Pool, report: Reporter, deadline: Deadline
) -> Evidence:
    """Sees whether ranks that wait for others go on: then these are slow, and do not hang. A
    single look may find ranks that poll at any two places, for they are not looked at in the same
    instant."""
    by_node: dict[str, dict[int, Rank]] = {}
    watched = doctor.find_watchable(found)
    for number in watched:
        rank = found.ranks[number]
        if main := rank.main:
            by_node.setdefault(rank.node, {})[main.pid] = rank
    seconds = min(waits.WATCH, int(deadline.left) - 2)
    if not by_node:
        return found
    if seconds < 1:
        return replace(found, unwatched=tuple(by_node))
    spies, _ = _bring_spy(found, cluster, list(by_node))
    report(f"watching for {seconds} s whether the waiting ranks make progress")

    def ask(name: str) -> NodeResult:
        view, node, ranks = found.nodes[name], cluster.node(name), by_node[name]
        script = assets.render(
            "insight/moves.sh.j2",
            node=name,
            root=node.root,
            spy=view.spy,
            sudo="sudo -n" if view.user and view.ptrace_scope else "",
            ranks=[(pid, watched[rank.number]) for pid, rank in ranks.items()],
            native="polls" in watched.values(),  # MPI's calls are C
            seconds=seconds,
            limit=max(1, int(deadline.left / 4)),
        )
        return pool.find_transport(name).run(script, stdin=spies[name], timeout=deadline.left)

    silent = []
    for result in pool.call_each(ask, list(by_node)):
        silent += [result.node] * bool(result.error)
        moves, looks = node_views.read_moves(result.text), node_views.read_looks(result.text)
        work = f"{cluster.node(result.node).root}/jobs/{found.job.id}/work"
        for pid, rank in by_node[result.node].items():
            seen = [stacks.parse(text, work) for text in looks.get(pid, ())]
            kind, later = watched[rank.number], [item for item in seen if item]
            node_views.compare_looks(rank, kind, moves.get(pid), later)
    return replace(found, watched=seconds, unwatched=tuple(silent))


def _explain_no_stack(said: str, rank: Rank, scope: int) -> str:
    """Why py-spy has no stack of a process."""
    if rank.main and rank.main.command != "python":
        where = f"; the kernel reports that it is in {rank.waits}" if rank.waits else ""
        return f"{rank.main.command} is not a Python program{where}"
    if "ermission denied" in said or "not permitted" in said:
        allow = "; `sudo sysctl kernel.yama.ptrace_scope=0` there allows it" if scope else ""
        return f"the node does not allow reading its processes{allow}"
    return said.removeprefix("Error: ") or "py-spy did not answer in time"

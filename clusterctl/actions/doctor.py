"""`doctor`: looks at a job on all its nodes at once, and says why it hangs or has failed; and at
the machines of a cluster that do not run or answer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.actions import jobs, status
from clusterctl.actions.common import open_pool
from clusterctl.batch.system import list_nodes, list_rank_nodes, load_system
from clusterctl.core import stacks as core_stacks
from clusterctl.core.clock import Deadline
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster, NodeResult, Phase, Reporter
from clusterctl.core.stacks import Folded
from clusterctl.core.text import count, list_last_lines
from clusterctl.insight import node_views
from clusterctl.insight.doctor import causes, waits
from clusterctl.insight.doctor import findings as doctor_findings
from clusterctl.insight.doctor.findings import Evidence, Finding
from clusterctl.insight.node_views import NodeView, Rank, Spied
from clusterctl.jobs import control, submit
from clusterctl.jobs.records import read_stored
from clusterctl.machines.providers import load_provider
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool

LIMIT = 11.0
"""Seconds that the look may take."""
CONNECT, ANSWER, REFRESH = 5.0, 8.0, 3.0
"""Seconds for a connection to a node, for what the node shows, and for the state of the job."""
SHORTEST = 1.0
"""Seconds within which no stack can be read."""
SETTLE = 1.0
"""Seconds after which ranks that end are looked at again."""
DUMP = 6
"""Seconds that the stack of one process may take."""
HELPERS = 16
"""Processes beside the ranks' own whose stacks are read on a node."""
TAIL = 64_000
"""Bytes of each output of each rank that are read."""


BOOT_LOG = "tail -n 50 /var/log/cloud-init-output.log"


class MachineView(Struct, frozen=True):
    """A machine that does not run or answer, or is not ready: the end of its console, and of what
    cloud-init has logged there."""

    node: str
    state: str
    console: Sequence[str] = ()
    cloud_init: Sequence[str] = ()


def look_at_machines(store: Store, cluster: Cluster) -> tuple[tuple[MachineView, ...], list[str]]:
    """Those of a cluster that clusterctl has made or was given, and what else is wrong with it.
    Raises ProviderError."""
    provider, folder = load_provider(cluster.spec.provider), store.locate_folder(cluster.name)
    found = status.read_status(store, cluster, live=True)
    states = {one.node.name: one.live for one in found.nodes}
    states = states or provider.describe(cluster, folder)
    there = [name for name, state in states.items() if state.startswith(("running, ", "answers"))]
    silent = [name for name in states if name not in there]
    consoles = provider.read_consoles(cluster, folder, silent) if silent else {}
    logs: dict[str, tuple[str, ...]] = {}
    unfinished = cluster.phase is Phase.CREATING
    if there and unfinished and provider.features.fresh_machines:
        with open_pool(store, cluster) as pool:
            results = pool.run(BOOT_LOG, there, timeout=ANSWER)
            logs = {one.node: list_last_lines(one.text) for one in results}
    for name, state in states.items() if unfinished else ():
        if state.startswith("running, "):
            states[name] = f"{state}; it answers SSH"
        elif state == "running":
            states[name] = "running; its address is not on record yet, so SSH was not tried"
    views = (
        MachineView(name, state, consoles.get(name, ()), logs.get(name, ()))
        for name, state in states.items()
        if name in silent or unfinished
    )
    return tuple(views), list(found.warnings)


class Diagnosis(Struct, frozen=True):
    """`stacks`: ranks at the same place together. `summary` where nothing is wrong."""

    job: Job
    findings: tuple[Finding, ...]
    stacks: tuple[Folded, ...]
    summary: str
    seconds: float


def diagnose(store: Store, number: int, where: str | None, report: Reporter) -> Diagnosis:
    """Asks the nodes within the limit; after `down`, what was saved of the job is judged."""
    began = time.monotonic()
    deadline = Deadline(LIMIT)
    job = jobs.find_job(store, number, where)
    cluster = jobs.find_cluster(store, job)
    if cluster is None or cluster.phase is not Phase.READY:
        found = _load_stored(store, job)
    else:
        with open_pool(store, cluster) as pool:
            refresh = partial(_refresh, store, cluster, pool, deadline)
            job = job if job.placement else refresh(job)
            found = _collect(job, cluster, pool, report, deadline, refresh)
        job = found.job
        found = doctor_findings.fill_in(found, _load_stored(store, job))
    # The stacks of an attempt that was ended count until another one runs.
    hang = next((item for item in job.hangs if item.attempt == job.attempt), None)
    if hang and job.state.ended:
        found = doctor_findings.restore_stacks(found, hang)
    findings = causes.judge(found)
    if hang and job.state.ended:
        findings += (causes.describe_hang(found, hang),)
    summary = causes.summarize(found, findings)
    if cluster and job.state is JobState.QUEUED:
        summary = load_system(cluster.system).describe_wait(job)
    return Diagnosis(
        job=job,
        findings=findings,
        stacks=core_stacks.fold(found.stacks, callers=True),
        summary=summary,
        seconds=time.monotonic() - began,
    )


def _refresh(store: Store, cluster: Cluster, pool: Pool, deadline: Deadline, job: Job) -> Job:
    """The job as it is now. It is not worth much time: the ranks' files say what has failed."""
    if job.state.ended or not store.is_handed_in(job.id):
        return job
    now = control.refresh(job, cluster, pool, deadline.limit(min(REFRESH, deadline.left / 2)))
    store.save_job(now)
    return now


def _load_stored(store: Store, job: Job) -> Evidence:
    """What the state home has of the job: its output, and the rank that failed first."""
    ranks: dict[int, Rank] = {}
    nodes: dict[str, NodeView] = {}
    for pieces in read_stored(store.locate_job_folder(job.id)):
        for piece in pieces:
            if piece.rank is not None:
                nodes.setdefault(piece.node, NodeView(piece.node))
                rank = ranks.setdefault(piece.rank, Rank(piece.rank, piece.node))
                name = "out" if piece.stream == "stdout" else "err"
                text = getattr(rank, name) + piece.data.decode(errors="replace")
                setattr(rank, name, text[-TAIL:])
    if failure := job.failure:
        nodes.setdefault(failure.node, NodeView(failure.node))
        rank = ranks.setdefault(failure.rank, Rank(failure.rank, failure.node))
        rank.exit_code, rank.ended = failure.exit_code, job.finished or 0.0
    return Evidence(job, nodes, dict(sorted(ranks.items())))


def _collect(
    job: Job,
    cluster: Cluster,
    pool: Pool,
    report: Reporter,
    deadline: Deadline,
    refresh: Callable[[Job], Job],
) -> Evidence:
    began = time.monotonic()
    asked = {name: _render_look(job, cluster, name) for name in list_nodes(job, cluster)}
    views = ask_nodes(asked, pool, deadline.limit(ANSWER))
    if bare := [name for name, view in views.items() if view.bare]:
        submit.place_agents(bare, cluster, pool)
        views |= ask_nodes({name: asked[name] for name in bare}, pool, deadline.limit(ANSWER))
    found = doctor_findings.assemble(job, views)
    for view in found.nodes.values():
        view.address = cluster.node(view.name).private_address
    shown = [view for view in found.nodes.values() if not view.error]
    found = doctor_findings.note_missed(
        found, "list", [view.name for view in shown if not view.listed]
    )
    unseen = [view.name for view in shown if view.listed and not view.whole]
    found = doctor_findings.note_missed(found, "rest", unseen)
    took = time.monotonic() - began
    if any(rank.alive for rank in found.ranks.values()):
        found = _add_stacks(found, cluster, pool, report, deadline)
    job = refresh(job)
    has_ended = job.state.ended and not found.job.state.ended
    found = replace(found, job=job)
    ends = has_ended or (not job.state.ended and doctor_findings.is_ending(found))
    if ends and deadline.left > SETTLE + took:
        time.sleep(SETTLE)
        again = [name for name, view in found.nodes.items() if not view.error]
        asked = {name: _render_look(job, cluster, name, whole=False) for name in again}
        later = doctor_findings.assemble(job, ask_nodes(asked, pool, deadline.limit(ANSWER)))
        found = doctor_findings.keep_stacks(found, later)
    if any(rank.alive for rank in found.ranks.values()):
        return _watch(found, cluster, pool, report, deadline)
    return found


def ask_nodes(commands: Mapping[str, str], pool: Pool, deadline: Deadline) -> dict[str, NodeView]:
    """What these nodes show until the deadline, and how far their clocks are off; or why they do
    not answer. Each has CONNECT seconds of that for its connection."""
    sent: dict[str, float] = {}
    answered: dict[str, float] = {}
    late: set[str] = set()

    def ask(name: str) -> NodeResult:
        transport = pool.find_transport(name)
        limit = deadline.limit(CONNECT)
        try:
            transport.connect(limit.left)
        finally:
            late.update([name] * limit.passed)
        sent[name] = time.time()

        def note_answer(data: bytes) -> None:
            answered.setdefault(name, time.time())

        return transport.run(commands[name], timeout=deadline.left, on_stdout=note_answer)

    views = {}
    for result in pool.call_each(ask, list(commands)):
        name = result.node
        view = views[name] = node_views.read_look(name, result.text)
        if not view.clock:
            view.error, view.bare = result.why, result.exit_code == submit.NO_AGENT
            view.late = bool(result.error) and (name in late or deadline.passed)
        else:
            before, after = sent[name], answered[name]
            view.offset, view.uncertainty = view.clock - (before + after) / 2, (after - before) / 2
    return views


def _render_look(job: Job, cluster: Cluster, name: str, *, whole: bool = True) -> str:
    """`whole`: each node that runs ranks tries to reach the next one."""
    node = cluster.node(name)
    ring = list_rank_nodes(job, cluster)
    peer = ""
    if whole and name in ring and len(ring) > 1 and not cluster.one_host:
        peer = ring[(ring.index(name) + 1) % len(ring)]
    settings = {
        "tag": f"CLUSTERCTL_JOB={cluster.id}/{job.id};",
        "python_folder": node.python.rpartition("/")[0],
        "tail": TAIL,
        "spot": cluster.spec.cloud.spot and bool(node.machine),
        "peer": peer,
    }
    return submit.render_question(node, job.id, "show", settings)


def _group(ranks: Iterable[Rank]) -> dict[str, dict[int, Rank]]:
    """By node, and by the process whose stack counts."""
    found: dict[str, dict[int, Rank]] = {}
    for rank in ranks:
        if main := rank.main:
            found.setdefault(rank.node, {})[main.pid] = rank
    return found


def _add_stacks(
    found: Evidence, cluster: Cluster, pool: Pool, report: Reporter, deadline: Deadline
) -> Evidence:
    """Adds the stacks of all ranks that live, and what they use of the processor."""
    by_node = _group(found.living.values())
    helpers = {
        name: dict(islice(((p.pid, r) for r in ranks.values() for p in r.others), HELPERS))
        for name, ranks in by_node.items()
    }
    if deadline.left < SHORTEST:
        return doctor_findings.note_missed(found, "stacks", by_node)
    report(f"reading the stacks of {count(sum(map(len, by_node.values())), 'rank')}")
    values = {
        name: {
            "pids": list(ranks),
            "helpers": list(helpers[name]),
            "stopped": [pid for pid, rank in ranks.items() if rank.stopped],
            "limit": max(1, min(DUMP, int(deadline.left / 2) - 1)),
        }
        for name, ranks in by_node.items()
    }
    results, why = _run_spy(found, cluster, pool, deadline, "show_stacks", values)
    for result in results:
        spied = _read_spied(found, cluster, result)
        scope = found.nodes[result.node].ptrace_scope
        for pid, rank in by_node[result.node].items():
            seen = spied[pid]
            rank.stack = seen.stack
            rank.usage, rank.running, rank.throttled = seen.usage, seen.running, seen.throttled
            rank.no_stack = why or result.error or _explain_no_stack(seen.failed, rank, scope)
        for pid, rank in helpers[result.node].items():
            if stack := spied[pid].stack:
                rank.helpers = {**rank.helpers, f"its process {pid}": stack}
    return doctor_findings.note_missed(found, "stacks", [r.node for r in results if r.error])


def _run_spy(
    found: Evidence,
    cluster: Cluster,
    pool: Pool,
    deadline: Deadline,
    verb: str,
    values: Mapping[str, Mapping[str, object]],
) -> tuple[tuple[NodeResult, ...], str]:
    """What the agent reads by py-spy on these nodes, with the values of each. Nodes without one
    are given it; and why there is none to give."""
    without = [name for name in values if not found.nodes[name].spy]
    why = submit.explain_missing({cluster.node(n).facts.arch for n in values}) if without else ""
    spies = dict.fromkeys(without, submit.compress() if without and not why else b"")
    asked = {}
    for name, more in values.items():
        node = cluster.node(name)
        folder = node.python.rpartition("/")[0]
        more = {**more, "python_folder": folder}
        asked[name] = submit.render_question(node, found.job.id, verb, more)
    return pool.run(asked, stdin=spies, timeout=deadline.left), why


def _read_spied(found: Evidence, cluster: Cluster, result: NodeResult) -> Mapping[int, Spied]:
    folder = f"{cluster.node(result.node).root}/jobs/{found.job.id}/work"
    return defaultdict(Spied, node_views.read_spied(result.text, folder))


def _watch(
    found: Evidence, cluster: Cluster, pool: Pool, report: Reporter, deadline: Deadline
) -> Evidence:
    """Sees whether ranks that wait for others go on: then these are slow, and do not hang. A
    single look may find ranks that poll at any two places, for they are not looked at in the same
    instant."""
    watched = waits.find_watchable(found)
    by_node = _group(found.ranks[number] for number in watched)
    seconds = min(doctor_findings.WATCH, int(deadline.left) - 2)
    if not by_node:
        return found
    if seconds < 1:
        return doctor_findings.note_missed(found, "watch", by_node)
    report(f"watching for {seconds} s whether the waiting ranks make progress")
    values = {
        name: {
            "ranks": [(pid, watched[rank.number]) for pid, rank in ranks.items()],
            "native": "polls" in watched.values(),  # MPI's calls are C
            "seconds": seconds,
            "limit": max(1, int(deadline.left / 4)),
        }
        for name, ranks in by_node.items()
    }
    results, _ = _run_spy(found, cluster, pool, deadline, "show_moves", values)
    for result in results:
        spied = _read_spied(found, cluster, result)
        for pid, rank in by_node[result.node].items():
            kind = watched[rank.number]
            node_views.compare_looks(rank, kind, spied[pid].moved, spied[pid].looks)
    silent = [result.node for result in results if result.error]
    return doctor_findings.note_missed(replace(found, watched=seconds), "watch", silent)


def _explain_no_stack(said: str, rank: Rank, scope: int) -> str:
    """Why py-spy has no stack of a process."""
    if rank.main and rank.main.command != "python":
        where = f"; the kernel reports that it is in {rank.waits}" if rank.waits else ""
        return f"{rank.main.command} is not a Python program{where}"
    if "ermission denied" in said or "not permitted" in said:
        allow = "; `sudo sysctl kernel.yama.ptrace_scope=0` there allows it" if scope else ""
        return f"the node does not allow reading its processes{allow}"
    return said.removeprefix("Error: ") or "py-spy did not answer in time"

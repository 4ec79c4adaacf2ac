"""`verify`: measures all nodes and links of a cluster; compares them with the expected values."""

from __future__ import annotations

import base64
import json
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from clusterctl.actions import jobs, run
from clusterctl.actions.common import open_pool, require_ready
from clusterctl.actions.run import run_quietly
from clusterctl.batch.system import load_system
from clusterctl.core import assets, clock
from clusterctl.core.clock import Deadline
from clusterctl.core.job import JobSpec, JobState
from clusterctl.core.model import Accelerator, Cluster, Node, NodeResult, Reporter
from clusterctl.core.text import count
from clusterctl.errors import (
    ClusterctlError,
    NodeUnreachable,
    RecordError,
    UsageError,
    describe_reason,
)
from clusterctl.insight import verify
from clusterctl.insight.verify import Gpu, LeftOut, Link, Measurements, NodeFigures, Reduction
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool
from clusterctl.transport.protocol import Channel

# -------------------------------------------------------------------------------------------------
# Processes on the workers that measure what they are told, for `verify`.


MARK = b"@@probe "

PROBE = ("insight/probe_links.py", "insight/probe.py")

CONNECT, ANSWER = 6.0, 20.0
"""Seconds for connections, and for one answer of a probe."""
LEAST = 0.5
"""Seconds that even a late answer is waited for."""
SLACK = 1.0
"""Seconds that a probe has to tell that its helper did not answer in time."""

NO_TIME = "no time left"

Answer = dict[str, Any]


def list_machines(cluster: Cluster) -> set[str]:
    """The machines that the workers are, by their boot ids."""
    if cluster.shares_machine:
        return {cluster.name}
    return {node.facts.boot_id or node.name for node in cluster.workers}


class Probes:
    """A process on each worker (templates/insight/probe.py), which ends with its connection. Those
    that fail are in `failed`, and are asked no more."""

    def __init__(self, cluster: Cluster, pool: Pool, deadline: Deadline) -> None:
        self._cluster, self._pool, self.deadline = cluster, pool, deadline
        self._channels: dict[str, Channel] = {}
        self._buffers: dict[str, bytearray] = {}
        self.failed: dict[str, str] = {}
        self.one_host = cluster.one_host
        machines = list_machines(cluster)
        self.shared = len(machines) < len(cluster.workers)
        """Some of the nodes are one machine, and would disturb each other."""

    def __enter__(self) -> Probes:
        folder = assets.find_folder("templates")
        code = base64.b64encode(b"".join((folder / part).read_bytes() for part in PROBE))

        def start(name: str) -> NodeResult:
            transport = self._pool.find_transport(name)
            transport.connect(CONNECT)
            command = _render_command(self._cluster.node(name))
            channel = transport.open(command, timeout=self.limit_seconds(ANSWER))
            self._channels[name], self._buffers[name] = channel, bytearray()
            channel.send(code + b"\n", self.limit_seconds(ANSWER))
            return NodeResult(node=name, exit_code=0)

        for node in self._cluster.workers:
            if not node.python:
                self.failed[node.name] = "no Python is installed"
        names = [node.name for node in self._cluster.workers if node.python]
        # What a dead node takes must not be missing for the others.
        with self.deadline.pause():
            results = self._pool.call_each(start, names)
        self.failed.update({result.node: result.error for result in results if result.error})
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()

    @property
    def names(self) -> list[str]:
        return [n.name for n in self._cluster.workers if n.name not in self.failed]

    def limit_seconds(self, most: float) -> float:
        """For one answer; never so few that a node has no chance."""
        return max(LEAST, min(most, self.deadline.left))

    def send(self, name: str, action: str, **values: Any) -> None:
        if name in self.failed:
            return
        try:
            line = json.dumps({"do": action, **values}).encode() + b"\n"
            self._channels[name].send(line, self.limit_seconds(ANSWER))
        except OSError as error:
            self.failed[name] = describe_reason(error) or "the connection is lost"

    def read_answer(self, name: str, most: float = ANSWER) -> Answer:
        """Its next answer; {"error": why} where there is none."""
        deadline = Deadline(most)
        while name not in self.failed:
            buffer = self._buffers[name]
            line, newline, rest = bytes(buffer).partition(b"\n")
            if newline:
                buffer[:] = rest
                if MARK in line:
                    found: Answer = json.loads(line.partition(MARK)[2])
                    return found
                continue  # what a login shell says
            try:
                data = self._channels[name].receive(max(0.1, deadline.left))
            except TimeoutError:
                self.failed[name] = f"no answer in {deadline.seconds:.2g} s"
            except OSError as error:
                self.failed[name] = describe_reason(error) or "the connection is lost"
            else:
                if not data:
                    self.failed[name] = "its Python process ended"
                buffer += data
        return {"error": self.failed[name]}

    def ask(
        self, asked: Mapping[str, Mapping[str, Any]], action: str, most: float = ANSWER
    ) -> dict[str, Answer]:
        """One question to several nodes at once, each with values of its own. With a `limit` among
        these, a process of its own answers it within so many seconds."""
        for name, values in asked.items():
            self.send(name, action, **values)
        until = Deadline(self.limit_seconds(most))
        found = {}
        for name, values in asked.items():
            wait = values["limit"] + SLACK if "limit" in values else until.left
            found[name] = self.read_answer(name, wait)
        return found

    def plan_turns(self, names: Sequence[str]) -> list[list[str]]:
        """Who is measured at once: all, or one after the other where they share a machine."""
        return [[name] for name in names] if self.shared else [list(names)]


def _render_command(node: Node) -> str:
    """The Python in which ranks run: in the node's container where it has one."""
    program = (
        "import sys; sys.path = [p for p in sys.path if p];"
        " import base64; exec(base64.b64decode(sys.stdin.readline()))"
    )
    command = f"exec {shlex.quote(node.python)} -u -c {shlex.quote(program)}"
    if node.job_port == node.ssh_port:
        return command
    agent = shlex.quote(f"{node.root}/bin/clusterctl-ssh")
    return f"exec {agent} {shlex.quote(node.name)} {shlex.quote(command)}"


# -------------------------------------------------------------------------------------------------
# Measures the links between the nodes of a cluster, for `verify`, as far as there is time.


FLOWS = (1, 4)
SHORTEST = 0.01
"""Seconds of each flow where there are many links."""

LINK_PATIENCE = 5.0
"""Seconds for a connection."""

Pair = tuple[str, str]


def measure_links(
    cluster: Cluster, probes: Probes, seconds: float, deadline: Deadline
) -> tuple[tuple[Link, ...], tuple[LeftOut, ...]]:
    """All pairs, in rounds in which no node has two partners; nodes of one machine pair by pair.
    Only the first of them where there is no time for all."""
    turns: Sequence[Sequence[Pair]] = verify.pair_up(probes.names)
    if probes.shared:
        turns = [[pair] for turn in turns for pair in turn]
    found: list[Link] = []
    left_out: list[str] = []
    for number, turn in enumerate(turns):
        # Either side may be silent by now.
        pairs = [pair for pair in turn if not set(pair) & set(probes.failed)]
        if deadline.passed:
            left_out += [f"{a} – {b}" for a, b in turn]
            continue
        # Four times as long as one flow, and the connections.
        brief = max(SHORTEST, min(seconds, deadline.left / (len(turns) - number) / 5))
        patience = min(LINK_PATIENCE, max(LEAST, deadline.left / 2))
        found += _measure_turn(cluster, probes, pairs, brief, patience)
    more = (LeftOut("link", tuple(left_out), NO_TIME),) if left_out else ()
    return tuple(found), more


def _measure_turn(
    cluster: Cluster, probes: Probes, turn: Sequence[Pair], seconds: float, patience: float
) -> list[Link]:
    token = secrets.token_hex(8)
    address = {name: cluster.node(name).private_address for pair in turn for name in pair}
    given: dict[str, Any] = {
        **{"token": token, "flows": FLOWS, "seconds": seconds, "patience": patience}
    }
    for first, _ in turn:
        probes.send(first, "serve", address=address[first], **given)
    ports = {first: probes.read_answer(first) for first, _ in turn}
    called = [(first, second) for first, second in turn if "port" in ports[first]]
    for first, second in called:
        where = {"address": address[first], "port": ports[first]["port"]}
        probes.send(second, "call", **where, **given)
    answers = {pair: (probes.read_answer(pair[1]), probes.read_answer(pair[0])) for pair in called}
    found = []
    for pair in turn:
        call, served = answers.get(pair, (ports[pair[0]], {}))
        error = call.get("error") or served.get("error")
        if error:
            found.append(Link(*pair, error=f"no connection: {error}"))
        else:
            flow, rate = served["rates"]
            found.append(Link(*pair, call["latency"], flow, max(flow, rate), call["back"]))
    return found


# -------------------------------------------------------------------------------------------------
# Measures the nodes of a cluster, for `verify`: each figure by itself, as far as there is time.


GEMM = "GEMM"
PARTS = {"processor": "processor", "memory": "memory copy", "disk": "disk write", "gemm": GEMM}
"""What a probe measures, and what people call it."""
TORCH = 20.0
"""Seconds that loading PyTorch may take: a few, but on a busy machine."""

SHORTEST_PROBE = 0.02
"""Seconds of a measurement where there are many to make."""


@dataclass(slots=True)
class Measured:
    """The figures so far, and what there was no time for."""

    figures: dict[str, NodeFigures]
    left_out: list[LeftOut]

    def take(self, name: str, what: str, answer: Answer) -> None:
        """One more answer: figures, or the reason why there are none."""
        figures = self.figures[name]
        if "error" in answer:
            figures.failed = {**figures.failed, what: str(answer["error"])}
            return
        figures.cores = answer.get("cores", figures.cores)
        figures.device = answer.get("device", figures.device)
        figures.line_rate = answer.get("speed", figures.line_rate)
        figures.shaping = answer.get("shaping", figures.shaping)
        if answer.get("load", 0.0) > figures.load:
            figures.load, figures.busiest = answer["load"], answer["busiest"]
        figures.visible = max(figures.visible, answer.get("visible", 0.0))
        figures.throttled = answer.get("throttled", figures.throttled)
        figures.core = answer.get("one", figures.core)
        figures.share = answer.get("share", figures.share)
        figures.together = answer.get("all", figures.together)
        figures.steal = answer.get("steal", figures.steal)
        figures.memory = answer.get("memory", figures.memory)
        figures.disk = answer.get("disk", figures.disk)
        figures.gemm = answer.get("rates", figures.gemm)
        more = {f"{GEMM} {name}": why for name, why in answer.get("failed", {}).items()}
        figures.failed = {**figures.failed, **more}

    @property
    def nodes(self) -> tuple[NodeFigures, ...]:
        """Those of which something was measured, or failed."""
        return tuple(n for n in self.figures.values() if n.cores or n.error or n.failed)

    def leave_out(self, what: str, names: Iterable[str], why: str) -> None:
        """Together with others that were left out for the same reason."""
        if not (subjects := tuple(names)):
            return
        for number, item in enumerate(self.left_out):
            if (item.what, item.why) == (what, why):
                self.left_out[number] = replace(item, subjects=item.subjects + subjects)
                return
        self.left_out.append(LeftOut(what, subjects, why))


def measure_nodes(
    cluster: Cluster, pool: Pool, probes: Probes, seconds: float, size: int, deadline: Deadline
) -> Measured:
    """All but the rates of GEMM. `seconds` of each measurement, and bytes on the disk."""
    found = Measured({node.name: _start(node) for node in cluster.workers}, [])
    for name, why in probes.failed.items():
        found.figures[name].error = why
    if deadline.passed:
        found.leave_out("node", probes.names, NO_TIME)
        return found
    first = deadline.left / 3  # of a node that is silent, the others must not have to wait longer
    _read_clocks(found, pool, probes, first)
    addresses = {name: {"address": cluster.node(name).private_address} for name in probes.names}
    for name, answer in probes.ask(addresses, "start", first).items():
        found.figures[name].error = str(answer.get("error", ""))
        found.take(name, "cores", answer)
    look_for_others(found, probes, first)
    _measure_gpus(found, cluster, pool, probes.limit_seconds(first))
    turns = probes.plan_turns(probes.names)
    for number, turn in enumerate(turns):
        share = deadline.left / (len(turns) - number) / 6
        brief = max(SHORTEST_PROBE, min(seconds, share))
        for part in ("processor", "memory", "disk"):
            asked: dict[str, Mapping[str, Any]] = {
                name: {
                    "seconds": brief,
                    "size": size,
                    "folder": cluster.node(name).root,
                    "limit": min(ANSWER, max(LEAST, deadline.left)),
                }
                for name in turn
                if name not in probes.failed
            }
            _ask(found, probes, part, asked, deadline)
    return found


def look_for_others(found: Measured, probes: Probes, seconds: float) -> None:
    """Who else uses the processors: all nodes at once, before anything is measured and after all
    has been, for what comes in between slows the figures down."""
    everybody: dict[str, Mapping[str, Any]] = {name: {} for name in probes.names}
    for name, answer in probes.ask(everybody, "load", seconds).items():
        if probes.one_host:  # each node shows what all of them do
            answer = {**answer, "visible": 0.0}
        found.take(name, "processor", answer)


def measure_gemm(found: Measured, probes: Probes, seconds: float, deadline: Deadline) -> None:
    """PyTorch is loaded on as many nodes of a machine at once as it has cores, and goes again
    before the next ones."""
    names = probes.names
    cores = max((found.figures[name].cores for name in names), default=1) or 1
    wave = cores if probes.shared else len(names)
    for begin in range(0, len(names), max(1, wave)):
        group = [name for name in names[begin : begin + wave] if name not in probes.failed]
        limit = min(TORCH, deadline.left)
        if limit < LEAST:
            found.leave_out(GEMM, names[begin:], NO_TIME)
            return
        loaded = probes.ask({name: {"limit": limit} for name in group}, "torch")
        for turn in probes.plan_turns([name for name in group if "error" not in loaded[name]]):
            values = {"seconds": seconds, "limit": min(ANSWER, max(LEAST, deadline.left))}
            _ask(found, probes, "gemm", dict.fromkeys(turn, values), deadline)
        for name in group:
            if "error" in loaded[name]:
                _note_failure(found, "gemm", name, loaded[name])
        probes.ask({name: {} for name in group if name not in probes.failed}, "end")


def _ask(
    found: Measured,
    probes: Probes,
    part: str,
    asked: Mapping[str, Mapping[str, Any]],
    deadline: Deadline,
) -> None:
    if deadline.passed:
        found.leave_out(PARTS[part], asked, NO_TIME)
        return
    for name, answer in probes.ask(asked, part).items():
        if "error" in answer:
            _note_failure(found, part, name, answer)
        else:
            found.take(name, PARTS[part], answer)


def _note_failure(found: Measured, part: str, name: str, answer: Answer) -> None:
    """What the schedule cut off may be sound: there was no time for it."""
    if answer.get("late"):
        found.leave_out(PARTS[part], [name], NO_TIME)
    else:
        found.take(name, PARTS[part], answer)


def _start(node: Node) -> NodeFigures:
    kind = node.instance_type or f"{node.facts.arch} {node.facts.cores} {node.facts.gpus}"
    return NodeFigures(
        node.name,
        kind=kind,
        instance_type=node.instance_type,
        expected_cores=node.facts.cores,
        expected_gpus=len(node.facts.gpus),
    )


def _read_clocks(found: Measured, pool: Pool, probes: Probes, seconds: float) -> None:
    def read_clock(name: str) -> NodeResult:
        before = time.time()
        result = pool.find_transport(name).run("date +%s.%N", timeout=probes.limit_seconds(seconds))
        after = time.time()
        if result.error:
            return result
        figures = found.figures[name]
        try:
            told = float(result.text.split()[-1])
        except (ValueError, IndexError):
            why = result.text.strip() or f"`date` ended with {result.exit_code}"
            figures.failed = {**figures.failed, "clock": why}
        else:
            figures.offset, figures.uncertainty = told - (before + after) / 2, after - before
        return result

    for result in pool.call_each(read_clock, probes.names):
        if result.error:
            probes.failed[result.node] = found.figures[result.node].error = result.error


def _measure_gpus(found: Measured, cluster: Cluster, pool: Pool, seconds: float) -> None:
    """What each node's GPUs say of themselves, or why they do not."""
    fields = ",".join(verify.GPU_FIELDS)
    commands = {
        Accelerator.NVIDIA: f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits",
        Accelerator.AMD: "rocm-smi --showproductname --showtemp --showuse --showdriverversion"
        " --json",
    }
    asked = {
        n.name: commands[n.accelerator]
        for n in cluster.workers
        if n.accelerator in commands and not found.figures[n.name].error
    }
    for result in pool.run(asked, timeout=seconds) if asked else ():
        amd = cluster.node(result.node).accelerator is Accelerator.AMD
        read = verify.read_rocm_smi if amd else verify.read_nvidia_smi
        gpus: Sequence[Gpu] = read(result.text)
        said = result.text.strip().splitlines() or [result.why]
        figures = found.figures[result.node]
        figures.gpus, figures.gpu_error = tuple(gpus), "" if gpus else said[-1]


# -------------------------------------------------------------------------------------------------

PROGRAM = "reduce_all.py"
AFTER_UP = 15.0
"""Seconds that `up` may spend on it."""
NODES = 8
"""Nodes of which all is measured within the time of an `Effort`; more get more in proportion."""
REDUCTION, ENDING = 3.0, 1.5
"""Seconds without which no all-reduce is begun, and those for the end of one that is too slow."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds of each measurement at most, bytes on the disk, and seconds of all together: by
    which share of these the nodes, the rates of GEMM and the links have to be done."""

    compute: float
    link: float
    disk: int
    seconds: float
    nodes: float
    gemm: float
    links: float

    @property
    def thorough(self) -> bool:
        return self.gemm > 0


THOROUGH = Effort(
    compute=0.25, link=0.2, disk=64 << 20, seconds=28.8, nodes=0.25, gemm=0.5, links=0.6
)
QUICK = Effort(compute=0.1, link=0.1, disk=16 << 20, seconds=4.6, nodes=0.65, gemm=0.0, links=0.93)


def measure(
    store: Store,
    cluster: Cluster,
    report: Reporter,
    *,
    quick: bool,
    now: bool,
    whole_command: bool = False,
) -> Measurements:
    """Raises RecordError while a job runs, unless `now`; UsageError for a batch system. The time
    limit counts from the start of this process where it is a `whole_command`."""
    began = time.monotonic()
    effort = QUICK if quick else THOROUGH
    spent = min(clock.measure_age(), effort.seconds / 3) if whole_command else 0.0
    deadline = Deadline(effort.seconds * max(1.0, len(cluster.workers) / NODES) - spent)
    require_measurable(store, cluster, report, now=now)
    reductions: tuple[Reduction, ...] = ()
    with open_pool(store, cluster) as pool:
        nodes, links, left_out = _measure(cluster, pool, effort, report, deadline)
        if effort.thorough:
            backends = ["mpi", "gloo"]
            if all(node.accelerator is not Accelerator.NONE for node in cluster.workers):
                backends.append("nccl")
            broken = next((n.name for n in nodes if n.error), "")
            broken = broken or next((link.name for link in links if link.error), "")
            reductions, more = _reduce_all(
                store,
                cluster,
                pool,
                backends,
                f"no connection: {broken}" * bool(broken),
                report,
                deadline,
            )
            left_out += more
    return _conclude(store, cluster, nodes, links, reductions, left_out, began)


def measure_after_up(
    store: Store,
    cluster: Cluster,
    pool: Pool,
    report: Reporter,
    deadline: Deadline | None = None,
) -> Measurements | None:
    """A quick look at a cluster that has just become ready, over connections that are open. What
    the deadline (AFTER_UP) leaves no time for is not measured; None where nothing could be, with
    the reason told: a cluster is none the worse for it."""
    began = time.monotonic()
    try:
        require_measurable(store, cluster, report, now=False)
        until = deadline or Deadline(AFTER_UP)
        nodes, links, left_out = _measure(cluster, pool, QUICK, report, until)
    except (ClusterctlError, OSError, LookupError, ValueError) as error:
        why = error.message if isinstance(error, ClusterctlError) else describe_reason(error)
        report(
            f"the nodes were not measured: {why}; `clusterctl verify {cluster.name}` tries again"
        )
        return None
    known = load_last(store, cluster)
    # A thorough one of the same nodes is worth more.
    anew = known is None or {n.name for n in known.nodes} != {n.name for n in nodes}
    return _conclude(store if anew else None, cluster, nodes, links, (), left_out, began)


def _conclude(
    store: Store | None,
    cluster: Cluster,
    nodes: tuple[NodeFigures, ...],
    links: tuple[Link, ...],
    reductions: tuple[Reduction, ...],
    left_out: tuple[LeftOut, ...],
    began: float,
) -> Measurements:
    """With verdicts; on record where there is a `store`."""
    one = len(list_machines(cluster)) == 1
    verdicts = verify.judge(nodes, links, reductions, left_out, one_machine=one)
    seconds = time.monotonic() - began
    measured = Measurements(nodes, links, reductions, verdicts, seconds, time.time(), left_out)
    if store:
        keep(store, cluster, measured)
    return measured


def _measure(
    cluster: Cluster, pool: Pool, effort: Effort, report: Reporter, deadline: Deadline
) -> tuple[tuple[NodeFigures, ...], tuple[Link, ...], tuple[LeftOut, ...]]:
    """Nodes and links, as far as there is time for them."""

    def make_deadline(share: float) -> Deadline:
        return deadline.limit(max(0.0, deadline.left - (1 - share) * deadline.seconds))

    report(f"measuring {count(len(cluster.workers), 'node')}")
    with Probes(cluster, pool, deadline) as probes:
        found = measure_nodes(
            cluster, pool, probes, effort.compute, effort.disk, make_deadline(effort.nodes)
        )
        if effort.thorough:
            report("measuring GEMM")
            measure_gemm(found, probes, effort.compute, make_deadline(effort.gemm))
        pairs = len(probes.names) * (len(probes.names) - 1) // 2
        if pairs:
            report(f"measuring {count(pairs, 'link')}")
        links, more = measure_links(cluster, probes, effort.link, make_deadline(effort.links))
        if not deadline.passed:
            look_for_others(found, probes, deadline.left)
        return found.nodes, links, (*found.left_out, *more)


def require_measurable(store: Store, cluster: Cluster, report: Reporter, *, now: bool) -> None:
    """Raises RecordError while a job runs, unless `now`; UsageError for a batch system."""
    require_ready(cluster)
    if not cluster.workers:
        raise UsageError(
            f"cluster {cluster.name!r} has no nodes of its own to measure",
            hint="run reduce_all.py on it:"
            f" clusterctl run {load_system(cluster.system).example_size} reduce_all.py",
        )
    running = [
        job.id
        for job in (() if now else jobs.list_jobs(store, cluster.name, report))
        if job.cluster_id == cluster.id and not job.state.ended
    ]
    if running:
        raise RecordError(
            f"job {running[0]} may be running on cluster {cluster.name!r}: it and the"
            " measurements would disturb each other",
            hint="wait until it has ended, or add --now",
        )


def keep(store: Store, cluster: Cluster, measured: Measurements) -> None:
    """Puts it on record, for `report`. A full disk must not end what has been measured."""
    with suppress(ClusterctlError):
        store.save_measurements(cluster.name, "verify", msgspec.json.encode(measured))


def load_last(store: Store, cluster: Cluster) -> Measurements | None:
    """What was measured last; None where nothing is on record."""
    with suppress(msgspec.DecodeError):
        data = store.read_measurements(cluster, "verify")
        return msgspec.json.decode(data, type=Measurements) if data else None
    return None


def _reduce_all(
    store: Store,
    cluster: Cluster,
    pool: Pool,
    backends: Sequence[str],
    broken: str,
    report: Reporter,
    deadline: Deadline,
) -> tuple[tuple[Reduction, ...], tuple[LeftOut, ...]]:
    """An all-reduce in each backend, unless something is `broken` that it would wait for."""
    found: list[Reduction] = []
    left_out: list[LeftOut] = []
    for number, backend in enumerate(backends):
        # Each gets its part of the time, and what those before it have left.
        seconds = deadline.left / (len(backends) - number) - ENDING
        if broken or seconds < REDUCTION:
            left_out.append(LeftOut("all-reduce", (f"all-reduce {backend}",), broken or NO_TIME))
        else:
            most = _count_nodes(cluster, backend)
            found.append(_reduce(store, cluster, pool, backend, most, report, seconds))
            if rest := tuple(node.name for node in cluster.workers[most:]):
                why = "loading PyTorch on so many nodes of one machine takes too long"
                left_out.append(LeftOut(f"all-reduce {backend}", rest, why))
    return tuple(sorted(found, key=lambda item: item.backend)), tuple(left_out)


def _count_nodes(cluster: Cluster, backend: str) -> int:
    """Those that take part: of one machine only so many as can load PyTorch in a few seconds."""
    number = len(cluster.workers)
    if backend == "mpi" or len(list_machines(cluster)) > 1:
        return number
    return min(number, 2 * max(1, cluster.workers[0].facts.cores))


def _reduce(
    store: Store,
    cluster: Cluster,
    pool: Pool,
    backend: str,
    nodes: int,
    report: Reporter,
    seconds: float,
) -> Reduction:
    """An all-reduce over all ranks of so many nodes, as a job like any other."""
    report(f"all-reduce over {backend}")
    resolved = run.resolve_run([PROGRAM], None, None)
    spec = JobSpec(
        program=replace(resolved.program, args=("--backend", backend)),
        backend=backend,
        nodes=nodes,
        allow_cpu=True,
        now=True,
        timeout=seconds,
    )
    try:
        prepared = run.prepare(cluster, spec, resolved, {}, number=store.reserve_job_id())
        job, printed = run_quietly(store, prepared, pool, "verify")
    except NodeUnreachable:
        raise
    except ClusterctlError as error:
        return Reduction(backend, error=error.message)
    if job.state is JobState.TIMEOUT:
        return Reduction(backend, error=f"it did not end within {seconds:.2g} s")
    said = b"\n".join(printed.get((rank, "stdout"), b"") for rank in range(job.ranks))
    errors = b"\n".join(text for (_, stream), text in printed.items() if stream == "stderr")
    failed = b"" if job.program_exit_code == 0 else errors
    return verify.read_reduction(backend, (said + b"\n" + failed).decode(errors="replace"))

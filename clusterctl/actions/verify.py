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
from typing import Any, TypeVar

import msgspec

from clusterctl.actions import jobs, run
from clusterctl.actions.common import open_pool, require_ready
from clusterctl.batch.system import load_system
from clusterctl.core import assets, clock
from clusterctl.core.clock import Deadline
from clusterctl.core.job import JobState
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
from clusterctl.insight.verify import LeftOut, Link, Measurements, NodeFigures, Reduction
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool
from clusterctl.transport.protocol import Channel

T = TypeVar("T")

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
        self.cluster, self.pool, self.deadline = cluster, pool, deadline
        self._channels: dict[str, Channel] = {}
        self._buffers: dict[str, bytearray] = {}
        self.failed: dict[str, str] = {}
        self.shared = len(list_machines(cluster)) < len(cluster.workers)
        """Some of the nodes are one machine, and would disturb each other."""

    def __enter__(self) -> Probes:
        folder = assets.find_folder("templates")
        code = base64.b64encode(b"".join((folder / part).read_bytes() for part in PROBE))

        def start(name: str) -> NodeResult:
            transport = self.pool.find_transport(name)
            transport.connect(CONNECT)
            command = _render_command(self.cluster.node(name))
            channel = transport.open(command, timeout=self.limit_seconds(ANSWER))
            self._channels[name], self._buffers[name] = channel, bytearray()
            channel.send(code + b"\n", self.limit_seconds(ANSWER))
            return NodeResult(node=name, exit_code=0)

        workers = self.cluster.workers
        self.failed = {node.name: "no Python is installed" for node in workers if not node.python}
        # What a dead node takes must not be missing for the others.
        with self.deadline.pause():
            results = self.pool.call_each(start, self.names)
        self.failed.update({result.node: result.error for result in results if result.error})
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.cluster.workers if node.name not in self.failed]

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


def measure_links(found: Measured, probes: Probes, seconds: float, deadline: Deadline) -> None:
    """All pairs, in rounds in which no node has two partners; nodes of one machine pair by pair.
    Only the first of them where there is no time for all."""
    turns: Sequence[Sequence[Pair]] = verify.pair_up(probes.names)
    if probes.shared:
        turns = [[pair] for turn in turns for pair in turn]
    for number, turn in enumerate(turns):
        if deadline.passed:
            found.leave_out("link", [f"{a} – {b}" for a, b in turn], NO_TIME)
            continue
        # Either side may be silent by now.
        pairs = [pair for pair in turn if not set(pair) & set(probes.failed)]
        # Four times as long as one flow, and the connections.
        brief = max(SHORTEST, min(seconds, deadline.left / (len(turns) - number) / 5))
        patience = min(LINK_PATIENCE, max(LEAST, deadline.left / 2))
        found.links += _measure_turn(probes, pairs, brief, patience)


def _measure_turn(
    probes: Probes, turn: Sequence[Pair], seconds: float, patience: float
) -> list[Link]:
    address = {node.name: node.private_address for node in probes.cluster.workers}
    token = secrets.token_hex(8)
    given = {"token": token, "flows": FLOWS, "seconds": seconds, "patience": patience}
    for first, _ in turn:
        probes.send(first, "serve", address=address[first], **given)
    ports = {first: probes.read_answer(first) for first, _ in turn}
    called = [pair for pair in turn if "port" in ports[pair[0]]]
    for first, second in called:
        probes.send(second, "call", address=address[first], port=ports[first]["port"], **given)
    answers = {pair: (probes.read_answer(pair[1]), probes.read_answer(pair[0])) for pair in called}
    found = []
    for pair in turn:
        call, served = answers.get(pair, (ports[pair[0]], {}))
        if error := call.get("error") or served.get("error"):
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
FIGURES = {
    **{name: name for name in ("cores", "device", "shaping", "throttled", "share", "steal")},
    **{name: name for name in ("memory", "disk")},
    **{"speed": "line_rate", "one": "core", "all": "together", "rates": "gemm"},
}
"""The figures in a probe's answers, by their names there."""
TORCH = 20.0
"""Seconds that loading PyTorch may take: a few, but on a busy machine."""

SHORTEST_PROBE = 0.02
"""Seconds of a measurement where there are many to make."""


class Measured:
    """The figures and links so far, and what there was no time for."""

    def __init__(self, cluster: Cluster) -> None:
        self.figures = {node.name: _start(node) for node in cluster.workers}
        self.links: list[Link] = []
        self.left_out: list[LeftOut] = []

    def take(self, name: str, what: str, answer: Answer) -> None:
        """One more answer: figures, or the reason why there are none. What the schedule cut off
        may be sound: there was no time for it."""
        figures = self.figures[name]
        if answer.get("late"):
            self.leave_out(what, [name], NO_TIME)
            return
        if "error" in answer:
            figures.failed = {**figures.failed, what: str(answer["error"])}
            return
        for key, figure in FIGURES.items():
            if key in answer:
                setattr(figures, figure, answer[key])
        if answer.get("load", 0.0) > figures.load:
            figures.load, figures.busiest = answer["load"], answer["busiest"]
        figures.visible = max(figures.visible, answer.get("visible", 0.0))
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
    found: Measured, probes: Probes, seconds: float, size: int, deadline: Deadline
) -> None:
    """All but the rates of GEMM. `seconds` of each measurement, and bytes on the disk."""
    for name, why in probes.failed.items():
        found.figures[name].error = why
    if deadline.passed:
        found.leave_out("node", probes.names, NO_TIME)
        return
    first = deadline.left / 3  # of a node that is silent, the others must not have to wait longer
    _read_clocks(found, probes, first)
    nodes = {node.name: node for node in probes.cluster.workers}
    addresses = {name: {"address": nodes[name].private_address} for name in probes.names}
    for name, answer in probes.ask(addresses, "start", first).items():
        found.figures[name].error = str(answer.get("error", ""))
        found.take(name, "cores", answer)
    look_for_others(found, probes, first)
    _measure_gpus(found, probes, first)
    turns = probes.plan_turns(probes.names)
    for number, turn in enumerate(turns):
        share = deadline.left / (len(turns) - number) / 6
        given = {"seconds": max(SHORTEST_PROBE, min(seconds, share)), "size": size}
        for part in ("processor", "memory", "disk"):
            left = [name for name in turn if name not in probes.failed]
            asked = {name: {**given, "folder": nodes[name].root} for name in left}
            _measure_part(found, probes, part, asked, deadline)


def look_for_others(found: Measured, probes: Probes, seconds: float) -> None:
    """Who else uses the processors: all nodes at once, before anything is measured and after all
    has been, for what comes in between slows the figures down."""
    everybody: dict[str, Mapping[str, Any]] = {name: {} for name in probes.names}
    for name, answer in probes.ask(everybody, "load", seconds).items():
        if probes.cluster.one_host:  # each node shows what all of them do
            answer = {**answer, "visible": 0.0}
        found.take(name, "processor", answer)


def measure_gemm(found: Measured, probes: Probes, seconds: float, deadline: Deadline) -> None:
    """PyTorch is loaded on as many nodes of a machine at once as it has cores, and goes again
    before the next ones."""
    names = probes.names
    cores = max((found.figures[name].cores for name in names), default=1) or 1
    wave = cores if probes.shared else max(1, len(names))
    for begin in range(0, len(names), wave):
        group = [name for name in names[begin : begin + wave] if name not in probes.failed]
        limit = min(TORCH, deadline.left)
        if limit < LEAST:
            found.leave_out(GEMM, names[begin:], NO_TIME)
            return
        loaded = probes.ask({name: {"limit": limit} for name in group}, "torch")
        for turn in probes.plan_turns([name for name in group if "error" not in loaded[name]]):
            asked = {name: {"seconds": seconds} for name in turn}
            _measure_part(found, probes, "gemm", asked, deadline)
        for name in group:
            if "error" in loaded[name]:
                found.take(name, GEMM, loaded[name])
        probes.ask({name: {} for name in group if name not in probes.failed}, "end")


def _measure_part(
    found: Measured,
    probes: Probes,
    part: str,
    asked: Mapping[str, Mapping[str, Any]],
    deadline: Deadline,
) -> None:
    if deadline.passed:
        found.leave_out(PARTS[part], asked, NO_TIME)
        return
    limit = min(ANSWER, max(LEAST, deadline.left))
    limited = {name: {**values, "limit": limit} for name, values in asked.items()}
    for name, answer in probes.ask(limited, part).items():
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


def _read_clocks(found: Measured, probes: Probes, seconds: float) -> None:
    def read_clock(name: str) -> NodeResult:
        transport, figures = probes.pool.find_transport(name), found.figures[name]
        before = time.time()
        result = transport.run("date +%s.%N", timeout=probes.limit_seconds(seconds))
        after = time.time()
        if result.error:
            return result
        try:
            told = float(result.text.split()[-1])
        except (ValueError, IndexError):
            why = result.text.strip() or f"`date` ended with {result.exit_code}"
            figures.failed = {**figures.failed, "clock": why}
        else:
            figures.offset, figures.uncertainty = told - (before + after) / 2, after - before
        return result

    for result in probes.pool.call_each(read_clock, probes.names):
        if result.error:
            probes.failed[result.node] = found.figures[result.node].error = result.error


def _measure_gpus(found: Measured, probes: Probes, seconds: float) -> None:
    """What each node's GPUs say of themselves, or why they do not."""
    fields = ",".join(verify.GPU_FIELDS)
    tools = {
        Accelerator.NVIDIA: (
            f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits",
            verify.read_nvidia_smi,
        ),
        Accelerator.AMD: (
            "rocm-smi --showproductname --showtemp --showuse --showdriverversion --json",
            verify.read_rocm_smi,
        ),
    }
    asked = {
        node.name: tools[node.accelerator]
        for node in probes.cluster.workers
        if node.accelerator in tools and not found.figures[node.name].error
    }
    commands = {name: command for name, (command, _) in asked.items()}
    limit = probes.limit_seconds(seconds)
    for result in probes.pool.run(commands, timeout=limit) if commands else ():
        figures, (_, read) = found.figures[result.node], asked[result.node]
        figures.gpus = read(result.text)
        said = result.text.strip().splitlines() or [result.why]
        figures.gpu_error = "" if figures.gpus else said[-1]


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
    with open_pool(store, cluster) as pool:
        found = _measure(cluster, pool, effort, report, deadline)
        reductions = () if quick else _reduce_all(store, cluster, pool, found, report, deadline)
    measured = _judge(cluster, found, reductions, began)
    keep(store, cluster, "verify", measured)
    return measured


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
        found = _measure(cluster, pool, QUICK, report, deadline or Deadline(AFTER_UP))
    except (ClusterctlError, OSError, LookupError, ValueError) as error:
        report(
            f"the nodes were not measured: {describe_reason(error)};"
            f" `clusterctl verify {cluster.name}` tries again"
        )
        return None
    measured = _judge(cluster, found, (), began)
    known = load_last(store, cluster)
    # A thorough one of the same nodes is worth more.
    if known is None or {n.name for n in known.nodes} != {n.name for n in measured.nodes}:
        keep(store, cluster, "verify", measured)
    return measured


def _judge(
    cluster: Cluster, found: Measured, reductions: tuple[Reduction, ...], began: float
) -> Measurements:
    nodes, links, left_out = found.nodes, tuple(found.links), tuple(found.left_out)
    one = len(list_machines(cluster)) == 1
    verdicts = verify.judge(nodes, links, reductions, left_out, one_machine=one)
    seconds = time.monotonic() - began
    return Measurements(nodes, links, reductions, verdicts, seconds, time.time(), left_out)


def _measure(
    cluster: Cluster, pool: Pool, effort: Effort, report: Reporter, deadline: Deadline
) -> Measured:
    """Nodes and links, as far as there is time for them."""

    def limit(share: float) -> Deadline:
        return deadline.limit(max(0.0, deadline.left - (1 - share) * deadline.seconds))

    report(f"measuring {count(len(cluster.workers), 'node')}")
    found = Measured(cluster)
    with Probes(cluster, pool, deadline) as probes:
        measure_nodes(found, probes, effort.compute, effort.disk, limit(effort.nodes))
        if effort.gemm:
            report("measuring GEMM")
            measure_gemm(found, probes, effort.compute, limit(effort.gemm))
        if pairs := len(probes.names) * (len(probes.names) - 1) // 2:
            report(f"measuring {count(pairs, 'link')}")
        measure_links(found, probes, effort.link, limit(effort.links))
        if not deadline.passed:
            look_for_others(found, probes, deadline.left)
    return found


def require_measurable(store: Store, cluster: Cluster, report: Reporter, *, now: bool) -> None:
    """Raises RecordError while a job runs, unless `now`; UsageError for a batch system."""
    require_ready(cluster)
    if not cluster.workers:
        raise UsageError(
            f"cluster {cluster.name!r} has no nodes of its own to measure",
            hint="run reduce_all.py on it:"
            f" clusterctl run {load_system(cluster.system).example_size} reduce_all.py",
        )
    for job in () if now else jobs.list_jobs(store, cluster.name, report):
        if job.cluster_id == cluster.id and not job.state.ended:
            raise RecordError(
                f"job {job.id} may be running on cluster {cluster.name!r}: it and the"
                " measurements would disturb each other",
                hint="wait until it has ended, or add --now",
            )


def keep(store: Store, cluster: Cluster, verb: str, found: object) -> None:
    """Puts what `verb` has measured on record, for `report`. A full disk must not end it."""
    with suppress(ClusterctlError):
        store.save_measurements(cluster.name, verb, msgspec.json.encode(found))


def recall(store: Store, cluster: Cluster, verb: str, kind: type[T]) -> T | None:
    """What `verb` has measured last; None where nothing is on record."""
    with suppress(msgspec.DecodeError):
        data = store.read_measurements(cluster, verb)
        return msgspec.json.decode(data, type=kind) if data else None
    return None


def load_last(store: Store, cluster: Cluster) -> Measurements | None:
    """What `verify` has measured last."""
    return recall(store, cluster, "verify", Measurements)


def list_backends(cluster: Cluster) -> tuple[str, ...]:
    """Those that its nodes have."""
    gpus = all(node.accelerator is not Accelerator.NONE for node in cluster.workers)
    return ("mpi", "gloo", *["nccl"] * gpus)


def _reduce_all(
    store: Store,
    cluster: Cluster,
    pool: Pool,
    found: Measured,
    report: Reporter,
    deadline: Deadline,
) -> tuple[Reduction, ...]:
    """An all-reduce in each backend, unless a node or link is broken that it would wait for."""
    broken = next((node.name for node in found.nodes if node.error), "")
    broken = broken or next((link.name for link in found.links if link.error), "")
    why = f"no connection: {broken}" if broken else NO_TIME
    backends, reductions = list_backends(cluster), []
    for number, backend in enumerate(backends):
        # Each gets its part of the time, and what those before it have left.
        seconds = deadline.left / (len(backends) - number) - ENDING
        if broken or seconds < REDUCTION:
            found.left_out.append(LeftOut("all-reduce", (f"all-reduce {backend}",), why))
            continue
        most = _count_nodes(cluster, backend)
        report(f"all-reduce over {backend}")
        reductions.append(_reduce(store, cluster, pool, backend, most, seconds))
        found.leave_out(
            f"all-reduce {backend}",
            [node.name for node in cluster.workers[most:]],
            "loading PyTorch on so many nodes of one machine takes too long",
        )
    return tuple(sorted(reductions, key=lambda item: item.backend))


def _count_nodes(cluster: Cluster, backend: str) -> int:
    """Those that take part: of one machine only so many as can load PyTorch in a few seconds."""
    number = len(cluster.workers)
    if backend == "mpi" or len(list_machines(cluster)) > 1:
        return number
    return min(number, 2 * max(1, cluster.workers[0].facts.cores))


def _reduce(
    store: Store, cluster: Cluster, pool: Pool, backend: str, nodes: int, seconds: float
) -> Reduction:
    """An all-reduce over all ranks of so many nodes, as a job like any other."""
    try:
        job, printed = run.run_bundled(
            *(store, cluster, pool, "verify", PROGRAM, ("--backend", backend)),
            backend=backend,
            nodes=nodes,
            timeout=seconds,
        )
    except NodeUnreachable:
        raise
    except ClusterctlError as error:
        return Reduction(backend, error=error.message)
    if job.state is JobState.TIMEOUT:
        return Reduction(backend, error=f"it did not end within {seconds:.2g} s")
    said = [printed.get((rank, "stdout"), b"") for rank in range(job.ranks)]
    if job.program_exit_code != 0:
        said += [text for (_, stream), text in printed.items() if stream == "stderr"]
    return verify.read_reduction(backend, b"\n".join(said).decode(errors="replace"))

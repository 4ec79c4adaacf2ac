"""`verify`: measures all nodes and links of a cluster; compares them with the expected values."""

from __future__ import annotations

import base64
import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from clusterctl import assets, schedulers
from clusterctl.actions import jobs, open_pool, require_ready, run
from clusterctl.actions.quiet_run import run_quietly
from clusterctl.errors import ClusterctlError, NodeUnreachable, RecordError, UsageError, reason
from clusterctl.insight import verify, verify_output
from clusterctl.insight.verify import Gpu, Link, NodeFigures, Reduction
from clusterctl.insight.verify import Measurements as Measurements
from clusterctl.job_model import JobSpec
from clusterctl.model import Accelerator, Cluster, Node, NodeResult, Reporter, count
from clusterctl.state import Store
from clusterctl.timeouts import NEVER, Deadline
from clusterctl.transport import Channel
from clusterctl.transport.pool import Pool

PROGRAM = "reduce_all.py"
MARK = b"@@probe "
CONNECT, START = 6.0, 20.0
"""Seconds for connections, and for one answer of a probe."""
GEMM = 90.0
"""The same where it loads PyTorch first: half a minute on a busy machine."""
REDUCTION = 60.0
AFTER_UP, LEAST = 15.0, 2.0
"""Seconds that `up` may spend on it, and those that have to be left for the next measurement."""
FLOWS = (1, 4)


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds of each measurement, and what is left out where it has to be quick."""

    compute: float
    link: float
    disk: int
    thorough: bool


THOROUGH = Effort(compute=0.25, link=0.2, disk=64 << 20, thorough=True)
QUICK = Effort(compute=0.1, link=0.1, disk=16 << 20, thorough=False)


def measure(
    store: Store, cluster: Cluster, report: Reporter, *, quick: bool, now: bool
) -> Measurements:
    """Raises RecordError while a job runs, unless `now`; UsageError for a batch system."""
    began = time.monotonic()
    require_measurable(store, cluster, report, now=now)
    effort = QUICK if quick else THOROUGH
    reductions: tuple[Reduction, ...] = ()
    with open_pool(store, cluster) as pool:
        nodes, links = _measure(cluster, pool, effort, report, NEVER)
        sound = not any(node.error for node in nodes) and not any(link.error for link in links)
        if effort.thorough and sound:
            backends = ["gloo", "mpi"]
            if all(node.accelerator is not Accelerator.NONE for node in cluster.workers):
                backends.append("nccl")
            reductions = tuple(_reduce(store, cluster, pool, name, report) for name in backends)
    verdicts = verify.judge(nodes, links, reductions, one_machine=cluster.shares_machine)
    seconds = time.monotonic() - began
    measured = Measurements(nodes, links, reductions, verdicts, seconds, time.time())
    keep(store, cluster, measured)
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
        nodes, links = _measure(cluster, pool, QUICK, report, deadline or Deadline(AFTER_UP))
    except (ClusterctlError, OSError, LookupError, ValueError) as error:
        why = error.message if isinstance(error, ClusterctlError) else reason(error)
        report(
            f"the nodes were not measured: {why}; `clusterctl verify {cluster.name}` tries again"
        )
        return None
    verdicts = verify.judge(nodes, links, one_machine=cluster.shares_machine)
    measured = Measurements(nodes, links, (), verdicts, time.monotonic() - began, time.time())
    known = load_last(store, cluster)
    if known is None or {n.name for n in known.nodes} != {n.name for n in nodes}:
        keep(store, cluster, measured)  # a thorough one of the same nodes is worth more
    return measured


def _measure(
    cluster: Cluster, pool: Pool, effort: Effort, report: Reporter, deadline: Deadline
) -> tuple[tuple[NodeFigures, ...], tuple[Link, ...]]:
    """Nodes and links, as far as there is time for them."""
    report(f"measuring {count(len(cluster.workers), 'node')}")
    with _Probes(cluster, pool, deadline) as probes:
        nodes = _nodes(cluster, pool, probes, effort)
        return nodes, _links(cluster, probes, effort, report)


def require_measurable(store: Store, cluster: Cluster, report: Reporter, *, now: bool) -> None:
    """Raises RecordError while a job runs, unless `now`; UsageError for a batch system."""
    require_ready(cluster)
    if not cluster.workers:
        raise UsageError(
            f"cluster {cluster.name!r} has no nodes of its own to measure",
            hint="run reduce_all.py on it:"
            f" clusterctl run {schedulers.load_batch(cluster.system).example_size} reduce_all.py",
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
        data = store.measurements(cluster, "verify")
        return msgspec.json.decode(data, type=Measurements) if data else None
    return None


class _Probes:
    """A process on each worker that measures what it is told (templates/insight/probe.py), and
    ends with its connection. Those that fail are in `failed`, and are asked no more."""

    def __init__(self, cluster: Cluster, pool: Pool, deadline: Deadline) -> None:
        self._cluster, self._pool, self.deadline = cluster, pool, deadline
        self._channels: dict[str, Channel] = {}
        self._buffers: dict[str, bytearray] = {}
        self.failed: dict[str, str] = {}

    def __enter__(self) -> _Probes:
        code = base64.b64encode((assets.folder("templates") / "insight/probe.py").read_bytes())

        def start(name: str) -> NodeResult:
            transport = self._pool.transport(name)
            transport.connect(self.seconds(CONNECT))
            command = _command(self._cluster.node(name))
            channel = transport.open(command, timeout=self.seconds(START))
            self._channels[name], self._buffers[name] = channel, bytearray()
            channel.send(code + b"\n", self.seconds(START))
            return NodeResult(node=name, exit_code=0)

        for node in self._cluster.workers:
            if not node.python:
                self.failed[node.name] = "no Python is installed"
        names = [node.name for node in self._cluster.workers if node.python]
        for result in self._pool.each(start, names):
            if result.error:
                self.failed[result.node] = result.error
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()

    @property
    def names(self) -> list[str]:
        return [n.name for n in self._cluster.workers if n.name not in self.failed]

    @property
    def late(self) -> bool:
        """Whether there is no time for another measurement."""
        return self.deadline.left < LEAST

    def seconds(self, most: float) -> float:
        """For one answer; never so few that a node has no chance."""
        return max(0.1, min(most, self.deadline.left))

    def send(self, name: str, action: str, **values: Any) -> None:
        if name in self.failed:
            return
        try:
            line = json.dumps({"do": action, **values}).encode() + b"\n"
            self._channels[name].send(line, self.seconds(START))
        except OSError as error:
            self.failed[name] = reason(error) or "the connection is lost"

    def hear(self, name: str, most: float = START) -> dict[str, Any]:
        """Its next answer; {"error": why} where there is none."""
        deadline = Deadline(self.seconds(most))
        while name not in self.failed:
            buffer = self._buffers[name]
            line, newline, rest = bytes(buffer).partition(b"\n")
            if newline:
                buffer[:] = rest
                if MARK in line:
                    found: dict[str, Any] = json.loads(line.partition(MARK)[2])
                    return found
                continue  # what a login shell says
            try:
                data = self._channels[name].receive(max(0.1, deadline.left))
            except TimeoutError:
                self.failed[name] = f"no answer in {deadline.seconds:.2g} s"
            except OSError as error:
                self.failed[name] = reason(error) or "the connection is lost"
            else:
                if not data:
                    self.failed[name] = "its Python process ended"
                buffer += data
        return {"error": self.failed[name]}

    def ask(
        self, names: Sequence[str], action: str, most: float = START, **values: Any
    ) -> dict[str, dict[str, Any]]:
        """All at once where they are machines of their own, else one after the other, as far as
        there is time for them."""
        found: dict[str, dict[str, Any]] = {}
        groups = [[n] for n in names] if self._cluster.shares_machine else [list(names)]
        for group in groups:
            if self.late:
                break
            for name in group:
                root = {"folder": self._cluster.node(name).root} if action == "node" else {}
                self.send(name, action, **values, **root)
            found.update((name, self.hear(name, most)) for name in group)
        return found


def _command(node: Node) -> str:
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


def _nodes(
    cluster: Cluster, pool: Pool, probes: _Probes, effort: Effort
) -> tuple[NodeFigures, ...]:
    clocks: dict[str, tuple[float, float]] = {}

    def read_clock(name: str) -> NodeResult:
        before = time.time()
        result = pool.transport(name).run("date +%s.%N", timeout=probes.seconds(START))
        after = time.time()
        if result.ok:
            clocks[name] = float(result.text.split()[-1]) - (before + after) / 2, after - before
        return result

    pool.each(read_clock, probes.names)
    measured = probes.ask(probes.names, "node", seconds=effort.compute, size=effort.disk)
    gemm: Mapping[str, dict[str, Any]] = {}
    if effort.thorough:
        gemm = probes.ask(probes.names, "gemm", GEMM, seconds=effort.compute)
    gpus = _gpus(cluster, pool, probes.seconds(START))
    found = []
    for node in cluster.workers:
        told = measured.get(node.name)
        if node.name in probes.failed:  # it may have answered before, and no more
            told = {"error": probes.failed[node.name]}
        if told is None:
            continue  # there was no time for it
        kind = node.instance_type or f"{node.facts.arch} {node.facts.cores} {node.facts.gpus}"
        figures = NodeFigures(
            node.name,
            kind=kind,
            instance_type=node.instance_type,
            error=str(told.get("error", "")),
            expected_cores=node.facts.cores,
            expected_gpus=len(node.facts.gpus),
        )
        if not figures.error:
            figures.cores, figures.load, figures.steal = told["cores"], told["load"], told["steal"]
            figures.core, figures.share, figures.together = told["one"], told["share"], told["all"]
            figures.memory, figures.disk = told["memory"], told["disk"]
            figures.gemm = gemm.get(node.name, {}).get("rates", {})
            figures.offset, figures.uncertainty = clocks.get(node.name, (0.0, 0.0))
            figures.gpus, figures.gpu_error = gpus.get(node.name, ((), ""))
        found.append(figures)
    return tuple(found)


def _gpus(cluster: Cluster, pool: Pool, seconds: float) -> dict[str, tuple[tuple[Gpu, ...], str]]:
    """What each node's GPUs say of themselves, or why they do not."""
    fields = ",".join(verify_output.GPU_FIELDS)
    commands = {
        Accelerator.NVIDIA: f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits",
        Accelerator.AMD: "rocm-smi --showproductname --showtemp --showuse --showdriverversion"
        " --json",
    }
    asked = {n.name: commands[n.accelerator] for n in cluster.workers if n.accelerator in commands}
    found = {}
    for result in pool.run(asked, timeout=seconds) if asked else ():
        amd = cluster.node(result.node).accelerator is Accelerator.AMD
        read = verify_output.read_rocm_smi if amd else verify_output.read_nvidia_smi
        gpus = read(result.text)
        said = result.text.strip().splitlines() or [result.why]
        found[result.node] = (gpus, "" if gpus else said[-1])
    return found


def _links(cluster: Cluster, probes: _Probes, effort: Effort, report: Reporter) -> tuple[Link, ...]:
    """All pairs, in rounds in which no node has two partners; nodes of one machine pair by pair.
    Only the first of them where there is no time for all."""
    names = probes.names
    pairs = [pair for turn in verify.rounds(names) for pair in turn]
    if not pairs:
        return ()
    report(f"measuring {count(len(pairs), 'link')}")
    turns: Sequence[Sequence[tuple[str, str]]] = verify.rounds(names)
    if cluster.shares_machine:
        turns = [[pair] for pair in pairs]
    found: list[Link] = []
    for turn in turns:
        if probes.late:
            break
        found += _turn(cluster, probes, turn, effort.link)
    return tuple(found)


def _turn(
    cluster: Cluster, probes: _Probes, turn: Sequence[tuple[str, str]], seconds: float
) -> list[Link]:
    token = secrets.token_hex(8)
    address = {name: cluster.node(name).private_address for pair in turn for name in pair}
    for first, _ in turn:
        given: dict[str, Any] = {"token": token, "flows": FLOWS, "seconds": seconds}
        probes.send(first, "serve", address=address[first], **given)
    ports = {first: probes.hear(first) for first, _ in turn}
    called = [(first, second) for first, second in turn if "port" in ports[first]]
    for first, second in called:
        where = {"address": address[first], "port": ports[first]["port"]}
        probes.send(second, "call", **where, **given)
    answers = {pair: (probes.hear(pair[1]), probes.hear(pair[0])) for pair in called}
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


def _reduce(
    store: Store, cluster: Cluster, pool: Pool, backend: str, report: Reporter
) -> Reduction:
    """An all-reduce over all ranks, as a job like any other."""
    report(f"all-reduce over {backend}")
    resolved = run.resolve([PROGRAM], None, None)
    spec = JobSpec(
        program=replace(resolved.program, args=("--backend", backend)),
        backend=backend,
        allow_cpu=True,
        now=True,
        timeout=REDUCTION,
    )
    try:
        number = run.next_number(store, dry=False)
        prepared = run.prepare(cluster, spec, resolved, {}, number=number)
        job, printed = run_quietly(store, prepared, pool)
    except NodeUnreachable:
        raise
    except ClusterctlError as error:
        return Reduction(backend, error=error.message)
    # It saves nothing: `down` need not look for its outputs.
    store.save_job(replace(store.job(job.id), fetched=True))
    said = b"\n".join(printed.get((rank, "stdout"), b"") for rank in range(job.ranks))
    errors = b"\n".join(text for (_, stream), text in printed.items() if stream == "stderr")
    failed = b"" if job.program_exit_code == 0 else errors
    return verify_output.read_reduction(backend, (said + b"\n" + failed).decode(errors="replace"))

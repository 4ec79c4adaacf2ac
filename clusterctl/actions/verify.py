"""`verify`: measures all nodes and links of a cluster; compares them with the expected values."""

from __future__ import annotations

import base64
import json
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from typing import Any

from msgspec import Struct

from clusterctl.actions import jobs
from clusterctl.actions.common import open_pool, require_ready
from clusterctl.batch.system import load_system
from clusterctl.core import assets
from clusterctl.core.clock import Deadline
from clusterctl.core.model import Accelerator, Cluster, Node, NodeResult, Reporter
from clusterctl.core.text import count
from clusterctl.errors import ClusterctlError, RecordError, UsageError
from clusterctl.insight import verify
from clusterctl.insight.verify import LeftOut, Link, Measurements, NodeFigures
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool
from clusterctl.transport.protocol import Channel

# -------------------------------------------------------------------------------------------------
# Runs templates/insight/probe.py on the workers, which answers a list of requests and ends.


PROBE = ("insight/probe_links.py", "insight/probe.py")
_ANSWER = re.compile(rb"@@probe (.*)\n")

CONNECT, ANSWER = 6.0, 20.0
"""Seconds for connections, and for one answer of a probe."""
LEAST = 0.5
"""Seconds that even a late answer is waited for."""
SLACK = 3.0
"""Seconds beside its measurements that a probe has to start, and to tell that one took too long."""

NO_TIME = "no time left"
GEMM = "GEMM"
NODE = ("start", "load", "processor", "memory", "disk")
"""What is measured of a node: what others use of it comes before what that slows down."""
PARTS = {
    **{"start": "cores", "load": "processor", "processor": "processor"},
    **{"memory": "memory copy", "disk": "disk write", "torch": GEMM, "gemm": GEMM},
}
"""What a probe measures, and what people call it."""
LIMITED = ("processor", "memory", "disk", "torch", "gemm")
"""What may take the probe along, or too long: it has another process do that."""
OF_ALL = {"load", "busiest", "visible", "failed"}
"""Figures of which several answers of a probe tell; the others are of one, by the same names."""

SHORTEST = 0.02
"""Seconds of a measurement where there are many to make."""
FLOWS = 4
"""Connections over which a link carries data at the same time."""
LINK_PATIENCE = 5.0
"""Seconds for a connection between nodes."""

Answer = dict[str, Any]


def list_machines(cluster: Cluster) -> set[str]:
    """The machines that the workers are, by their boot ids."""
    if cluster.shares_machine:
        return {cluster.name}
    return {node.facts.boot_id or node.name for node in cluster.workers}


@cache
def _read_program() -> bytes:
    folder = assets.find_folder("templates")
    return base64.b64encode(b"".join((folder / part).read_bytes() for part in PROBE))


def _render_input(*requests: Mapping[str, Any]) -> bytes:
    return b"\n".join((_read_program(), *(json.dumps(each).encode() for each in requests), b""))


def _render_command(node: Node) -> str:
    """The Python in which ranks run: in the node's container where it has one."""
    program = (
        "import sys; sys.path = [p for p in sys.path if p];"
        " import base64; exec(base64.b64decode(sys.stdin.readline()))"
    )
    return node.enter(f"exec {shlex.quote(node.python)} -u -c {shlex.quote(program)}")


def _read_answers(text: bytes) -> list[Answer]:
    """Without what a login shell says, up to one that cannot be read."""
    found: list[Answer] = []
    with suppress(ValueError):
        found += map(json.loads, _ANSWER.findall(text))
    return found


def _read_answer(channel: Channel, seconds: float) -> Answer:
    text = b""
    while not (found := _read_answers(text)):
        data = channel.receive(seconds)
        if not data:
            return {"error": "its Python process ended"}
        text += data
    return found[0]


class Measured:
    """The figures and links so far, and what there was no time for. A node with an `error` is not
    asked again."""

    def __init__(self, cluster: Cluster, pool: Pool) -> None:
        self.cluster, self.pool = cluster, pool
        self.figures = {node.name: _start(node) for node in cluster.workers}
        self.links: list[Link] = []
        self.left_out: dict[tuple[str, str], list[str]] = {}
        """Nodes or links, by what was not measured of them and why."""
        self.shared = len(list_machines(cluster)) < len(cluster.workers)
        """Some of the nodes are one machine, and would disturb each other."""

    @property
    def names(self) -> list[str]:
        return [name for name, figures in self.figures.items() if not figures.error]

    @property
    def nodes(self) -> tuple[NodeFigures, ...]:
        """Those of which something was measured, or failed."""
        return tuple(n for n in self.figures.values() if n.cores or n.error or n.failed)

    def leave_out(self, what: str, names: Iterable[str], why: str) -> None:
        if subjects := list(names):
            self.left_out.setdefault((what, why), []).extend(subjects)

    def read_clocks(self, seconds: float) -> None:
        """What else is asked comes after the first connection, for which nobody waits twice."""

        def read_clock(name: str) -> NodeResult:
            transport, figures = self.pool.find_transport(name), self.figures[name]
            before = time.time()
            result = transport.run("date +%s.%N", timeout=seconds)
            after = time.time()
            try:
                told = float(result.text.split()[-1])
            except (ValueError, IndexError):
                why = result.text.strip() or f"`date` ended with {result.exit_code}"
                figures.failed = {**figures.failed, "clock": why}
            else:
                figures.offset, figures.uncertainty = told - (before + after) / 2, after - before
            return result

        for result in self.pool.call_each(read_clock, self.names):
            self.figures[result.node].error = result.error

    def probe(
        self, turn: Sequence[str], actions: Sequence[str], limit: float, **values: Any
    ) -> None:
        """Has these nodes measure all that, at the same time, each of it within `limit` seconds."""
        stdin, commands = {}, {}
        for node in (self.cluster.node(name) for name in turn):
            given = {**values, "address": node.private_address, "folder": node.root}
            limits = [{"limit": limit} if action in LIMITED else {} for action in actions]
            requests = zip(actions, limits, strict=True)
            stdin[node.name] = _render_input(*({"do": a, **given, **most} for a, most in requests))
            commands[node.name] = _render_command(node)
        for result in self.pool.run(commands, stdin=stdin, timeout=limit * len(actions) + SLACK):
            answers = _read_answers(result.stdout)
            for action, answer in zip(actions, answers, strict=False):
                self._take(result.node, PARTS[action], answer)
            if not answers:
                self.figures[result.node].error = result.why
            elif missing := actions[len(answers) :]:
                self._take(result.node, PARTS[missing[0]], {"error": result.why})

    def _take(self, name: str, what: str, answer: Answer) -> None:
        """Figures, or the reason why there are none. What the schedule cut off may be sound: there
        was no time for it."""
        figures = self.figures[name]
        if answer.get("late"):
            self.leave_out(what, [name], NO_TIME)
            return
        if "error" in answer:
            figures.failed = {**figures.failed, what: str(answer["error"])}
            return
        for name in answer.keys() - OF_ALL:
            setattr(figures, name, answer[name])
        if answer.get("load", 0.0) > figures.load:
            figures.load, figures.busiest = answer["load"], answer["busiest"]
        if not self.cluster.one_host:  # where each node shows what all of them do
            figures.visible = max(figures.visible, answer.get("visible", 0.0))
        more = {f"{GEMM} {name}": why for name, why in answer.get("failed", {}).items()}
        figures.failed = {**figures.failed, **more}

    def connect_pairs(self, pairs: Mapping[str, str], seconds: float, patience: float) -> None:
        """Measures the links of these pairs, at the same time."""
        given = {"flows": FLOWS, "seconds": seconds, "patience": patience}

        def measure(first: str) -> NodeResult:
            server, client = self.cluster.node(first), self.cluster.node(pairs[first])
            request = {**given, "address": server.private_address, "token": secrets.token_hex(8)}
            transport = self.pool.find_transport(first)
            with closing(transport.open(_render_command(server), timeout=ANSWER)) as channel:
                channel.send(_render_input({"do": "serve", **request}), ANSWER)
                answer = _read_answer(channel, ANSWER)
                if "port" in answer:
                    called = self.pool.find_transport(client.name).run(
                        _render_command(client),
                        stdin=_render_input({"do": "call", **request, **answer}),
                        timeout=ANSWER,
                    )
                    [answer] = _read_answers(called.stdout) or [{"error": called.why}]
                    if "error" not in answer:
                        answer |= _read_answer(channel, ANSWER)
            return NodeResult(node=first, exit_code=0, stdout=json.dumps(answer).encode())

        for result in self.pool.call_each(measure, list(pairs)):
            answer = {"error": result.error, **json.loads(result.text or "{}")}
            why = answer.pop("error")
            found = {"error": f"no connection: {why}"} if why else answer
            self.links.append(Link(result.node, pairs[result.node], **found))


def _start(node: Node) -> NodeFigures:
    kind = node.instance_type or f"{node.facts.arch} {node.facts.cores} {node.facts.gpus}"
    return NodeFigures(
        node.name,
        kind=kind,
        instance_type=node.instance_type,
        error="" if node.python else "no Python is installed",
        expected_cores=node.facts.cores,
        expected_gpus=len(node.facts.gpus),
    )


def measure_nodes(
    found: Measured,
    actions: Sequence[str],
    deadline: Deadline,
    seconds: float,
    size: int = 0,
) -> None:
    """`seconds` of each measurement at most, and bytes on the disk. Nodes of one machine are
    measured one after the other."""
    turns = [[name] for name in found.names] if found.shared else [found.names]
    for number, turn in enumerate(turns):
        if deadline.passed:
            for part in dict.fromkeys(PARTS[action] for action in actions):
                found.leave_out(part, turn, NO_TIME)
            continue
        limit = deadline.left / (len(turns) - number)
        given = {"seconds": max(SHORTEST, min(seconds, limit / len(actions))), "size": size}
        found.probe(turn, actions, max(LEAST, min(ANSWER, limit)), **given)


def measure_links(found: Measured, seconds: float, deadline: Deadline) -> None:
    """All pairs, in rounds in which no node has two partners; nodes of one machine pair by pair.
    Only the first of them where there is no time for all."""
    turns: Sequence[Sequence[tuple[str, str]]] = verify.pair_up(found.names)
    if found.shared:
        turns = [[pair] for turn in turns for pair in turn]
    for number, turn in enumerate(turns):
        if deadline.passed:
            found.leave_out("link", [f"{a} – {b}" for a, b in turn], NO_TIME)
            continue
        brief = max(SHORTEST, min(seconds, deadline.left / (len(turns) - number) / 5))
        patience = min(LINK_PATIENCE, max(LEAST, deadline.left / 2))
        found.connect_pairs(dict(turn), brief, patience)


GDRCOPY = """\
module=''
[ ! -r /sys/module/gdrdrv/version ] || read -r module </sys/module/gdrdrv/version
library=$(ls /usr/lib/*/libgdrapi.so.*.* /usr/lib64/libgdrapi.so.*.* \\
    /usr/local/lib/libgdrapi.so.*.* /opt/venv/lib/libgdrapi.so.*.* 2>/dev/null |
    sed -n 's/.*libgdrapi[.]so[.]//p' | head -n 1)
echo "${module:--} ${library:--}"
"""
"""Where ranks run: the releases of the host's kernel module and of the library."""


def measure_gpus(found: Measured, seconds: float) -> None:
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
    nodes = (found.cluster.node(name) for name in found.names)
    asked = {n.name: tools[n.accelerator] for n in nodes if n.accelerator in tools}
    commands = {name: command for name, (command, _) in asked.items()}
    for result in found.pool.run(commands, timeout=seconds) if commands else ():
        figures, (_, read) = found.figures[result.node], asked[result.node]
        figures.gpus = read(result.text)
        said = result.text.strip().splitlines() or [result.why]
        figures.gpu_error = "" if figures.gpus else said[-1]
    commands = {}
    for node in map(found.cluster.node, asked):
        if found.figures[node.name].gpus and node.accelerator is Accelerator.NVIDIA:
            commands[node.name] = node.enter(GDRCOPY)
    for result in found.pool.run(commands, timeout=seconds) if commands else ():
        if result.ok:
            module, _, library = result.text.strip().partition(" ")
            found.figures[result.node].gdrcopy = module.strip("-"), library.strip("-")


# -------------------------------------------------------------------------------------------------

NODES = 8
"""Nodes of which all is measured within the time of an `Effort`; more get more in proportion."""


class Effort(Struct, frozen=True):
    """Seconds of each measurement at most, bytes on the disk, and seconds of all together: by
    which share of these the nodes and the rates of GEMM have to be done."""

    compute: float
    link: float
    disk: int
    seconds: float
    nodes: float
    gemm: float


THOROUGH = Effort(compute=0.25, link=0.2, disk=64 << 20, seconds=18.0, nodes=0.32, gemm=0.88)
QUICK = Effort(compute=0.1, link=0.1, disk=16 << 20, seconds=4.3, nodes=0.7, gemm=0.0)


def measure(
    store: Store, cluster: Cluster, report: Reporter, *, quick: bool, now: bool
) -> Measurements:
    """Raises RecordError while a job runs, unless `now`; UsageError for a batch system."""
    effort = QUICK if quick else THOROUGH
    deadline = Deadline(effort.seconds * max(1.0, len(cluster.workers) / NODES))
    require_measurable(store, cluster, report, now=now)
    with open_pool(store, cluster) as pool:
        return measure_over(store, cluster, pool, effort, report, deadline)


def measure_over(
    store: Store,
    cluster: Cluster,
    pool: Pool,
    effort: Effort,
    report: Reporter,
    deadline: Deadline,
) -> Measurements:
    """What there is time for until the deadline, over these connections. It is put on record."""
    began = time.monotonic()

    def limit(share: float) -> Deadline:
        return deadline.limit(max(0.0, deadline.left - (1 - share) * deadline.seconds))

    report(f"measuring {count(len(cluster.workers), 'node')}")
    found = Measured(cluster, pool)
    # What a dead node takes must not be missing for the others.
    with deadline.pause():
        for result in pool.connect(found.names, timeout=CONNECT):
            found.figures[result.node].error = result.error
    nodes = limit(effort.nodes)
    if not nodes.passed:
        # Of a node that is silent, the others must not have to wait longer.
        found.read_clocks(max(LEAST, nodes.left / 3))
        measure_gpus(found, max(LEAST, nodes.left / 3))
    measure_nodes(found, NODE, nodes, effort.compute, effort.disk)
    if effort.gemm:
        report("measuring GEMM")
        measure_nodes(found, ("torch", "gemm"), limit(effort.gemm), effort.compute)
    if pairs := len(found.names) * (len(found.names) - 1) // 2:
        report(f"measuring {count(pairs, 'link')}")
    measure_links(found, effort.link, deadline)

    links = tuple(found.links)
    left_out = tuple(LeftOut(w, tuple(names), why) for (w, why), names in found.left_out.items())
    one = len(list_machines(cluster)) == 1
    verdicts = verify.judge(found.nodes, links, left_out, one_machine=one)
    took = time.monotonic() - began
    measured = Measurements(found.nodes, links, verdicts, took, time.time(), left_out)
    keep(store, cluster, "verify", measured)
    return measured


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
        store.save_measurements(cluster.name, verb, found)

"""Measures the nodes of a cluster, for `verify`: each figure by itself, as far as there is time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.actions.probes import ANSWER, LEAST, NO_TIME, Answer, Probes
from clusterctl.insight import verify_output
from clusterctl.insight.figures import Gpu, LeftOut, NodeFigures
from clusterctl.model import Accelerator, Cluster, Node, NodeResult
from clusterctl.timeouts import Deadline
from clusterctl.transport.pool import Pool

GEMM = "GEMM"
PARTS = {"processor": "processor", "memory": "memory copy", "disk": "disk write", "gemm": GEMM}
"""What a probe measures, and what people call it."""
TORCH = 20.0
"""Seconds that loading PyTorch may take: a few, but on a busy machine."""
SHORTEST = 0.02
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


def measure(
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
        brief = max(SHORTEST, min(seconds, share))
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
    fields = ",".join(verify_output.GPU_FIELDS)
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
        read = verify_output.read_rocm_smi if amd else verify_output.read_nvidia_smi
        gpus: Sequence[Gpu] = read(result.text)
        said = result.text.strip().splitlines() or [result.why]
        figures = found.figures[result.node]
        figures.gpus, figures.gpu_error = tuple(gpus), "" if gpus else said[-1]

"""Verbs that judge: doctor, verify, diff, bench, report, top."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from clusterctl.actions import bench, common, compare
from clusterctl.actions import doctor as actions_doctor
from clusterctl.actions import report as actions_report
from clusterctl.actions import run as actions_run
from clusterctl.actions import top as actions_top
from clusterctl.actions import verify as actions_verify
from clusterctl.cli.console import (
    Console,
    ago,
    can_redraw,
    format_records,
    format_table,
    make_plain,
    measure_height,
    pick,
)
from clusterctl.cli.output import choose_number
from clusterctl.cli.run import read_input
from clusterctl.core import stacks
from clusterctl.core.job import JobState
from clusterctl.core.model import Phase
from clusterctl.core.text import count, format_bytes
from clusterctl.core.variables import redact
from clusterctl.errors import UsageError
from clusterctl.insight import scaling
from clusterctl.insight import verify as insight_verify
from clusterctl.insight.scaling import SPLIT
from clusterctl.insight.top import NodeLine, RankLine, TopFrame
from clusterctl.options import verbs

SHOWN = 12
"""Frames of a stack that are shown without --verbose."""


def doctor(given: verbs.Doctor, console: Console) -> None:
    store = common.open_store()
    machines: Sequence[actions_doctor.MachineView] = ()
    if given.cluster and given.job is None and (cluster := store.find(given.cluster)):
        machines, warnings = actions_doctor.look_at_machines(store, cluster)
        answer = "" if machines else f"all {count(len(cluster.nodes), 'node')} answer"
        answer = f"cluster {cluster.name}, {cluster.phase.value}: {answer or 'see its machines'}"
        console.report(answer)
        for line in warnings:
            console.note(line)
        if machines:
            console.result("\n\n".join(map(_render_machine, machines)))
        used = any(not job.purpose for job in store.list_cluster_jobs(cluster))
        if cluster.phase is not Phase.READY or not used:
            console.document(job=None, summary=answer, findings=[], stacks=[], machines=machines)
            return
    store, number = choose_number(given, console)
    found = actions_doctor.diagnose(store, number, given.cluster, console.report)
    job = found.job
    console.report(f"job {job.id}, {count(job.ranks, 'rank')}: {job.state.value}")
    console.result("\n\n".join([*_render_findings(found), *_render_stacks(found, console.verbose)]))
    console.document(
        machines=machines,
        job=job.id,
        state=job.state,
        summary=found.summary,
        seconds=found.seconds,
        findings=[
            pick(item, "kind", "serious", "text", "advice", "lines", "ranks", "nodes")
            for item in found.findings
        ],
        stacks=[
            {
                "ranks": item.ranks,
                "collective": item.stack.collective,
                "frames": [pick(frame, "name", "file", "line") for frame in item.stack.frames],
            }
            for item in found.stacks
        ],
    )


def _render_machine(view: actions_doctor.MachineView) -> str:
    lines = [f"{view.node}: {view.state}"]
    for what, text in (("its console", view.console), ("cloud-init's log", view.cloud_init)):
        if text:
            lines += [f"  the end of {what}:", *(f"    {line}" for line in text)]
    return "\n".join(lines)


def _render_findings(found: actions_doctor.Diagnosis) -> list[str]:
    texts = [found.summary] if found.summary else []
    for number, item in enumerate(found.findings):
        word = "also" if item.serious else "note"
        if item.serious and number == 0:
            word = "cause"
        lines = [f"{word}: {item.text}", *(f"    {line}" for line in item.lines)]
        texts.append("\n".join([*lines, *[f"  → {item.advice}"] * bool(item.advice)]))
    return texts


def _render_stacks(found: actions_doctor.Diagnosis, all_frames: bool) -> list[str]:
    texts = []
    for item in found.stacks:
        frames = item.stack.shown
        shown = frames if all_frames else frames[:SHOWN]
        more = [f"    … {len(frames) - len(shown)} more (--verbose)"] * (len(shown) < len(frames))
        head = f"{stacks.name_ranks(item.ranks)}: {item.stack.describe()}"
        texts.append("\n".join([head, *(f"    {frame}" for frame in shown), *more]))
    return texts


# -------------------------------------------------------------------------------------------------
# Verbs that look at clusters and jobs: verify, diff.


def verify(given: verbs.Verify, console: Console) -> None:
    store, cluster = common.open_cluster(given.choose_name())
    found = actions_verify.measure(store, cluster, console.report, quick=given.quick, now=given.now)
    console.result(format_table((v.state, v.subject, v.what, v.text) for v in found.verdicts))
    low = len(found.low)
    text = f"{count(low, 'line')} below the limit" if low else "all within limits"
    console.report(text + "; the notes name what was not measured" * bool(found.left_out))
    shown = pick(found, "seconds", "verdicts", "nodes", "links", "left_out")
    console.document(cluster=cluster.name, ok=not found.low, **shown)
    if low:
        raise typer.Exit(8)


def diff(given: verbs.Diff, console: Console) -> None:
    store = common.open_store()
    numbers = (given.first, given.second)
    changes, files = compare.compare_jobs(store, *numbers, given.cluster, console.note)
    texts = []
    if changes:
        head = ("", *(f"job {number}" for number in numbers))
        rows = ((c.what, c.first or "-", c.second or "-") for c in changes)
        texts.append(format_table([head, *rows]))
    texts += ("\n".join([f"{file.how} {file.path}", *file.lines]) for file in files)
    console.result(redact("\n\n".join(texts)) if texts else "no difference")
    console.document(jobs=numbers, changes=changes, files=files)


# -------------------------------------------------------------------------------------------------
# Verbs that measure speed: bench allreduce, bench scaling.


REPEATS, LARGEST = 3, 8 << 20
"""Of a measurement; bytes of a message."""


def bench_allreduce(given: verbs.BenchAllreduce, console: Console) -> None:
    store, cluster = common.open_cluster(given.cluster)
    found = bench.measure_allreduce(
        *(store, cluster, console.report),
        backends=given.backends,
        largest=given.max_size or LARGEST,
        ranks=given.ranks,
        repeats=given.repeats or REPEATS,
        now=given.now,
    )
    console.result(format_table(scaling.tabulate_allreduce(found)))
    for backend, why in found.failed.items():
        console.note(f"{backend}: {why}")
    if found.repeats > 1:
        ranks = count(found.rows[0].ranks, "rank")
        console.note(f"{ranks}; median of {found.repeats} (smallest-largest)")
    if found.limit.rate:
        rate = insight_verify.format_rate(found.limit.rate)
        console.note(f"limit: {rate}, {found.limit.of}")
    console.document(cluster=cluster.name, **pick(found, "limit", "repeats", "failed", "rows"))


def bench_scaling(given: verbs.BenchScaling, console: Console) -> None:
    running = given.pick_options(verbs.Run)
    if not (running.python_module or running.command):
        raise UsageError("nothing to run", hint="clusterctl bench scaling --ranks 1,2 SCRIPT")
    if not given.counts:
        raise UsageError("--ranks is missing", hint="for example --ranks 1,2,4")
    store, cluster = common.open_cluster(given.cluster)
    place = f"the provider of cluster {cluster.name!r} is {cluster.spec.provider}"
    given = given.apply_limits({cluster.system, running.launcher}, console.note, place)
    running = given.pick_options(verbs.Run)
    resolved = actions_run.resolve_run(running, read_input(running), cluster)
    spec, secrets = actions_run.make_spec(running, resolved.program)
    curve = bench.measure_scaling(
        *(store, cluster, console.report),
        spec=spec,
        resolved=resolved,
        secrets=secrets,
        requirements=running.requirements,
        counts=given.counts,
        repeats=given.repeats or REPEATS,
        now=given.now,
    )
    console.result(format_table(scaling.tabulate_scaling(curve)))
    if all(step.split is None for step in curve.steps):
        console.note("the program does not report where its time goes: see docs/measuring.md")
    console.note(f"fastest: {count(curve.fastest, 'rank')}")
    console.document(
        cluster=cluster.name,
        **pick(curve, "program", "unit", "fastest"),
        steps=[
            {
                **pick(step, "ranks", "nodes", "jobs", "seconds", "rate", "speedup", "efficiency"),
                **dict(zip(SPLIT, step.split or (None,) * len(SPLIT), strict=True)),
            }
            for step in curve.steps
        ],
    )


# -------------------------------------------------------------------------------------------------
# `report`: one page about a cluster or a job.


def report(given: verbs.Report, console: Console) -> None:
    store = common.open_store()
    text = actions_report.make(store, given.wanted, given.cluster, redact, console.report)
    name = given.wanted or actions_report.find_cluster(store, given.cluster).name
    path = given.output or Path(f"report-{name}.html")
    if str(path) == "-":
        console.result(text.rstrip("\n"), raw=True)
        console.document(text=text)
        return
    actions_report.write(text, path)
    console.note(f"wrote {path}")
    console.document(path=path)


# -------------------------------------------------------------------------------------------------
# `top`: ranks and nodes of a job, refreshed in place on a terminal.


INTERVAL = 2.0


def top(given: verbs.Top, console: Console) -> None:
    store, number = choose_number(given, console)
    frames = actions_top.watch(
        *(store, number, given.cluster, console.report),
        interval=given.interval or INTERVAL,
        once=given.once,
    )
    try:
        if console.json:
            for frame in frames:
                print(json.dumps({"schema": 1, **make_plain(frame)}), flush=True)
        elif sys.stdout.isatty() and can_redraw() and not given.once:
            for frame in frames:
                console.draw(render(frame).splitlines(), measure_height() - 1)
        else:
            for frame in frames:
                console.result(render(frame))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        console.leave()


def render(frame: TopFrame) -> str:
    """The frame as text."""
    head = [f"job {frame.job}: {frame.state}"]
    if frame.seconds is not None:
        ended = JobState(frame.state).ended
        head[0] += f" {'after' if ended else 'for'} {ago(frame.seconds)}"
    if frame.dollars is not None:
        head.append(f"${frame.dollars:.4f} so far")
    if frame.left:
        head.append(f"about {ago(frame.left)} left")
    tables = (map(_list_rank, frame.ranks), map(_list_usage, frame.nodes))
    return "\n\n".join(filter(None, (", ".join(head), *map(format_records, tables))))


def _list_rank(line: RankLine) -> dict[str, object]:
    return {
        "rank": line.rank,
        "node": f"{line.node} (ended)" if line.alive is False else line.node,
        "step": "-" if line.step is None else f"{line.step:g}",
        "s/step": _format_number(line.step_seconds),
        "loss": _format_number(line.loss),
        "cores": "-" if line.cpu is None else f"{line.cpu:.2f}",
        "memory": _format_bytes(line.memory),
    }


def _list_usage(node: NodeLine) -> dict[str, object]:
    if node.error:
        return {"node": node.node, "CPU": node.error}
    used = " ".join("-" if gpu.used is None else f"{gpu.used:.0%}" for gpu in node.gpus)
    memory, total = sum(gpu.memory for gpu in node.gpus), sum(gpu.total for gpu in node.gpus)
    return {
        "node": node.node,
        "CPU": "-" if node.cpu is None else f"{node.cpu:.0%}",
        "memory": f"{_format_bytes(node.memory)} of {_format_bytes(node.total)}",
        "GPUs": used or None,
        "GPU memory": f"{_format_bytes(memory)} of {_format_bytes(total)}" if total else None,
        "received/s": _format_bytes(node.received),
        "sent/s": _format_bytes(node.sent),
    }


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _format_bytes(value: float | None) -> str:
    return "-" if value is None else format_bytes(value)

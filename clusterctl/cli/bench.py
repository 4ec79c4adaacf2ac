"""Verbs that measure speed: bench allreduce, bench scaling."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl import actions
from clusterctl.actions import bench as action
from clusterctl.actions.bench import SPLIT, Curve, Curves, Row, ScalingStep
from clusterctl.cli.console import Console, format_table, pick
from clusterctl.cli.run import read_program
from clusterctl.errors import UsageError
from clusterctl.formats import count
from clusterctl.options.bench import BenchAllreduce, BenchScaling
from clusterctl.options.run import Run

REPEATS = 3


def bench_allreduce(given: BenchAllreduce, console: Console) -> None:
    store = actions.open_store()
    cluster = actions.choose(store, given.cluster)
    sizes = action.Sizes(
        backends=given.backends,
        largest=given.max_size or action.Sizes().largest,
        ranks=given.ranks,
        repeats=given.repeats or REPEATS,
    )
    found = action.measure_allreduce(store, cluster, sizes, console.report, now=given.now)
    head = ("backend", "bytes", "latency µs", "algbw GB/s", "busbw GB/s", "of limit")
    console.result(format_table([head, *(_format_size(row, found) for row in found.rows)]))
    for backend, why in found.failed.items():
        console.note(f"{backend}: {why}")
    for line in _describe_limits(found):
        console.note(line)
    console.document(
        {
            "cluster": cluster.name,
            "limit": found.limit,
            "repeats": found.repeats,
            "failed": found.failed,
            "rows": [
                {
                    **pick(row, "backend", "ranks", "size", "seconds", "algorithm", "bus"),
                    "ring_seconds": action.estimate_ring_seconds(row.size, row.ranks, found.limit),
                }
                for row in found.rows
            ],
        }
    )


def _format_size(row: Row, found: Curves) -> tuple[str, ...]:
    share = f"{row.bus.value / found.limit.rate:.0%}" if found.limit.rate else "-"
    return (
        row.backend,
        str(row.size),
        row.seconds.describe(1e6),
        row.algorithm.describe(1e-9),
        row.bus.describe(1e-9),
        share,
    )


def _describe_limits(found: Curves) -> Iterator[str]:
    ranks = found.rows[0].ranks
    if found.repeats > 1:
        yield f"{count(ranks, 'rank')}; median of {found.repeats} (smallest-largest)"
    if found.limit.rate:
        yield f"limit: {action.format_rate(found.limit.rate)}, {found.limit.of}"


def bench_scaling(given: BenchScaling, console: Console) -> None:
    running = given.pick_options(Run)
    if not (running.python_module or running.command):
        raise UsageError("nothing to run", hint="clusterctl bench scaling --ranks 1,2 SCRIPT")
    if not given.counts:
        raise UsageError("--ranks is missing", hint="for example --ranks 1,2,4")
    store = actions.open_store()
    cluster = actions.choose(store, given.cluster)
    place = f"the provider of cluster {cluster.name!r} is {cluster.spec.provider}"
    given = given.apply_limits({cluster.system, running.launcher}, console.note, place)
    running = given.pick_options(Run)
    resolved, spec, secrets = read_program(running)
    series = action.Series(
        spec=spec,
        resolved=resolved,
        secrets=secrets,
        requirements=running.requirements,
        ranks=given.counts,
        repeats=given.repeats or REPEATS,
    )
    curve = action.measure_scaling(store, cluster, series, console.report, now=given.now)
    console.result(
        format_table([_list_columns(curve), *(_format_step(step, curve) for step in curve.steps)])
    )
    for line in _conclude(curve):
        console.note(line)
    console.document(
        {
            "cluster": cluster.name,
            **pick(curve, "program", "unit", "fastest", "cheapest", "assumes"),
            "steps": [
                {
                    **pick(step, "ranks", "nodes", "jobs", "seconds", "rate", "speedup"),
                    **pick(step, "efficiency", "predicted", "dollars"),
                    **dict(zip(SPLIT, step.split or (None,) * len(SPLIT), strict=True)),
                }
                for step in curve.steps
            ],
        }
    )


def _list_columns(curve: Curve) -> tuple[str, ...]:
    times = (f"s/{curve.unit}", "predicted", "speed-up", "efficiency")
    return ("ranks", "nodes", *times, "compute", "communication", "waiting", f"$/{curve.unit}")


def _format_step(step: ScalingStep, curve: Curve) -> tuple[str, ...]:
    predicted = "-" if step.predicted is None else action.describe(step.predicted)
    split = (
        [action.describe(seconds) for seconds in step.split] if step.split else ["-"] * len(SPLIT)
    )
    return (
        str(step.ranks),
        str(step.nodes),
        step.seconds.describe(),
        predicted,
        step.speedup.describe(),
        f"{step.efficiency:.0%}",
        *split,
        "-" if step.dollars is None else action.describe(step.dollars),
    )


def _conclude(curve: Curve) -> Iterator[str]:
    yield f"predicted from {curve.assumes}"
    if all(step.split is None for step in curve.steps):
        yield "the program does not report where its time goes: see docs/performance.md"
    yield f"fastest: {count(curve.fastest, 'rank')}"
    if curve.cheapest:
        yield f"cheapest: {count(curve.cheapest, 'rank')}"

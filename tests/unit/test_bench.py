"""What `bench` makes of measurements: curves, error bars, dollars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.insight import scaling
from clusterctl.insight.metrics import MetricPoint
from clusterctl.insight.scaling import Figure, HardwareLimit
from clusterctl.insight.verify import Link, Measurements, NodeFigures
from tests.unit.calling import Call
from tests.unit.tables import rows

CASES = sorted((Path(__file__).parents[1] / "cases" / "scaling").glob("*.json"))


def report(*links: Link, **node: Any) -> Measurements:
    nodes = (NodeFigures("worker-1", **node), NodeFigures("worker-2", **node))
    return Measurements(nodes, links, (), 1.0)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_how_a_program_scales(path: Path) -> None:
    case = json.loads(path.read_text())
    runs = [
        scaling.read_run(
            number,
            run["ranks"],
            tuple(run["nodes"]),
            run.get("seconds", 60.0),
            [
                MetricPoint(0, {"epoch": epoch, **values})
                for epoch, values in enumerate(run["epochs"])
            ],
        )
        for number, run in enumerate(case["runs"])
    ]
    curve = scaling.make_curve("train.py", runs)

    assert curve.unit == case["unit"]
    for index, step in enumerate(curve.steps):
        assert step.speedup.value == pytest.approx(case["speedup"][index], rel=1e-3)
        assert step.efficiency == pytest.approx(case["efficiency"][index], rel=1e-3)
        assert step.split == (case["split"][index] and pytest.approx(tuple(case["split"][index])))
    assert curve.fastest == case["fastest"]


def test_repeats_are_error_bars() -> None:
    runs = [
        scaling.read_run(
            n, 1, ("worker-1",), 60, [MetricPoint(0, {"epoch": 0, "seconds": seconds})]
        )
        for n, seconds in enumerate((4.0, 5.0, 8.0))
    ]
    [step] = scaling.make_curve("x.py", runs).steps
    assert step.seconds == Figure(5.0, 4.0, 8.0)
    assert step.jobs == (0, 1, 2)


def test_ranks_that_all_print_are_not_counted_twice() -> None:
    """The lowest rank's lines say how long an epoch took."""
    points = [MetricPoint(rank, {"epoch": 0, "seconds": 2.0 + rank}) for rank in (1, 0)]
    assert scaling.read_run(1, 2, ("a",), 60, points).seconds == 2.0


def sizes(*rows: tuple[int, float]) -> list[MetricPoint]:
    return [MetricPoint(0, {"step": n, "bytes": s, "seconds": t}) for n, (s, t) in enumerate(rows)]


def test_bandwidths_of_an_all_reduce() -> None:
    """Of four ranks, each link carries 2 x 3/4 of the message."""
    repeats = [sizes((8, 1e-5), (4000, 2e-5)), sizes((8, 3e-5), (4000, 4e-5))]
    small, large = scaling.make_rows("mpi", 4, repeats)
    assert (small.size, large.size) == (8, 4000)
    assert small.seconds.value == pytest.approx(2e-5)
    assert (small.seconds.low, small.seconds.high) == (1e-5, 3e-5)
    assert large.algorithm.value == pytest.approx((2e8 + 1e8) / 2)
    assert large.bus.value == pytest.approx(1.5 * large.algorithm.value)


def test_sizes_that_a_repeat_lacks_are_left_out() -> None:
    rows = scaling.make_rows("gloo", 2, [sizes((8, 1e-5), (64, 1e-5)), sizes((8, 1e-5))])
    assert [row.size for row in rows] == [8]


def test_the_limit_is_the_slowest_link() -> None:
    links = (
        Link("worker-1", "worker-2", 1e-4, 2e9, 1.5e9),
        Link("worker-1", "worker-3", 3e-4, 1e9, 1.2e9),
        Link("worker-2", "worker-3", error="no connection"),
    )
    assert scaling.find_limit(report(*links)) == HardwareLimit(1e9, "link worker-1 – worker-3")
    assert scaling.find_limit(report(memory=9e9)).of == "memory of worker-1"
    assert scaling.find_limit(report()).rate == 0


@rows("words, said", "bench.what_is_refused")
def test_what_is_refused(words: tuple[str, ...], said: str, call: Call) -> None:
    done = call("bench", *words)
    assert done.code == 2
    assert said in done.err

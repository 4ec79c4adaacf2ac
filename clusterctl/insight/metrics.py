"""Metrics that programs print, one JSON object in a line of its own:

    {"clusterctl": {"epoch": 3, "epochs": 10, "loss": 0.31, "samples_per_second": 5400}}

or, where a rank prints none of these, in lines for people (see metric_lines). Pure. `docs/jobs.md`
says which names have a meaning; any other number is kept as it is.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from clusterctl.insight import metric_lines
from clusterctl.insight.metric_lines import is_measured, is_of_training

KEY = "clusterctl"
LONGEST = 1 << 16
"""Bytes of a line with metrics. What is longer is none."""
LONGEST_NAME = 64
RANK = "rank"
"""A column and a key of its own: who printed the line. A metric of that name is left out."""
FIRST, LAST = ("epoch", "step"), ("time",)
"""Columns with a place of their own in a table."""
PLACES = (*FIRST, "epochs", "steps", *LAST)
"""Where a point lies, and no measurement of its own."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """What one line said, in its order. `time` is in seconds since the epoch."""

    rank: int
    values: Mapping[str, float]
    meant: bool = field(default=True, compare=False)
    """Whether the line was printed for clusterctl; else for people."""

    @property
    def x(self) -> float | None:
        """Where it lies in the training: its step, else its epoch."""
        return self.values.get("step", self.values.get("epoch"))

    @property
    def place(self) -> tuple[float, ...]:
        """The same in order, where each epoch counts its steps anew, too."""
        return tuple(self.values[name] for name in FIRST if name in self.values)

    @property
    def done(self) -> float | None:
        """The part of the training that is done, 0 to 1; None where the line does not say."""
        for number, total, ahead in (("epoch", "epochs", 1), ("step", "steps", 0)):
            if number in self.values and self.values.get(total, 0) > 0:
                return min(1.0, (self.values[number] + ahead) / self.values[total])
        return None


def parse(line: bytes) -> dict[str, float] | None:
    """The numbers of a line with metrics; None for any other line."""
    line = line.strip()
    if not line.startswith(b"{") or len(line) > LONGEST or KEY.encode() not in line:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    values = found.get(KEY) if isinstance(found, dict) and len(found) == 1 else None
    return _keep_numbers(values) if isinstance(values, dict) else None


def _keep_numbers(values: Mapping[str, float]) -> dict[str, float]:
    return {
        name: value
        for name, value in values.items()
        if (type(value) in (int, float) and abs(value) < 1e300) or value != value
        if name.isprintable() and 0 < len(name) <= LONGEST_NAME and name != RANK
    }


class Reader:
    """Finds the metrics in what ranks write, piece by piece. Of a rank that has printed some for
    clusterctl, lines for people no longer count: they say the same. Settings are printed once,
    before the training: what has no place or no result waits for a line that has both, and is then
    dropped, or for another with its names."""

    def __init__(self) -> None:
        self._rest: dict[tuple[int, str], bytes] = {}
        self._last: dict[int, Mapping[str, float]] = {}
        self._meant: set[int] = set()
        self._begun: set[int] = set()
        self._waiting: dict[int, dict[tuple[str, ...], Mapping[str, float]]] = {}

    def read(self, rank: int, data: bytes, stream: str = "") -> list[MetricPoint]:
        """The points that end in `data`, which is what the rank wrote next to that stream. A bar
        ends its lines with a carriage return."""
        text = self._rest.get((rank, stream), b"") + data.replace(b"\r", b"\n")
        whole, _, rest = text.rpartition(b"\n")
        self._rest[rank, stream] = rest[: LONGEST + 1]
        return self._read_lines(rank, whole)

    def finish(self) -> list[MetricPoint]:
        """Of last lines without their end, and results after which no training came."""
        found = [p for (rank, _), line in self._rest.items() for p in self._read_lines(rank, line)]
        self._rest.clear()
        waiting = [(rank, v) for rank, lines in self._waiting.items() for v in lines.values()]
        self._waiting.clear()
        results = [MetricPoint(r, v, meant=False) for r, v in waiting if is_measured(v)]
        return [*found, *results]

    def _read_lines(self, rank: int, text: bytes) -> list[MetricPoint]:
        found = [MetricPoint(rank, v) for line in text.split(b"\n") if (v := parse(line))]
        if found:
            self._meant.add(rank)
            self._waiting.pop(rank, None)
        if rank in self._meant or not (marks := metric_lines.find_marks(text)):
            return found
        for line in text.split(b"\n"):
            values = _keep_numbers(metric_lines.read(line, marks) or {})
            if values and values != self._last.get(rank):  # a bar is drawn again and again
                self._last[rank] = values
                ready = self._hold_back(rank, values)
                found += [MetricPoint(rank, each, meant=False) for each in ready]
        return found

    def _hold_back(self, rank: int, values: Mapping[str, float]) -> list[Mapping[str, float]]:
        """What counts, now that this line has come."""
        if rank in self._begun:
            return [values]
        names = tuple(values)
        before = self._waiting.setdefault(rank, {}).get(names, values)
        if before == values and not is_of_training(values):
            self._waiting[rank][names] = values
            return []
        self._begun.add(rank)
        del self._waiting[rank]
        return [values] if before == values else [before, values]


def drop_repeated(points: Iterable[MetricPoint]) -> tuple[MetricPoint, ...]:
    """Without the lines for people of ranks that have printed others for clusterctl."""
    points = tuple(points)
    ranks = {point.rank for point in points if point.meant}
    return tuple(point for point in points if point.meant or point.rank not in ranks)


def list_columns(points: Iterable[MetricPoint]) -> list[str]:
    """All names: epoch and step first, time last, the others as they first came."""
    seen = dict.fromkeys(name for point in points for name in point.values)
    middle = [name for name in seen if name not in (*FIRST, *LAST)]
    return [
        *(name for name in FIRST if name in seen),
        *middle,
        *(name for name in LAST if name in seen),
    ]


def to_csv(points: Sequence[MetricPoint]) -> str:
    """A header and one line for each point; empty where a point has no such value."""
    names = list_columns(points)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", *names])
    writer.writerows([p.rank, *(p.values.get(name, "") for name in names)] for p in points)
    return text.getvalue()


def render(value: float) -> str:
    """For people: six digits, and all of a whole number."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def to_json(point: MetricPoint) -> dict[str, float | None]:
    """As JSON has it: what is not finite is null."""
    finite = {n: v if math.isfinite(v) else None for n, v in point.values.items()}
    return {"rank": point.rank, **finite}


def find_series(points: Iterable[MetricPoint], name: str) -> dict[int, list[tuple[float, float]]]:
    """(x, value) of each rank that has printed `name`; see `find_curves`."""
    return {
        rank: [(x, point.values[name]) for x, point in curve]
        for rank, curve in find_curves(points, name).items()
    }


def find_curves(
    points: Iterable[MetricPoint], name: str
) -> dict[int, list[tuple[float, MetricPoint]]]:
    """The points of each rank that have `name`, in the order of printing, each with its x: the
    step, else the epoch, else the number of the point. Steps that are counted anew in each epoch
    go on from those of the epoch before. A training that was started again replaces what it had
    printed from that step on."""
    found: dict[int, list[tuple[float, MetricPoint]]] = {}
    for point in points:
        if name not in point.values or not math.isfinite(point.values[name]):
            continue
        mine = found.setdefault(point.rank, [])
        while mine and point.place and mine[-1][1].place >= point.place:
            mine.pop()
        last, before = mine[-1] if mine else (0.0, point)
        if point.x is None:
            x = float(len(mine))
        elif before.place[:1] < point.place[:1] and before.x is not None and point.x <= before.x:
            x = last + point.x
        else:
            x = point.x + (last - before.x if mine and before.x is not None else 0.0)
        mine.append((x, point))
    return found


def find_last(points: Iterable[MetricPoint], name: str) -> float | None:
    """The last value of that name, on the lowest rank that has one."""
    found: dict[int, float] = {}
    for point in points:
        if name in point.values:
            found[point.rank] = point.values[name]
    return found[min(found)] if found else None


def find_loss(points: Sequence[MetricPoint]) -> float | None:
    """The last value of `loss`, or else of what else is a training's loss."""
    names = sorted(list_columns(points), key=lambda name: (name != "loss", "train" not in name))
    return next((find_last(points, name) for name in names if name.endswith("loss")), None)


def compute_step_seconds(points: Sequence[MetricPoint]) -> float | None:
    """Seconds of one step (of one epoch, in a program that counts no steps), from the last two
    points that are not at the same place; None where they do not say."""
    timed = [(p.x, p.values["time"]) for p in points if p.x is not None and "time" in p.values]
    pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(timed) if b[0] > a[0]]
    return pairs[-1][1] / pairs[-1][0] if pairs and pairs[-1][1] > 0 else None


def estimate_seconds_left(points: Sequence[MetricPoint], now: float) -> float | None:
    """Until the training is done, at its pace since its first point; None where it does not say."""
    timed = [
        (p.done, p.values["time"]) for p in points if p.done is not None and "time" in p.values
    ]
    if not timed:
        return None
    (first, began), (done, when) = timed[0], timed[-1]
    if done >= 1:
        return 0.0
    if done <= first or when <= began:
        return None
    return max(0.0, (1 - done) * (when - began) / (done - first) - (now - when))

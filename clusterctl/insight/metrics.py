"""Metrics in lines that programs print for people: JSON and Python dicts, `iter 10: loss 2.3`,
`Epoch 3 | loss 0.5`, progress bars of tqdm and Keras. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

from msgspec import Struct

from clusterctl.core import assets

LONGEST = 2000
"""Bytes of such a line. What is longer is none."""
EPOCH, STEP, TIME = "epoch", "step", "time"
STEPS = (STEP, "global_step", "iter", "iteration", "batch")
SINCE_1970 = 1e9
"""Seconds. A `time` below is not when, but how long."""

_NUMBER = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:nan|inf)\b)"
_UNIT = r"%|[A-Za-z]+(?:/[a-z]+)?|\s(?:%|m?s|sec|seconds|[KMG]i?B|[a-z]+/s(?:ec)?)(?!\s*[\w.+-])"
_VALUE = (
    rf"(?P<value>{_NUMBER})(?:/(?P<total>\d+))?(?P<unit>{_UNIT})?(?=[\s(.]|$)"
    r"(?:\s*\([^()]*\))*\.?\s*"
)
_WORD = r"[A-Za-z][\w@/'-]*(?:\.\w+)*"
_EVALUATIONS = "val|valid|validation|validating|test|testing|eval|evaluation|evaluating"
_PARTS = f"train|training|dev|{_EVALUATIONS}"
_KINDS = f"{_PARTS}|avg|average|mean|running|best|final"
_NAMED = re.compile(rf"(?P<name>{_WORD}(?: [\w@/.()-]+){{0,5}})[:=]{_VALUE}", re.IGNORECASE)
_BARE = re.compile(rf"(?P<name>(?:(?:{_KINDS}) )?{_WORD})\s+{_VALUE}", re.IGNORECASE)
_DICT = re.compile(r"\{\s*'[^{}]*\}")
_ITEM = re.compile(
    rf"'(?P<name>[^']+)': (?:[\w.]+\(|')?(?P<value>{_NUMBER})(?:'|(?:, [^()]*)?\))?(?=[,}}])"
)
"""An entry of a dict, also `tensor(0.5)` and `'0.5'`."""
_GROUP = re.compile(r"\[([A-Za-z][^\[\]]*)\]")
"""As in `[Epoch 0/200] [D loss: 0.69]`: a field of its own."""
_SUMMARY = re.compile(r"\s*(?:\*|=+>)\s+")
"""What a line of results begins with: ` * Acc@1 71.3`."""
_EVALUATION = re.compile(rf"\W*({_EVALUATIONS})\b(?!:?\s*\[)", re.IGNORECASE)
_HAS_PART = re.compile(rf"(?:.*[_/ -])?(?:{_PARTS})(?:[_/ -].*)?", re.IGNORECASE)
_FIELDS = re.compile(r"[;|\t]|,(?!\d{3}\b)|\s-+\s|\.\s+(?=[A-Za-z])|\s{2,}(?=[A-Za-z])")
_TITLE = re.compile(r"\s*(?P<title>\w[\w ]*:(?!nan|inf)(?=[A-Za-z]))*\s*", re.IGNORECASE)
_JOINED = re.compile(r"\s*([:=/])\s*")
_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]+")
_ERROR = re.compile(r"(?:Error|Exception|Warning)\b|^ {4}|^\t|^[+$] ")
"""What Python says of errors, the program text below that, and commands of a shell."""


class PlacePattern(Struct, frozen=True):
    """A row: where lines like `line` say how far the training is."""

    pattern: str
    line: str
    values: dict[str, float]


class LineTable(Struct, frozen=True):
    """metrics.toml."""

    results: tuple[str, ...]
    others: tuple[str, ...]
    places: tuple[PlacePattern, ...]


@cache
def load_line_table() -> LineTable:
    return assets.load_table("insight/metrics.toml", LineTable)


@cache
def list_marks() -> tuple[bytes, ...]:
    """A line has one of these, in lower case, or no metrics: a test that costs next to nothing."""
    return tuple(mark.encode() for mark in (*load_line_table().results, EPOCH, STEP, "iter"))


@cache
def _compile_results() -> re.Pattern[str]:
    return re.compile(
        rf"(?!(?:{'|'.join(load_line_table().others)})[_ ])(?:.*[_ /.-])?"
        rf"(?:{'|'.join(load_line_table().results)})(?:_?[a-z\d]|@\d+|_(?:{_PARTS}))?",
        re.IGNORECASE,
    )


def find_marks(text: bytes) -> tuple[bytes, ...]:
    """Those that are anywhere in these lines."""
    low = text.lower()
    return tuple(mark for mark in list_marks() if mark in low)


def read_metric_line(line: bytes, marks: Sequence[bytes]) -> dict[str, float] | None:
    """The metrics of a line, in its order; None for any other line. An epoch alone is the heading
    of what follows."""
    low = line.lower()
    if len(line) > LONGEST or not any(mark in low for mark in marks):
        return None
    text = _CONTROL.sub("", line.decode(errors="replace")).rstrip()
    found = _read_object(text) if text.endswith("}") else _read_text(text)
    if found and abs(found.get(TIME, SINCE_1970)) < SINCE_1970:
        found = {"duration" if name == TIME else name: value for name, value in found.items()}
    return found


def is_measured(names: Iterable[str]) -> bool:
    """Whether one of them is the name of a result."""
    return any(_compile_results().fullmatch(name) for name in names)


def _read_object(text: str) -> dict[str, float] | None:
    """JSON or a dict of Python, alone or at the end of a line: `INFO:root:{'loss': 0.5}`."""
    before, brace, rest = text.partition("{")
    found: dict[str, float] = {}
    _take_place(before, found)
    found |= _read_dict(brace + rest)
    placed = EPOCH in found or STEP in found or not before.strip()
    return found if placed and is_measured(found) else None


def _read_dict(text: str) -> dict[str, float]:
    """Its numbers."""
    found: Mapping[object, object] = {}
    if _DICT.fullmatch(text):
        found = {item["name"]: _parse_number(item["value"]) for item in _ITEM.finditer(text)}
    else:
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        found = read if isinstance(read, dict) else {}
    numbers: dict[str, float] = {
        str(name): n  # type: ignore[misc]
        for name, n in found.items()
        if type(n) in (int, float)
    }
    names = {name: name.lower() for name in numbers}
    step = next((name for name in STEPS if name in names.values()), STEP)
    return {
        STEP if low == step else EPOCH if low == EPOCH else name: numbers[name]
        for name, low in names.items()
    }


def _read_text(text: str) -> dict[str, float] | None:
    """Results with a place in the training, or lines that are nothing but named results."""
    if _ERROR.search(text):
        return None
    found: dict[str, float] = {}
    summary = _SUMMARY.match(text)
    text = text[summary.end() :] if summary else text
    text = _take_place(_JOINED.sub(r"\1", _GROUP.sub(r"|\1|", text)), found).rstrip("]")
    placed = bool(found)
    evaluation = _EVALUATION.match(text)
    heading = found.keys() == {EPOCH} and not re.search(r"\w", text)
    for part in filter(None, map(str.strip, _FIELDS.split(text))):
        pairs = list(_read_pairs(part, bare=bool(placed or summary or evaluation)))
        if not (pairs or placed):
            return None
        found |= {name: value for name, value in pairs if name not in (EPOCH, STEP)}
    if evaluation:  # its results are not the training's
        own = {name for name in found if name in (EPOCH, STEP, TIME) or _HAS_PART.fullmatch(name)}
        part = evaluation[1].lower()
        found = {name if name in own else f"{part}_{name}": n for name, n in found.items()}
    return found if heading or is_measured(found) else None


def _take_place(text: str, found: dict[str, float]) -> str:
    """Adds epoch and step to `found`; returns the rest of the line."""
    for place in load_line_table().places:
        there = re.search(place.pattern, text, re.IGNORECASE)
        if not there:
            continue
        groups = there.groupdict()
        places = {name: groups[name] for name in (EPOCH, STEP) if groups.get(name)}
        if not places.keys() & found.keys():
            found |= {name: _parse_number(number) for name, number in places.items()}
            if groups.get("part"):
                found[EPOCH] += int(groups["part"]) / max(1, int(groups["of"]))
            text = f"{text[: there.start()]}|{text[there.end() :]}"
    return text


def _read_pairs(field: str, *, bare: bool = False) -> Iterator[tuple[str, float]]:
    """Names and values, if there is nothing else in the field. `bare`: `loss 2.3` is one, too."""
    found: dict[str, float] = {}
    start = _TITLE.match(field)
    at = start.end() if start else 0
    while at < len(field):
        pair = _NAMED.match(field, at) or (_BARE.match(field, at) if bare else None)
        if not pair:
            return
        unit = (pair["unit"] or "").strip().strip("%")
        name = re.sub(r"[^\w@/.-]+", "_", f"{pair['name'].lower()} {unit}").strip("_")
        found[name] = _parse_number(pair["value"])
        if pair["total"]:
            found[name] /= max(1, int(pair["total"]))
        at = pair.end()
    if not (start and start["title"]) or is_measured(found):  # `module:function:12`
        yield from found.items()


def _parse_number(text: str) -> float:
    text = text.replace(",", "")
    return int(text) if text.lstrip("+-").isdigit() else float(text)


# -------------------------------------------------------------------------------------------------
# Metrics that programs print, one JSON object in a line of its own:
#
#     {"clusterctl": {"epoch": 3, "epochs": 10, "loss": 0.31, "samples_per_second": 5400}}
#
# or, where a rank prints none of these, in lines for people (see metric_lines). Pure.
# `docs/outputs.md` says which names have a meaning; any other number is kept as it is.


KEY = "clusterctl"

LONGEST_SERIES = 1 << 16
"""Bytes of a line with metrics. What is longer is none."""
LONGEST_NAME = 64
RANK = "rank"
"""A column and a key of its own: who printed the line. A metric of that name is left out."""
FIRST, LAST = ("epoch", "step"), ("time",)
"""Columns with a place of their own in a table."""


class MetricPoint(Struct, frozen=True):
    """What one line said, in its order. `time` is in seconds since the epoch."""

    rank: int
    values: Mapping[str, float]
    meant: bool = True
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


def parse_metrics(line: bytes) -> dict[str, float] | None:
    """The numbers of a line with metrics; None for any other line."""
    line = line.strip()
    if not line.startswith(b"{") or len(line) > LONGEST_SERIES or KEY.encode() not in line:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    values = found.get(KEY) if isinstance(found, dict) and len(found) == 1 else None
    return keep_numbers(values) if isinstance(values, dict) else None


def keep_numbers(values: Mapping[str, float]) -> dict[str, float]:
    """Without what is no number, and without names that nobody can read."""
    return {
        name: value
        for name, value in values.items()
        if (type(value) in (int, float) and abs(value) < 1e300) or value != value
        if name.isprintable() and 0 < len(name) <= LONGEST_NAME and name != RANK
    }


class Reader:
    """Finds the metrics in what ranks write, piece by piece. Of a rank that has printed some for
    clusterctl, lines for people no longer count: they say the same."""

    def __init__(self) -> None:
        self._rest: dict[tuple[int, str], bytes] = {}
        self._last: dict[int, Mapping[str, float]] = {}
        self._meant: set[int] = set()
        self._epoch: dict[int, Mapping[str, float]] = {}

    def read(self, rank: int, data: bytes, stream: str = "") -> list[MetricPoint]:
        """The points that end in `data`, which is what the rank wrote next to that stream. A bar
        ends its lines with a carriage return."""
        text = self._rest.get((rank, stream), b"") + data.replace(b"\r", b"\n")
        whole, _, rest = text.rpartition(b"\n")
        self._rest[rank, stream] = rest[: LONGEST_SERIES + 1]
        return self._read_lines(rank, whole)

    def finish(self) -> list[MetricPoint]:
        """Of last lines without their end."""
        found = [p for (rank, _), line in self._rest.items() for p in self._read_lines(rank, line)]
        self._rest.clear()
        return found

    def _read_lines(self, rank: int, text: bytes) -> list[MetricPoint]:
        found = [MetricPoint(rank, v) for line in text.split(b"\n") if (v := parse_metrics(line))]
        if found:
            self._meant.add(rank)
        if rank in self._meant or not (marks := find_marks(text)):
            return found
        for line in text.split(b"\n"):
            values = keep_numbers(read_metric_line(line, marks) or {})
            if values.keys() == {EPOCH}:
                self._epoch[rank], values = values, {}
            values = values and {**self._epoch.get(rank, {}), **values}
            if values and values != self._last.get(rank):  # a bar is drawn again and again
                self._last[rank] = values
                found.append(MetricPoint(rank, values, meant=False))
        return found


def drop_repeated(points: Iterable[MetricPoint]) -> tuple[MetricPoint, ...]:
    """Of ranks that have printed lines for clusterctl, only those."""
    points = tuple(points)
    ranks = {point.rank for point in points if point.meant}
    return tuple(point for point in points if point.meant or point.rank not in ranks)


def list_columns(points: Iterable[MetricPoint]) -> list[str]:
    """All names: epoch and step first, time last, the others as they first came."""
    seen = dict.fromkeys(name for point in points for name in point.values)
    order = {name: number for number, name in enumerate(FIRST, -len(FIRST))}
    return sorted(seen, key=lambda name: 1 if name in LAST else order.get(name, 0))


def to_csv(points: Sequence[MetricPoint]) -> str:
    """A header and one line for each point; empty where a point has no such value."""
    names = list_columns(points)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", *names])
    writer.writerows([p.rank, *(p.values.get(name, "") for name in names)] for p in points)
    return text.getvalue()


def render_metrics(value: float) -> str:
    """For people: six digits, and all of a whole number."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def to_json(point: MetricPoint) -> dict[str, float | None]:
    """As JSON has it: what is not finite is null."""
    finite = {n: v if math.isfinite(v) else None for n, v in point.values.items()}
    return {"rank": point.rank, **finite}


def find_series(points: Iterable[MetricPoint], name: str) -> dict[int, list[tuple[float, float]]]:
    """(x, value) of each rank that has printed `name`, in the order of printing. x is the step,
    else the epoch, else the number of the point. Steps that are counted anew in each epoch go on
    from those of the epoch before. A training that was started again replaces what it had printed
    from that step on."""
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
    return {rank: [(x, p.values[name]) for x, p in curve] for rank, curve in found.items()}


def find_last(points: Iterable[MetricPoint], name: str) -> float | None:
    """The last value of that name, on the lowest rank that has one."""
    found: dict[int, float] = {}
    for point in points:
        if name in point.values:
            found[point.rank] = point.values[name]
    return found[min(found)] if found else None


def find_step(points: Sequence[MetricPoint]) -> float | None:
    """The last step, or else the last epoch: evaluations often name no step."""
    step = find_last(points, STEP)
    return find_last(points, EPOCH) if step is None else step


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

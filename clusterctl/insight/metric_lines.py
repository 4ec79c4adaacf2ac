"""Metrics in lines that programs print for people: JSON and Python dicts, `iter 10: loss 2.3`,
`Epoch 3 | loss 0.5`, progress bars of tqdm and Keras. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

LONGEST = 2000
"""Bytes of such a line. What is longer is none."""
MEASURES = (
    *("loss", "acc", "accuracy", "ppl", "perplexity", "nll", "elbo", "bpb", "bpc", "bleu", "rouge"),
    *("f1", "auc", "auroc", "map", "mse", "mae", "rmse", "psnr", "ssim", "iou", "miou", "dice"),
    *("fid", "reward", "return", "top1", "top5", "prec", "logloss"),
)
"""How the names of results end. Text without any is prose: `step 3: moved 4 files`."""
EPOCH, STEP, TIME = "epoch", "step", "time"
STEPS = (STEP, "global_step", "iter", "iteration", "batch")
MARKS = tuple(word.encode() for word in (*MEASURES, EPOCH, STEP, "iter", "%|"))
"""A line has one of these, in lower case, or no metrics: a test that costs next to nothing."""
SINCE_1970 = 1e9
"""Seconds. A `time` below is not when, but how long."""

_NUMBER = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:nan|inf)\b)"
_UNIT = r"%|[A-Za-z]+(?:/[a-z]+)?|\s(?:%|m?s|sec|seconds|[KMG]i?B|[a-z]+/s(?:ec)?)(?!\s*[\w.+-])"
_VALUE = (
    rf"(?P<value>{_NUMBER})(?:/(?P<total>\d+))?(?P<unit>{_UNIT})?(?=[\s(.]|$)"
    r"(?:\s*\([^()]*\))*\.?\s*"
)
_WORD = r"[A-Za-z][\w@/'-]*(?:\.\w+)*"
_KINDS = "train|training|val|valid|validation|test|eval|dev|avg|average|mean|running|best|final"
_NAMED = re.compile(rf"(?P<name>{_WORD}(?: [\w@/.()-]+){{0,5}})[:=]{_VALUE}", re.IGNORECASE)
_BARE = re.compile(rf"(?P<name>(?:(?:{_KINDS}) )?{_WORD})\s+{_VALUE}", re.IGNORECASE)
_PLACES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^\[(?P<epoch>\d+),\s*(?P<step>\d+)\]",
        r"^\[(?P<epoch>\d+)/\d+\]\[\s*(?P<part>\d+)/(?P<of>\d+)\]",
        r"^\[(?P<step>\d+)\]\t",
        r"^train:(?P<epoch>\d+) \[\s*(?P<part>\d+)/(?P<of>\d+)[^\]]*\]",
        r"(?<![\w./])(?:at )?epoch(?:\(\w+\))?\s*[:=#]?\s*\[?(?P<epoch>\d+(?:\.\d+)?)(?:/\d+)?\]?"
        r"(?![\w.]\w)(?:\s*\[\s*(?P<part>\d+)/(?P<of>\d+)[^\]]*\])?:?",
        r"(?<![\w./])(?:at )?(?:global[ _]step|step|iter|iteration|batch|episode)\s*[:=#]?\s*"
        rf"\[?(?P<step>{_NUMBER})(?:/\d+)?\]?(?![\w.]\w):?",
        r"(?<![\w./])(?P<step>\d+)/\d+ (?:batches|steps|iterations)\b",
        r"^\s*\[?(?P<step>\d+)/\d+(?:\]| [\[━]\S*)",
    )
)
"""Where the training is. `part`: of the epoch, as in `Epoch: [3][ 10/500]`."""
_BAR = re.compile(
    r"(?P<value>\d+)(?:/\d+|it) \[[\d:?]+(?:<[\d:?]+)?,[^,\]]*/[^,\]]*, (?P<pairs>[^\]]*)\]"
)
"""The end of a bar of tqdm with a postfix."""
_DICT = re.compile(r"\{\s*'[^{}]*\}")
_ITEM = re.compile(
    rf"'(?P<name>[^']+)': (?:[\w.]+\(|')?(?P<value>{_NUMBER})(?:'|(?:, [^()]*)?\))?(?=[,}}])"
)
"""An entry of a dict, also `tensor(0.5)` and `'0.5'`."""
_GROUP = re.compile(r"\[([A-Za-z][^\[\]]*)\]")
"""As in `[Epoch 0/200] [D loss: 0.69]`: a field of its own."""
_SUMMARY = re.compile(
    r"\s*(?:\*|=+>|(?:test|val|validation|eval|evaluation):)\s+(?!\[)", re.IGNORECASE
)
"""What the line that sums up an evaluation begins with: ` * Acc@1 71.3`."""
_FIELDS = re.compile(r"[;|\t]|,(?!\d{3}\b)|\s-+\s|\.\s+(?=[A-Za-z])|\s{2,}(?=[A-Za-z])")
_TITLE = re.compile(r"\s*(?P<title>\w[\w ]*:(?!nan|inf)(?=[A-Za-z]))*\s*", re.IGNORECASE)
_JOINED = re.compile(r"\s*([:=/])\s*")
_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]+")
_ERROR = re.compile(r"(?:Error|Exception|Warning)\b|^ {4}|^\t")
"""What Python says of errors, and the program text below that."""
_MEASURED = re.compile(rf"(?:.*[_ /.-])?(?:{'|'.join(MEASURES)})(?:_?[a-z\d]|@\d+)?", re.IGNORECASE)


def find_marks(text: bytes) -> tuple[bytes, ...]:
    """Those that are anywhere in these lines."""
    low = text.lower()
    return tuple(mark for mark in MARKS if mark in low)


def read(line: bytes, marks: Sequence[bytes] = MARKS) -> dict[str, float] | None:
    """The metrics of a line, in its order; None for any other line."""
    low = line.lower()
    if len(line) > LONGEST or not any(mark in low for mark in marks):
        return None
    text = _CONTROL.sub("", line.decode(errors="replace")).rstrip()
    if text.startswith("{"):
        values = _read_dict(text)
        found = values if (_is_placed(values) and len(values) > 1) or is_measured(values) else None
    else:
        found = _read_bar(text) or _read_text(text)
    if found and abs(found.get(TIME, SINCE_1970)) < SINCE_1970:
        found = {"duration" if name == TIME else name: value for name, value in found.items()}
    return found


def is_of_training(values: Mapping[str, float]) -> bool:
    """Whether a line has a place in the training and a result: no settings have both."""
    return _is_placed(values) and is_measured(values)


def is_measured(names: Iterable[str]) -> bool:
    """Whether one of them is the name of a result."""
    return any(_MEASURED.fullmatch(name) for name in names)


def _is_placed(names: Collection[str]) -> bool:
    return EPOCH in names or STEP in names


def _read_dict(text: str) -> dict[str, float]:
    found: Mapping[object, object] = {}
    if _DICT.fullmatch(text):
        found = {item["name"]: _parse_number(item["value"]) for item in _ITEM.finditer(text)}
    else:
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        found = read if isinstance(read, dict) else {}
    numbers = {str(name): n for name, n in found.items() if type(n) in (int, float)}
    names = {name: name.lower() for name in numbers}
    step = next((name for name in STEPS if name in names.values()), STEP)
    return {
        STEP if low == step else EPOCH if low == EPOCH else name: value  # type: ignore[misc]
        for (name, low), value in zip(names.items(), numbers.values(), strict=True)
    }


def _read_bar(text: str) -> dict[str, float] | None:
    bar = _BAR.search(text)
    if not bar:
        return None
    found: dict[str, float] = {}
    _take_place(text[: bar.start()], found)
    found[STEP] = int(bar["value"])
    pairs = dict(pair for part in bar["pairs"].split(", ") for pair in _read_pairs(part))
    return {**found, **pairs} if pairs else None


def _read_text(text: str) -> dict[str, float] | None:
    """Results with a place in the training, or lines that are nothing but named results."""
    if _ERROR.search(text):
        return None
    found: dict[str, float] = {}
    summary = _SUMMARY.match(text)
    text = text[summary.end() :] if summary else text
    text = _take_place(_JOINED.sub(r"\1", _GROUP.sub(r"|\1|", text)), found)
    placed = bool(found)
    for part in filter(None, map(str.strip, _FIELDS.split(text))):
        pairs = list(_read_pairs(part, bare=placed or bool(summary)))
        if not (pairs or placed):
            return None
        found |= {name: value for name, value in pairs if name not in (EPOCH, STEP)}
    return found if is_measured(found) else None


def _take_place(text: str, found: dict[str, float]) -> str:
    """Adds epoch and step to `found`; returns the rest of the line."""
    for pattern in _PLACES:
        there = pattern.search(text)
        groups = there.groupdict() if there else {}
        places = {name: groups[name] for name in (EPOCH, STEP) if groups.get(name)}
        if there and not places.keys() & found.keys():
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

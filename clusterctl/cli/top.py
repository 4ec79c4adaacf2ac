"""`top`: ranks and nodes of a job, refreshed in place on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

import typer

from clusterctl import actions
from clusterctl.actions import top as action
from clusterctl.actions.top import GpuLook, NodeLine, RankLine, TopFrame
from clusterctl.cli.console import Console, ago, format_table, make_plain
from clusterctl.cli.job_output import choose_number
from clusterctl.formats import count
from clusterctl.job_model import JobState
from clusterctl.options.jobs import Top

INTERVAL = 2.0
FRAME = 6
"""Lines of a frame around its ranks and nodes: the first, two headers, two empty ones, the
cursor's."""


def top(given: Top, console: Console) -> None:
    store = actions.open_store()
    number = choose_number(given, store, console)
    frames = action.watch(
        *(store, number, given.cluster, console.report),
        interval=given.interval or INTERVAL,
        once=given.once,
    )
    try:
        if console.json:
            for frame in frames:
                print(json.dumps({"schema": 1, **make_plain(frame)}), flush=True)
        elif sys.stdout.isatty() and not given.once:
            _show_live(frames)
        else:
            for frame in frames:
                console.result(render(frame))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _show_live(frames: Iterable[TopFrame]) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(Text("reading the nodes …"), auto_refresh=False) as live:
        for frame in frames:
            text = render(frame, live.console.size.height)
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def render(frame: TopFrame, height: int | None = None) -> str:
    """The frame as text. `height`: lines of the terminal. What does not fit is only counted: ranks
    that have ended or are behind the others, and nodes that do not answer, are shown first."""
    ranks, nodes, notes = _choose(frame, height) if height else (frame.ranks, frame.nodes, ())
    head = [f"job {frame.job}: {frame.state}"]
    if frame.seconds is not None:
        ended = JobState(frame.state).ended
        head[0] += f" {'after' if ended else 'for'} {ago(frame.seconds)}"
    if frame.dollars is not None:
        head.append(f"${frame.dollars:.4f} so far")
    if frame.left:
        head.append(f"about {ago(frame.left)} left")
    rows = [("rank", "node", "step", "s/step", "loss", "cores", "memory")]
    for line in ranks:
        rows.append(
            (
                str(line.rank),
                line.node if line.alive else f"{line.node} (ended)",
                "-" if line.step is None else f"{line.step:g}",
                _format_number(line.step_seconds),
                _format_number(line.loss),
                "-" if line.cpu is None else f"{line.cpu:.2f}",
                _format_size(line.memory),
            )
        )
    gpus = any(node.gpus for node in frame.nodes)
    names = ("node", "CPU", "memory", *("GPUs", "GPU memory") * gpus, "received/s", "sent/s")
    lines: list[tuple[str, ...]] = [names]
    for node in nodes:
        if node.error:
            lines.append((node.node, node.error, *[""] * (len(names) - 2)))
            continue
        cpu = "-" if node.cpu is None else f"{node.cpu:.0%}"
        memory = f"{_format_size(node.memory)} of {_format_size(node.total)}"
        cells = _format_gpus(node.gpus) if gpus else ()
        rates = (_format_share(node.received, node.ceiling), _format_share(node.sent, node.ceiling))
        lines.append((node.node, cpu, memory, *cells, *rates))
    return "\n\n".join(
        (", ".join(head), format_table(rows), "\n".join((format_table(lines), *notes)))
    )


def _choose(
    frame: TopFrame, height: int
) -> tuple[Sequence[RankLine], Sequence[NodeLine], tuple[str, ...]]:
    """What fits into so many lines, and what is said of the rest. Nodes get up to half of them."""
    space = max(2, height - FRAME)
    ranks, nodes = frame.ranks, frame.nodes
    if len(ranks) + len(nodes) <= space:
        return ranks, nodes, ()
    space = max(2, space - 1)
    there = min(len(nodes), max(space // 2, space - len(ranks)))
    here = min(len(ranks), space - there)
    behind = sorted(ranks, key=lambda line: (line.alive, line.step or 0.0, line.rank))[:here]
    silent = sorted(nodes, key=lambda node: not node.error)[:there]
    hidden = (("rank", len(ranks) - here), ("node", len(nodes) - there))
    left_out = [count(number, f"more {what}") for what, number in hidden if number]
    note = f"… {' and '.join(left_out)}: clusterctl top {frame.job} --once shows all"
    return sorted(behind, key=lambda line: line.rank), silent, (note,)


def _format_gpus(gpus: Sequence[GpuLook]) -> tuple[str, str]:
    """Of all GPUs of a node: each one's use, and their memory together."""
    used = " ".join("-" if gpu.used is None else f"{gpu.used:.0%}" for gpu in gpus)
    memory, total = sum(gpu.memory for gpu in gpus), sum(gpu.total for gpu in gpus)
    return used or "-", f"{_format_size(memory)} of {_format_size(total)}" if total else "-"


def _format_share(rate: float | None, ceiling: float | None) -> str:
    """`12 MB (10%)`: with its part of what the network carries."""
    share = f" ({rate / ceiling:.0%})" if rate is not None and ceiling else ""
    return _format_size(rate) + share


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _format_size(value: float | None) -> str:
    """Bytes for people, in decimal units."""
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"

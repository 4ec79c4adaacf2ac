"""When a cluster ends, and the agent on each node that sees to it.

The agent reads a file again every few seconds, so that `extend` only has to replace that file.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence

from clusterctl.core import assets
from clusterctl.core.model import Cluster, ClusterSpec, shorten
from clusterctl.core.text import format_span, format_time

FILE = "/var/lib/clusterctl/deadline"
"""On nodes that end themselves. The first line is the time, in seconds since the epoch."""

AGENT = "deadline.sh"
"""The name of the agent's file on nodes, whose folder is the provider's choice."""

WARNING = 300
"""Seconds before the deadline when ranks get SIGTERM; a tenth of a shorter life."""


def choose_deadline(
    spec: ClusterSpec, current: Cluster | None, clock: Callable[[], float] = time.time
) -> float | None:
    """For nodes that cost nothing: the one that is armed, else from --ttl, else none. In whole
    seconds, as nodes keep it: no node ends before the record's time."""
    now = clock()
    if current and current.deadline and current.deadline > now:
        return current.deadline
    return float(int(now + spec.ttl)) if spec.ttl else None


def describe_deadline(deadline: float | None) -> tuple[str, ...]:
    """The line of a plan that says when the cluster ends; () if it does not."""
    return (f"the cluster shuts down at {format_time(deadline)}",) if deadline else ()


def render_file(
    deadline: float | None, life: float = 0.0, clock: Callable[[], float] = time.time
) -> str:
    """What FILE says, for nodes that are to live `life` seconds. Empty: no deadline."""
    if deadline is None:
        return ""
    seconds = life or deadline - clock()
    return f"{int(deadline)}\n{max(0, min(WARNING, int(seconds / 10)))}\n"


def render_question() -> str:
    """sh that prints FILE, and behind it `dead` where no shell runs an AGENT that would keep it."""
    alive = f"grep -zqsx '/[^ ]*/{AGENT}' /proc/[0-9]*/cmdline"
    return f"cat {FILE} 2>/dev/null && {{ {alive} || echo dead; }}"


def parse_answer(lines: Sequence[str]) -> tuple[float | None, bool]:
    """The time that a node keeps, if there is one, and whether its agent is alive."""
    if not (lines and lines[0].isdecimal()):
        return None, True
    return float(lines[0]), "dead" not in lines


def describe_difference(cluster: Cluster, kept: Mapping[str, float | None]) -> str:
    """What is wrong where nodes keep another deadline than the record has, or none (None); "" where
    no node does. Nodes that were made from an image of a node may have that one's."""
    end = cluster.deadline
    if not end:
        return ""
    others = {name: when for name, when in kept.items() if when is None or abs(when - end) > 1}
    if not others:
        return ""
    ends = {"unknown" if when is None else format_time(when) for when in others.values()}
    return (
        f"the deadline of {shorten(sorted(others))} is {' or '.join(sorted(ends))}, and the record"
        f" says {format_time(end)}: an `extend` was interrupted, or the machine image had an older"
        f" one; `clusterctl extend {cluster.name} --ttl …` sets it everywhere"
    )


CLOCK = 'echo "clock $(date +%s)"'
"""sh that prints what `read_clock` reads."""
NOTICED = 60.0
"""Seconds that a node's clock may differ: less is the time that its answer takes."""


def read_clock(text: str) -> float | None:
    """What a node's clock shows, if it says so."""
    found = re.search(r"^clock (\d+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def describe_clocks(shown: Mapping[str, float | None], now: float) -> tuple[str, ...]:
    """A line for each node whose clock (`shown`) differs from ours (`now`)."""
    return tuple(
        f"the clock of {name} is {format_span(round(abs(when - now) / 60) * 60)}"
        f" {'ahead of' if when > now else 'behind'} this machine's: the times of its jobs are wrong"
        for name, when in shown.items()
        if when is not None and abs(when - now) > NOTICED
    )


def render_agent(
    *,
    root: str,
    end: str,
    metadata: bool = False,
    spot: bool = False,
    below: str = "",
    file: str = FILE,
) -> str:
    """A script that stays, warns the jobs below the node root `root`, and then does `end` (sh).
    `below`: a pattern of several roots that follows it. `file`: where the deadline is.

    `metadata`: the node has EC2's metadata service, whose clock counts instead of its own. `spot`:
    there, it also looks for the notice that a spot instance is taken back.
    """
    return assets.render(
        "node/deadline-and-spot.sh.j2",
        root=root,
        below=below,
        end=end,
        metadata=metadata or spot,
        spot=spot,
        deadline=file,
    )

"""For how long a node has been up. A container has its host's uptime, and a first process of its
own, which began when the container did."""

from __future__ import annotations

import math
import re

COMMAND = "cat /proc/uptime /proc/1/stat"
TICKS = 100
"""Of the clock by which /proc counts, per second: Linux shows programs no other one."""


def read(text: str) -> float:
    """Seconds, from what COMMAND printed; infinity where that does not say. A login shell may have
    printed something first, and /proc/1 may be hidden from users."""
    ups = re.findall(r"^(\d{1,15}\.\d{1,9}) \d", text, re.MULTILINE)
    if not ups:
        return math.inf
    up = float(ups[-1])
    first = re.findall(r"^1 \(.*\) (.*)$", text, re.MULTILINE)
    words = first[-1].split() if first else []
    if len(words) < 20 or not re.fullmatch(r"[0-9]{1,19}", words[19]):
        return up
    since = up - int(words[19]) / TICKS
    return since if since >= 0 else up  # where a container is shown its own uptime (LXCFS)

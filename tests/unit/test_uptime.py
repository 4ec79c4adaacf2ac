"""For how long a node has been up, as it says itself."""

from __future__ import annotations

import math
import subprocess

import pytest

from clusterctl.transport import pool

TAIL = "0 0 0 0"


def stat(start: str, name: str = "systemd") -> str:
    return f"1 ({name}) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start} {TAIL}\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5000.25 100.00\n" + stat("25"), 5000.0),  # a machine
        ("5000.25 100.00\n" + stat("499025"), 10.0),  # a container of it
        ("5000.25 100.00\n" + stat("499025", "a) S (b c"), 10.0),
        ("5000.25 100.00\n", 5000.25),  # /proc/1 is hidden
        ("12.25 1.00\n" + stat("499025"), 12.25),  # a container with an uptime of its own
        ("Welcome!\n7 lines\n5000.25 100.00\n" + stat("25"), 5000.0),
        ("5000.25 100.00\n" + stat("²"), 5000.25),
        ("5000.25 100.00\n1 (x) S\n", 5000.25),
        ("no such file\n", math.inf),
    ],
)
def test_a_node_is_up_since_its_first_process_began(text: str, seconds: float) -> None:
    assert pool.read_uptime(text) == pytest.approx(seconds)


def test_this_machine_says_it() -> None:
    said = subprocess.run(pool.COMMAND, shell=True, capture_output=True, text=True, timeout=20)
    assert 0 <= pool.read_uptime(said.stdout) < math.inf

"""`kill -9` of clusterctl at any moment: the next `up` works, and `down` leaves nothing.

drive.py makes any statement of the provider the last one. Those tried here are spread over the
whole run; others come in between at random, so that what we started is hit half-way, too.
"""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tests.local.conftest import MakeLab
from tests.local.lab import Lab, drive

UP = (120, 190, 220, 235, 250, 265, 280, 320)
"""Of some 270 statements in loopback mode, 350 in namespaces; more would only end normally."""
DOWN = (50, 65, 75)


def interrupted(lab: Lab, verb: str, at: int | str) -> None:
    done = subprocess.run(drive(lab, verb, 2, str(at)), capture_output=True, timeout=30)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr


def works(lab: Lab) -> None:
    lab.up(2)
    assert lab.describe() == dict.fromkeys(lab.nodes, "running")
    assert lab.ssh("worker-2", "echo alive") == "alive"


def test_the_first_statement_kills(lab: Lab) -> None:
    """What the rest of this file rests on."""
    done = subprocess.run(drive(lab, "up", 2, "1"), timeout=30)
    assert done.returncode == -signal.SIGKILL


def test_up_after_a_killed_up(lab: Lab) -> None:
    for at in UP[::2]:
        interrupted(lab, "up", at)
        works(lab)
        lab.down()
        assert lab.leftovers() == []


def test_down_after_a_killed_up(lab: Lab) -> None:
    for at in UP[1::2]:
        interrupted(lab, "up", at)
        lab.down()
        assert lab.leftovers() == []


def test_growing_after_a_killed_change(lab: Lab) -> None:
    """What was healthy before stays; what was being added or removed is put right."""
    lab.up(1)
    for at in UP[2::3]:
        interrupted(lab, "up", at)
        works(lab)
        lab.up(1)
        assert lab.describe() == dict.fromkeys(lab.nodes, "running")


def test_up_and_down_after_a_killed_down(lab: Lab) -> None:
    for at in DOWN:
        lab.up(2)
        interrupted(lab, "down", at)
        if at % 2:
            works(lab)
        lab.down()
        assert lab.leftovers() == []


@pytest.mark.parametrize("at", ["network.write_files(everyone)", "os.write(word"])
@pytest.mark.netns
def test_nothing_waits_for_a_dead_starter(make_lab: MakeLab, at: str) -> None:
    """Without any later verb, what was started and never got the word leaves by itself, before it
    has a cable and after.
    """
    lab = make_lab(mode="namespaces")
    interrupted(lab, "up", at)
    deadline = time.monotonic() + 30
    folder = str(lab.folder)
    while time.monotonic() < deadline:
        left = [line for line in lab.leftovers() if not line.startswith((folder, "/tmp"))]
        if not left:
            break
        time.sleep(0.02)
    assert left == []

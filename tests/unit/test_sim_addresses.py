"""Simulators of one machine do not get in each other's way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TAKES = """
from tests.sim.ec2.addresses import Addresses
addresses = Addresses(set)
print(*(addresses.take() for _ in range(40)), flush=True)
input()
"""

USES = """
from tests.sim.ec2.addresses import Addresses
used = []
addresses = Addresses(lambda: set(used[-5:]))
for _ in range(300):  # more than there are
    address = addresses.take()
    assert address not in used[-20:]
    used.append(address)
"""


def test_no_two_simulators_have_an_address() -> None:
    """Also before it is routed: a machine that shares its address is reached by nobody."""
    argv = [sys.executable, "-c", TAKES]
    with (
        subprocess.Popen(argv, cwd=ROOT, stdin=-1, stdout=-1, text=True) as one,
        subprocess.Popen(argv, cwd=ROOT, stdin=-1, stdout=-1, text=True) as other,
    ):
        assert one.stdout
        assert other.stdout
        taken = [*one.stdout.readline().split(), *other.stdout.readline().split()]
        one.communicate("\n")
        other.communicate("\n")
    assert len(taken) == len(set(taken)) == 80


def test_an_address_that_was_in_use_is_free_again_but_not_at_once() -> None:
    subprocess.run([sys.executable, "-c", USES], cwd=ROOT, check=True, timeout=60)

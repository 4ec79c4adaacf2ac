"""Seeded kills as CI runs them: one cluster. `bench/kills.py` does many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ec2.kills import Kills
from tests.sim.ec2.client import Ec2
from tests.sim.hub import Hub

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(600),
]


@pytest.mark.all
def test_whatever_is_killed_nothing_is_left_and_the_receipt_is_right(
    ec2: Ec2, hub: Hub, tmp_path: Path, initialised: Path
) -> None:
    kills = Kills(ec2, hub, tmp_path, initialised).round(4)
    assert [(kill.verb, kill.wrong) for kill in kills if kill.wrong] == []
    assert sum(kill.killed for kill in kills) > 3
    ec2.reset()

"""A clock of this machine that AWS does not accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.lab import Lab
from tests.unit.calling import clusterctl

pytestmark = [pytest.mark.netns, pytest.mark.sshd]


def test_one_line_says_that_the_clock_is_wrong(lab: Lab, tmp_path: Path) -> None:
    lab.ec2.fault("clock", seconds=600)
    env = {**lab.ec2.env, "CLUSTERCTL_HOME": str(tmp_path / "home")}
    for line in (("up", "--cpu", "t3.xlarge", "--dry-run"), ("gc", "--yes")):
        done = clusterctl(*line, **env)
        assert done.returncode == 3, done.stderr
        [told] = [text for text in done.stderr.splitlines() if "clock" in text and "→" not in text]
        assert "this machine's clock is 10 min behind AWS's" in told

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.ec2.client import Ec2
from tests.sim.lab import Lab


@pytest.fixture
def lab(ec2: Ec2, tmp_path: Path) -> Iterator[Lab]:
    """A network in the simulated EC2; nothing may be left when the test's own things are gone."""
    lab = Lab(ec2, tmp_path)
    try:
        yield lab
        ec2.clear()
        lab.remove()
        assert ec2.left() == []
    finally:
        ec2.reset()

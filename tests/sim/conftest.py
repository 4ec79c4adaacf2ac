"""What tests of clusterctl's code against the simulated API share."""

from __future__ import annotations

import pytest

from clusterctl.machines.ec2.api import Api
from tests.sim.lab import Lab


@pytest.fixture
def api(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Api:
    """As clusterctl asks AWS."""
    return lab.connect(monkeypatch)

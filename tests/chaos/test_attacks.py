"""Attacks of `attacks.py` that nothing else tries, each with one seed. More are tried by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.attacks import attack

pytestmark = [pytest.mark.all, pytest.mark.netns, pytest.mark.mpi]


@pytest.mark.parametrize("name", ["read-only", "disk-here", "clock", "sshd", "restart", "silence"])
def test_an_attack_is_told_and_loses_nothing(name: str, tmp_path: Path) -> None:
    assert attack(tmp_path, name, seed=0) == []

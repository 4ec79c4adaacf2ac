"""`kill -9` of clusterctl as CI tries it: a moment for some verbs. Many are tried by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import kills

pytestmark = [pytest.mark.all, pytest.mark.netns, pytest.mark.mpi]


def test_a_killed_command_loses_nothing(tmp_path: Path) -> None:
    with kills.site_in(tmp_path) as site:
        rows = [kills.attack(site, verb, 1, seed=0) for verb in ("run", "fetch", "push")]
    assert [moment.misses for row in rows for moment in row.moments] == [()] * 6

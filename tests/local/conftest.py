"""Clusters that are gone when the test ends, and a look at what they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.local.lab import Lab

MakeLab = Callable[..., Lab]


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[MakeLab]:
    """Makes labs; takes them down in the end, and fails where something of them stays."""
    labs: list[Lab] = []

    def make(home: str = "state", mode: str = "") -> Lab:
        outside = tmp_path / f"outside-{len(labs)}"
        outside.mkdir()
        labs.append(Lab(tmp_path / f"{len(labs)}" / home, outside, mode))
        return labs[-1]

    yield make
    for lab in labs:
        lab.down()
    assert [lab.leftovers() for lab in labs] == [[] for _ in labs]


@pytest.fixture(
    params=[
        pytest.param("namespaces", marks=pytest.mark.netns),
        pytest.param("loopback", marks=pytest.mark.sshd),
    ]
)
def lab(request: pytest.FixtureRequest, make_lab: MakeLab) -> Lab:
    """The same test in both modes."""
    return make_lab(mode=request.param)

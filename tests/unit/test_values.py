"""The decorator of frozen classes does what `dataclasses.dataclass` does."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import field, replace
from typing import Any

import pytest

from clusterctl.core import values


def make(dataclass: Any) -> list[Any]:
    """A class of each kind."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Point:
        x: int
        seen: float = field(default=0.0, compare=False)
        secret: str = field(default="", repr=False)

    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    @dataclass(frozen=True)
    class Own:
        x: int = 1

        def __repr__(self) -> str:
            return "its own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    @dataclass(slots=True)
    class Mutable:
        x: int = 1

    return [Point, Empty, Own, Mutable]


OURS, THEIRS = make(values.dataclass), make(dataclasses.dataclass)
GIVEN: list[dict[str, Any]] = [
    *({"x": x, "seen": seen, "secret": "a"} for x in (1, 2) for seen in (0.0, 1.0)),
    {"x": 1, "secret": "b"},
]


@pytest.mark.parametrize("number", range(len(OURS)), ids=[one.__name__ for one in OURS])
def test_values_are_those_of_dataclasses(number: int) -> None:
    ours, theirs = OURS[number], THEIRS[number]
    given = GIVEN if number == 0 else [{}]
    pairs = [(ours(**one), theirs(**one)) for one in given]
    for value, other in pairs:
        assert repr(value) == repr(other)
        assert [value == one for one, _ in pairs] == [other == one for _, one in pairs]
        assert (value == other) == (other == value) == (number == 2)
        assert replace(value) == value
        if number == 3:
            assert value.__hash__ is other.__hash__ is None
        else:
            assert all(hash(value) == hash(one) for one, _ in pairs if value == one)


def test_records_are_pickled() -> None:
    from tests.unit.making import cluster

    assert pickle.loads(pickle.dumps(cluster())) == cluster()

"""The decorator of frozen classes does what `dataclasses.dataclass` does."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, field, replace
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


def define(dataclass: Any) -> tuple[Any, Any, Any]:
    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2
        secret: str = field(default="s", repr=False)
        note: str = field(default="n", compare=False)
        tags: list[str] = field(default_factory=list, compare=False)

    @dataclass(slots=True, kw_only=True)
    class Open:
        name: str
        size: int = 0

    @dataclass(frozen=True)
    class Base:
        x: int

        def __repr__(self) -> str:
            return "own"

    class Heir(Base):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__(7)

    return Point, Open, Heir


def try_all(dataclass: Any) -> list[Any]:
    point, opened, heir = define(dataclass)
    one, same = point(1, tags=["t"]), replace(point(1, note="other"), x=1)
    found: list[Any] = [repr(one), one == same, hash(one) == hash(same), one == (1, 2), asdict(one)]
    found += [point(1).tags is point(1).tags, {one: 1}[same], replace(one, y=3).y, heir().x]
    found += [repr(heir()), heir() == heir(), opened(name="n") == opened(name="n", size=0)]
    found += [opened.__hash__, copy.deepcopy(one) == one, point.__match_args__]
    changed = opened(name="n")
    changed.size = 9
    found.append(repr(changed))
    for wrong in (
        lambda: type(one).__setattr__(one, "x", 2),
        lambda: type(one).__delattr__(one, "x"),
        lambda: type(changed).__setattr__(changed, "unknown", 1),
        lambda: point(),
        lambda: point(1, 2, "", "", [], 6),
        lambda: point(1, z=2),
        lambda: opened("n"),
        lambda: point(1) < point(2),
    ):
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)) as failed:
            wrong()
        found.append(failed.type)
    return found


def test_our_dataclass_does_the_same() -> None:
    assert try_all(values.dataclass) == try_all(dataclasses.dataclass)


def test_a_signature_is_that_of_dataclasses() -> None:
    """As `help()` and notebooks show it, once there is an object."""
    shown = []
    for dataclass in (values.dataclass, dataclasses.dataclass):
        point, *_ = define(dataclass)
        point(1)
        shown.append(str(inspect.signature(point)))
    assert shown[0] == shown[1]

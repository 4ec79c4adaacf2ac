"""Dataclasses that are defined in a fifth of the time.

The standard library compiles six methods of each frozen class when it is defined, which was a
quarter of what a command takes to load. Here they are closures, and `__init__` alone is compiled,
when the first instance is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None, *, frozen: bool = False, eq: bool = True, **how: bool
    ) -> Any:
        """As that of the standard library, for classes without __post_init__ and InitVar."""
        if cls is None:
            return partial(dataclass, frozen=frozen, eq=eq, **how)
        own = set(vars(cls))
        made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **how)
        for name, method in _make_methods(made, frozen, eq).items():
            if name not in own:
                setattr(made, name, method)
        return made


class _Default:
    """Stands for what a factory makes, where a signature is shown."""

    def __repr__(self) -> str:
        return "<factory>"


def _make_methods(cls: Any, frozen: bool, eq: bool) -> dict[str, Any]:
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields]
    shown = [field.name for field in fields if field.repr]
    compared = [field.name for field in fields if field.compare]

    def begin(self: Any, *args: Any, **named: Any) -> None:
        cls.__init__ = init = _compile_init(cls)
        init(self, *args, **named)

    def show(self: Any) -> str:
        words = (f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({', '.join(words)})"

    def take(self: Any, wanted: Sequence[str] = compared) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in wanted])

    def equal(self: Any, other: Any) -> Any:
        return take(self) == take(other) if type(other) is type(self) else NotImplemented

    def set_all(self: Any, values: tuple[Any, ...]) -> None:
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    methods: dict[str, Any] = {"__init__": begin, "__repr__": show}
    if eq:
        hashed = (lambda self: hash(take(self))) if frozen else None
        methods |= {"__eq__": equal, "__hash__": hashed}
    if frozen:
        methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        methods |= {"__getstate__": partialmethod(take, names), "__setstate__": set_all}
    return methods


def _compile_init(cls: type) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": object.__setattr__, "_none": _Default()}
    plain: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for field in dataclasses.fields(cls):
        name = value = word = field.name
        if field.default is not dataclasses.MISSING:
            known[f"_of_{name}"], word = field.default, f"{name}=_of_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_of_{name}"], word = field.default_factory, f"{name}=_none"
            value = f"_of_{name}() if {name} is _none else {name}"
        (named if field.kw_only else plain).append(word)
        lines.append(f" _set(self, {name!r}, {value})")
    words = ", ".join(["self", *plain, *(["*", *named] if named else [])])
    exec("\n".join([f"def __init__({words}):", *lines, " pass"]), known)
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls)}
    made.__annotations__["return"] = None
    return made


def _refuse(self: Any, name: str, *value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"field {name!r} cannot be changed")

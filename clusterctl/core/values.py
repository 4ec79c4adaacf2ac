"""The decorator of classes that each start of clusterctl makes."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(**settings: Any) -> Any:
        """As `dataclasses.dataclass`, which compiles __repr__, __eq__ and __hash__ of each class
        anew: a tenth of what `status` takes."""
        make = dataclasses.dataclass(repr=False, eq=False, **settings)

        def decorate(cls: type) -> type:
            own = vars(cls)
            made = make(cls)
            methods = _make_methods(dataclasses.fields(made))
            if not settings.get("frozen"):
                methods["__hash__"] = None
            for name, method in methods.items():
                if name not in own:
                    setattr(made, name, method)
            return made

        return decorate


def _make_methods(fields: tuple[dataclasses.Field[Any], ...]) -> dict[str, Any]:
    """As dataclasses would compile them."""
    shown = [field.name for field in fields if field.repr]
    # With one more name than is needed, it returns a tuple, also of one field.
    read = attrgetter("__class__", *(field.name for field in fields if field.compare), "__class__")

    def __repr__(self: Any) -> str:
        parts = (f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({', '.join(parts)})"

    def __eq__(self: Any, other: Any) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(read(self) == read(other))

    def __hash__(self: Any) -> int:
        return hash(read(self))

    return {"__repr__": __repr__, "__eq__": __eq__, "__hash__": __hash__}

"""What tests leave alone: private names, and functions of ours that they would replace.

A test that replaces a function of ours goes on passing when the real one is called otherwise. So a
test hands in a fake that behaves like the real thing, where the code takes one: a provider in the
table, an API of EC2, a folder of devices, a clock. Limits and places in capital letters may be set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
OURS = ("clusterctl", "trainlib")
GUARDED = (*OURS, "time", "datetime")
IMPORT_OURS = r"\b(clusterctl|trainlib)[.\w]* import "
REPLACING = ("setattr", "delattr")
NAMING = ("getattr", "hasattr", *REPLACING)

PUBLIC = {"os._exit": "how a child that was forked ends, as Python's documentation says"}
"""Names that only look private."""

REPLACE = {
    "unit/test_every_option.py": "notes what each verb hands to the action, for hundreds of lines:"
    " what the actions then do needs clusters, engines and batch systems, and has its own tests",
    "unit/test_stopping.py": "a job that its nodes no longer know ends in one of several ways: real"
    " launchers that are lost or replaced, at half a minute each, are in tests/local",
}
"""Files that replace functions of ours, and why nothing else would do."""


class Source:
    """A file of tests: what it imports, by the name that it has there, the functions and classes
    that it defines, and the attributes of these."""

    def __init__(self, text: str) -> None:
        self.nodes = list(ast.walk(ast.parse(text)))
        # Programs that a test starts with `python -c` are part of it.
        for node in list(self.nodes):
            if " import " in (inner := _text(node)) and re.search(IMPORT_OURS, inner):
                with suppress(SyntaxError):
                    program = ast.parse(inner)
                    self.nodes += ast.walk(ast.increment_lineno(program, node.lineno - 1))
        self.imported: dict[str, str] = {}
        self.defined: set[str] = set()
        self.attributes: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imported[alias.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.defined.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.attributes.add(node.target.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                self.attributes |= {node.attr} if self.whole(node.value) == "self" else set()

    def whole(self, node: ast.expr) -> str:
        """`images.assets.find_folder` as `clusterctl.actions.images.assets.find_folder`; "" for
        what is no name with dots."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (before := self.whole(node.value)):
            return f"{before}.{node.attr}"
        return ""

    def private(self) -> Iterator[tuple[int, str]]:
        """Names with an underscore that this file does not define."""
        for node in self.nodes:
            names: list[str] = []
            if isinstance(node, ast.Attribute) and self.whole(node) not in PUBLIC:
                names = [node.attr]
            elif isinstance(node, ast.ImportFrom):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Call) and _last(node.func) in NAMING:
                names = [_text(word) for word in node.args[1:2]]
            for name in names:
                own = name in self.defined | self.attributes
                if name.startswith("_") and not name.startswith("__") and not own:
                    yield node.lineno, name

    def replacements(self) -> Iterator[tuple[int, str]]:
        """What is put in the place of something of ours, or of the clock."""
        for node in self.nodes:
            found: list[str] = []
            if isinstance(node, ast.Import | ast.ImportFrom):
                found = [name for name in self._modules(node) if name.startswith("unittest.mock")]
            elif isinstance(node, ast.Call) and _last(node.func) in REPLACING and node.args:
                found = [self._replaced(*node.args)]
            elif isinstance(node, ast.Assign | ast.AugAssign):
                places = node.targets if isinstance(node, ast.Assign) else [node.target]
                found = [
                    self.whole(place)
                    for place in places
                    if isinstance(place, ast.Attribute) and _top(self.whole(place)) in OURS
                ]
            for name in found:
                if name and not name.rpartition(".")[2].isupper():
                    yield node.lineno, name

    def _replaced(self, target: ast.expr, name: ast.expr, *value: ast.expr) -> str:
        """What a `setattr` replaces; "" for what this file has made itself, and for what other
        people's modules do but tell the time."""
        if whole := _text(target):
            return whole if _top(whole) in GUARDED else ""
        whole = self.whole(target)
        others = {_top(module) for module in self.imported.values()}.difference(GUARDED)
        return "" if _top(whole) in self.defined | others else f"{whole}.{_text(name) or '?'}"

    def _modules(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        return [f"{base}{alias.name}" for alias in node.names]


def _top(name: str) -> str:
    return name.partition(".")[0]


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _text(node: ast.AST) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


@pytest.fixture(scope="module")
def sources() -> dict[str, Source]:
    paths = sorted({*TESTS.rglob("*.py")} - {Path(__file__)})
    return {str(path.relative_to(TESTS)): Source(path.read_text()) for path in paths}


def test_no_private_name_is_used(sources: dict[str, Source]) -> None:
    used = [
        f"{path}:{line}: {name}"
        for path, source in sources.items()
        for line, name in source.private()
    ]
    assert used == []


def test_nothing_of_ours_is_replaced(sources: dict[str, Source]) -> None:
    """Each exception is still one, too."""
    replaced = {
        path: where
        for path, source in sources.items()
        if (where := [f"{path}:{line}: {name}" for line, name in source.replacements()])
    }
    assert {path: where for path, where in replaced.items() if path not in REPLACE} == {}
    assert replaced.keys() == REPLACE.keys()

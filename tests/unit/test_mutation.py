"""The lists of scripts/mutation.py: each entry has its reason, and names code that is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts import mutation
from tests.unit.tables import rows


def lines_of(module: str, function: str) -> set[str]:
    """The lines of a function or `Class.method`, without their indentation."""
    text = (mutation.ROOT / module).read_text()
    body: list[ast.stmt] = ast.parse(text).body
    for name in function.split("."):
        found = next(node for node in body if getattr(node, "name", None) == name)
        body = found.body
    return {line.strip() for line in (ast.get_source_segment(text, found) or "").splitlines()}


@pytest.mark.parametrize("survivor", mutation.listed(), ids=lambda one: f"{one.function}:{one.new}")
def test_listed_survivors_exist_and_have_a_reason(survivor: mutation.Survivor) -> None:
    assert mutation.listed()[survivor].strip()
    assert survivor.module in mutation.modules()
    assert survivor.old != survivor.new
    assert set(survivor.old) <= lines_of(survivor.module, survivor.function)


def test_modules_and_tests_exist() -> None:
    for name in (*mutation.modules(), *mutation.tests()):
        assert (mutation.ROOT / name.partition("::")[0]).is_file(), name


@pytest.mark.parametrize("row", mutation.template_mutations(), ids=lambda row: row["what"])
def test_template_mutations_change_something_and_name_a_test(row: dict[str, str]) -> None:
    assert row["old"] in (mutation.ROOT / row["template"]).read_text()
    assert row["old"] != row["new"]
    path, _, name = row["test"].partition("::")
    assert f"def {name}" in (mutation.ROOT / path).read_text()


@rows("old, new, counted", "mutation.only_words_for_people_are_left_out")
def test_only_words_for_people_are_left_out(old: str, new: str, counted: bool) -> None:
    assert mutation.words((old,), (new,)) is not counted


def test_a_survivor_is_printed_as_the_list_has_it(tmp_path: Path) -> None:
    changed = mutation.Survivor("a.py", "f", ("x = 'it\\'s'",), ('x = "\\n"', "y = 'z'"))
    path = tmp_path / "survivors.toml"
    path.write_text(changed.toml())
    assert mutation.listed(path) == {changed: ""}

"""Every measured figure of README and docs is that of a result file in bench/results, and every
verb is in the README's table."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from clusterctl.options.verbs import VERBS
from scripts import readme

RESULTS = readme.ROOT / "bench" / "results"


@pytest.mark.parametrize(("document", "name", "file", "make"), readme.TABLES)
def test_tables_are_those_of_the_result_files(
    document: str, name: str, file: str, make: Any
) -> None:
    shown = readme.between((readme.ROOT / document).read_text(), name)
    assert shown == readme.table(file, make), "python scripts/readme.py writes it"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_result_files_are_reached_from_the_documents(path: Any) -> None:
    texts = [each.read_text() for each in (readme.ROOT / "docs").glob("*.md")]
    texts.append((readme.ROOT / "README.md").read_text())
    assert any(f"bench/results/{path.name}" in text for text in texts)


def test_a_figure_over_its_limit_is_marked() -> None:
    row = {"what": "w", "unit": "s", "limit": 1, "against": "a"}
    rows = [{**row, "value": 0.5, "ok": True}, {**row, "value": 2.0, "ok": False}]
    table = readme.figures({"machine": "m", "date": "d", "rows": rows})
    assert "| w | 0.5 s | 1 s | a |" in table
    assert "| w | 2 s (over) | 1 s | a |" in table


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_table_of_the_readme(verb: str) -> None:
    text = (readme.ROOT / "README.md").read_text()
    table = text.partition("## Everything else")[2].partition("| exit code")[0]
    commands = re.findall(r"`(?:clusterctl )?([^`]+)`", table)
    assert any(re.match(rf"{verb}(?![\w-])", command) for command in commands)


def test_writing_twice_changes_nothing() -> None:
    text = (readme.ROOT / "README.md").read_text()
    new = readme.replace(text, "figures", readme.between(text, "figures"))
    assert new == text
    assert json.loads((RESULTS / "local.json").read_text())["rows"]


def test_the_drawing_is_that_of_the_demo() -> None:
    text = readme.between((readme.ROOT / "README.md").read_text(), "demo")
    drawn = (readme.ROOT / "docs" / "demo.svg").read_text()
    assert drawn == readme.drawing(text), "python scripts/readme.py draws it"
    assert "url(" not in re.sub(r"url\(#", "", drawn), "it loads something"


def test_the_table_of_messages_is_that_of_the_code() -> None:
    text = (readme.ROOT / "docs" / "troubleshooting.md").read_text()
    assert readme.between(text, "messages") == readme.messages(), "python scripts/readme.py"


def test_what_people_look_up_is_what_clusterctl_prints() -> None:
    """The first column of the symptoms: quoted text is printed, options and commands exist."""
    text = (readme.ROOT / "docs" / "troubleshooting.md").read_text()
    symptoms = text.partition("\n## Questions")[0]
    rows = [line.split(" | ")[0] for line in symptoms.splitlines() if line.startswith("| ")]
    quoted = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    code = "".join(path.read_text() for path in sorted((readme.ROOT / "clusterctl").rglob("*.py")))
    others = {"clusterctl: command not found", "down", "run", "clusterctl"}
    missing = [word for word in quoted if word not in others and word not in code]
    assert len(quoted) > 20
    assert not missing

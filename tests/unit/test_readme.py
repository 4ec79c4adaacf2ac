"""README and docs: what scripts/readme.py writes is up to date, links lead somewhere, and commands
can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterctl.errors
from clusterctl.cli.main import make_command
from scripts import readme

ROOT = readme.ROOT
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def test_tables_and_drawing_are_those_of_the_result_files_and_the_code() -> None:
    for document, made in readme.write_documents().items():
        assert (ROOT / document).read_text() == made, "run: python scripts/readme.py"


def test_every_exit_code_is_in_the_reference() -> None:
    table = (ROOT / "docs" / "reference.md").read_text()
    errors = [found for found in vars(clusterctl.errors).values() if isinstance(found, type)]
    for code in {error.exit_code for error in errors if hasattr(error, "exit_code")}:
        assert f"\n| {code} | " in table


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 6000


def list_anchors(page: Path) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"(?m)^#+ +(.+?) *$", page.read_text())
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", page.read_text())):
        if re.match("[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in list_anchors(target), link


def test_every_page_is_in_the_index() -> None:
    """One click from docs/README.md, or from the page of its folder."""
    index = (ROOT / "docs" / "README.md").read_text()
    for page in ROOT.glob("docs/**/*.md"):
        link = str(page.relative_to(ROOT / "docs"))
        assert link == "README.md" or link.startswith("adr/") or f"({link})" in index, link


def test_every_page_opens_with_what_one_can_do_after_it() -> None:
    for page in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/internals/*.md")]:
        if page.name != "README.md":
            assert page.read_text().split("\n\n")[1].startswith("After this page, you "), page


PRINTED = ("starts", "0.1.0")
"""Words after the program's name in what it prints."""


def list_commands(text: str) -> Iterator[list[str]]:
    """The words of each call of a verb, in blocks of code and within lines."""
    blocks = re.findall(r"(?m)^    (?:\$ )?(clusterctl .+|.*&& clusterctl .+)$", text)
    inline = re.findall(r"`(clusterctl [^`…]+)`", re.sub(r"(?m)^    .*$|```.*?```", "", text))
    for line in [*blocks, *inline]:
        part: list[str] = []
        lexer = shlex.shlex(line.partition("…")[0], posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        for word in [*lexer, ";"]:
            if not set(word) <= set("&|;<>"):
                part.append(word)
                continue
            if part[0] == "clusterctl" and part[1] not in PRINTED and part[1][0] != "-":
                yield part[1:]
            part = []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "CHANGELOG.md"])
def test_commands_can_be_typed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser knows their verbs and options."""
    monkeypatch.setenv("COLUMNS", "80")
    for words in list_commands((ROOT / name).read_text()):
        command, rest = make_command(), words
        context = command.make_context("clusterctl", [], resilient_parsing=True)
        while hasattr(command, "resolve_command") and rest:
            _, command, rest = command.resolve_command(context, rest)
        if hasattr(command, "resolve_command"):
            continue  # a family of verbs is named, such as `clusterctl data`
        command.make_context(shlex.join(words), list(rest), parent=context)


def test_pages_name_tests_that_there_are() -> None:
    missing = []
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = {*re.findall(r"def (test_\w+)\(", tests), "test_loss"}  # a metric's name
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for file, name in re.findall(r"`(\w+/test_\w+\.py)(?:::(\w+))?`", text):
            path = ROOT / "tests" / file
            if not path.is_file() or (name and f"def {name}(" not in path.read_text()):
                missing.append(f"{page.name}: {file}::{name}")
        missing += {*re.findall(r"`(test_\w+)`", text)} - known
    assert missing == []

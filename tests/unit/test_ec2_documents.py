"""docs/ec2.md, docs/ec2-strictness.md and docs/money.md name nothing that is not there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from clusterctl import catalog
from clusterctl.actions import gc, real_check, salvage, up_plan
from clusterctl.bootstrap import steps
from clusterctl.cli import console
from clusterctl.model import CloudSpec
from clusterctl.options import checks
from clusterctl.options.clusters import Up
from clusterctl.options.verbs import VERBS
from clusterctl.providers.ec2 import (
    cleanup,
    eventbridge,
    failures,
    host_key_rotation,
    launches,
    preflight,
    spec,
)
from clusterctl.providers.ec2.instances import SETTLE
from clusterctl.providers.shared import charges, deadlines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MINUTE, HOUR = 60, 3600
ROOT = Path(__file__).parents[2]
GUIDE, STRICTNESS, MONEY = (
    ROOT / "docs" / name for name in ("ec2.md", "ec2-strictness.md", "money.md")
)
TEST = re.compile(r"`(?:([\w/]+\.py)(?:::)?)?(test_\w+)?`")
STRICT = ROOT / "tests" / "sim" / "test_ec2_strict.py"


def find_file(name: str) -> Path:
    """As the page names it: without a folder in tests/sim, else in tests."""
    path = ROOT / "tests" / name if "/" in name else STRICT.with_name(name)
    return path if path.is_file() else ROOT / name


ROWS = [line for line in STRICTNESS.read_text().splitlines() if "test_" in line]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_each_test_that_the_page_names_is_there(row: str) -> None:
    """A name without a file is in one that its row names, or in test_ec2_strict.py."""
    files = [find_file(name) for name, _ in TEST.findall(row) if name.startswith(("test", "unit"))]
    files += [find_file(name) for name, _ in TEST.findall(row) if "/test_" in name]
    assert all(path.is_file() for path in files), row
    for name, test in TEST.findall(row):
        if test:
            places = [find_file(name)] if name else [*files, STRICT]
            assert any(f"def {test}(" in path.read_text() for path in places), test


PROMISES = [
    line.split(" | ") for line in MONEY.read_text().splitlines() if re.match(r"\| .*\.py`", line)
]


@pytest.mark.parametrize("promise", PROMISES, ids=range(len(PROMISES)))
def test_each_promise_about_money_has_a_test_that_is_there(promise: list[str]) -> None:
    assert len(promise) == 3, "a promise, how it is kept, and where that is tested"
    named = [(name, test) for name, test in TEST.findall(promise[-1]) if name]
    assert named
    for name, test in named:
        path = find_file(name)
        assert path.is_file(), name
        assert not test or f"def {test}(" in path.read_text()


def test_no_promise_about_money_is_without_a_row() -> None:
    table = MONEY.read_text().partition("|---|---|---|\n")[2].partition("\n\n")[0]
    silent = [row for row in table.splitlines() if ".py`" not in row and "tests/ec2" not in row]
    assert silent == []


def test_the_texts_of_aws_are_counted() -> None:
    cases = tomllib.loads((ROOT / "tests" / "unit" / "aws_errors.toml").read_text())
    assert f"| {sum(map(len, cases.values()))} texts of AWS" in STRICTNESS.read_text()


def spellings() -> set[str]:
    return {flag for verb in VERBS.values() for flag in verb.spellings()}


def commands(text: str) -> list[str]:
    """Whatever is set as code, without the commands of others."""
    code = re.findall(r"`([^`\n]+)`", text)
    code += [line for line in text.splitlines() if line.startswith("    clusterctl ")]
    return [one for one in code if not re.match(r"(aws|terraform|cloud-init|dpkg|pip) ", one)]


@pytest.mark.parametrize("page", [GUIDE, STRICTNESS], ids=lambda page: page.name)
def test_each_option_that_is_named_exists(page: Path) -> None:
    named = {flag for one in commands(page.read_text()) for flag in re.findall(r"--[a-z-]+", one)}
    assert named
    assert named <= spellings()


def test_each_option_for_ec2_is_explained() -> None:
    mine = {option.flag for option in Up.options().values() if option.group is Up.EC2}
    assert len(mine) > 15
    missing = {flag for flag in mine if not re.search(rf"{flag}\b", GUIDE.read_text())}
    assert missing == set()


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [GUIDE, STRICTNESS, MONEY], ids=lambda page: page.name)
def test_each_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            path = page.parent / name if name else page
            assert path.exists(), target
            assert not anchor or anchor in anchors(path), target


SAID = [
    (catalog.DEFAULT_TTL, 8 * HOUR, GUIDE, "shut themselves down after eight hours"),
    (catalog.DEFAULT_IDLE, HOUR, GUIDE, "unused for one hour end earlier"),
    (checks.MAX_TTL, 30 * 24 * HOUR, GUIDE, "with a unit, 30 days at most"),
    (checks.MIN_IDLE, MINUTE, GUIDE, "sets another time\n(at least a minute)"),
    (up_plan.STALE, 10 * MINUTE, GUIDE, "takes longer than ten minutes"),
    (real_check.BUDGET, 0.10, GUIDE, "before they have cost $0.10"),
    (up_plan.DEFAULT_WORKERS, 2, GUIDE, "| `--workers N` | 2, or"),
    (catalog.LAUNCHER_TYPE, "t3.micro", GUIDE, "newest Ubuntu or Deep Learning image; t3.micro"),
    (
        catalog.FAMILIES["cpu"].instance_type,
        "c7i.xlarge",
        GUIDE,
        "| `--cpu TYPE[:N]` | c7i.xlarge:2",
    ),
    (spec.LAUNCHER_DISK, 30, GUIDE, "1 launcher  t3.micro     us-east-1a  30 GiB"),
    (launches.AT_ONCE, 100, GUIDE, "one call of EC2 for up to a hundred of them"),
    (charges.LATER, MINUTE, GUIDE, "AWS ends it one minute later"),
    (charges.RELEASE, 15 * MINUTE, GUIDE, "its address a quarter of an hour"),
    (deadlines.WARNING, 5 * MINUTE, GUIDE, "Five minutes before the deadline"),
    (host_key_rotation.TOLD_AFTER, 30, GUIDE, "do not answer over SSH for half a minute"),
    (CloudSpec().boot_timeout, 10 * MINUTE, GUIDE, "`--boot-timeout` (10 minutes)"),
    (salvage.LIMIT, 2 * MINUTE, GUIDE, "brings logs and records here, in two minutes at most"),
    (gc.SEARCH_LIMIT, 45, GUIDE, "does not answer within 45 seconds"),
    (SETTLE, 10, STRICTNESS, "`down` has to find nothing for ten seconds"),
    (cleanup.LIMIT, 10 * MINUTE, STRICTNESS, "tries again, for ten minutes at most"),
    (steps.BOOT_LIMIT, 300, STRICTNESS, "`cloud-init status --wait`, at most 300 s"),
    (host_key_rotation.REFUSED, 2 * MINUTE, STRICTNESS, "refuses the user for two minutes"),
    (eventbridge.SPREADING, 30, STRICTNESS, "asked again for 30 s"),
    (console.SILENCE, 2.5, MONEY, "after 2.5 s without a word, those included"),
    (preflight.NOTICED, 30, MONEY, "they say so from 30 s on"),
    (failures.SKEW, 5 * MINUTE, MONEY, "a clock that is more than five minutes off"),
    (charges.LATER, MINUTE, MONEY, "AWS itself a minute later"),
    (charges.RELEASE, 15 * MINUTE, MONEY, "and its address for 15 minutes"),
]


@pytest.mark.parametrize(("value", "expected", "page", "words"), SAID, ids=[row[3] for row in SAID])
def test_what_is_said_of_times_and_defaults_is_what_is_done(
    value: object, expected: object, page: Path, words: str
) -> None:
    assert value == expected, "then the page says something else"
    assert " ".join(words.split()) in " ".join(page.read_text().split())


def test_the_families_of_gpus_are_listed() -> None:
    row = next(
        line for line in GUIDE.read_text().splitlines() if line.startswith("| `--gpu FAMILY")
    )
    listed = set(re.findall(r"\b(g\w+) \(", row))
    assert listed == set(catalog.FAMILIES) - {"cpu"}

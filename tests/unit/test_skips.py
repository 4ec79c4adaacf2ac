"""In CI a test that skips has failed: a suite that tests less than it seems to must not pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MAY_SKIP

ROOT = Path(__file__).parents[2]

SKIPS = {
    "called": "def test_it():\n    pytest.skip('no such tool')",
    "marked": "@pytest.mark.skip(reason='no such tool')\ndef test_it():\n    pass",
    "condition": "@pytest.mark.skipif(True, reason='no such tool')\ndef test_it():\n    pass",
    "module": "pytest.skip('no such tool', allow_module_level=True)",
    "import": "pytest.importorskip('no_such_module')",
    "fixture": "@pytest.fixture\ndef tool():\n    pytest.skip('no such tool')\n\n"
    "def test_it(tool):\n    pass",
}
FINE = {
    "expected": "@pytest.mark.xfail(reason='known')\ndef test_it():\n    raise ValueError",
    **{
        f"may_{number}": f"def test_it():\n    pytest.skip({reason!r})"
        for number, reason in enumerate(MAY_SKIP)
    },
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """What pytest says of modules with one test or none, under this suite's conftest, with CI set
    like that."""
    folder = tmp_path_factory.mktemp("suite")
    tests = folder / "tests" / "unit"
    tests.mkdir(parents=True)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    for name, body in (SKIPS | FINE).items():
        (tests / f"test_{name}.py").write_text(f"import pytest\n\n{body}\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "tests.conftest"]
    argv += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    known: dict[str, dict[str, str]] = {}

    def read(ci: str) -> dict[str, str]:
        if ci not in known:
            env = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True)
            said = re.findall(r"^([A-Z]+) .*?tests/unit/test_(\w+)\.py", done.stdout, re.MULTILINE)
            known[ci] = {name: word.lower() for word, name in said}
        return known[ci]

    return read


@pytest.mark.parametrize("kind", SKIPS)
def test_a_skip_fails_in_ci_alone(kind: str, outcomes: Callable[[str], dict[str, str]]) -> None:
    assert outcomes("")[kind] == "skipped"
    assert outcomes("true")[kind] in ("failed", "error")


@pytest.mark.parametrize("number", range(len(MAY_SKIP)))
def test_what_ci_cannot_have_may_skip(
    number: int, outcomes: Callable[[str], dict[str, str]]
) -> None:
    assert outcomes("true")[f"may_{number}"] == "skipped"


def test_an_expected_failure_is_none_in_ci(outcomes: Callable[[str], dict[str, str]]) -> None:
    assert outcomes("true")["expected"] == "xfail"

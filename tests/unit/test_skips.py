"""In CI a test that skips has failed: a suite that tests less than it seems to must not pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MAY_SKIP

ROOT = Path(__file__).parents[2]


def outcome(folder: Path, body: str, ci: str) -> str:
    """What pytest says of a module with one test or none, under this suite's conftest."""
    tests = folder / "tests" / "unit"
    tests.mkdir(parents=True, exist_ok=True)
    (tests / "test_one.py").write_text(f"import pytest\n\n{body}\n")
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    last = done.stdout.strip().splitlines()[-1].replace("error", "failed")
    return next((word for word in ("passed", "failed", "skipped") if f"1 {word}" in last), last)


SKIPS = {
    "called": "def test_it():\n    pytest.skip('no such tool')",
    "marked": "@pytest.mark.skip(reason='no such tool')\ndef test_it():\n    pass",
    "condition": "@pytest.mark.skipif(True, reason='no such tool')\ndef test_it():\n    pass",
    "module": "pytest.skip('no such tool', allow_module_level=True)",
    "import": "pytest.importorskip('no_such_module')",
    "fixture": "@pytest.fixture\ndef tool():\n    pytest.skip('no such tool')\n\n"
    "def test_it(tool):\n    pass",
}


@pytest.mark.parametrize("kind", SKIPS)
def test_a_skip_fails_in_ci_alone(kind: str, tmp_path: Path) -> None:
    assert outcome(tmp_path, SKIPS[kind], ci="") == "skipped"
    assert outcome(tmp_path, SKIPS[kind], ci="true") == "failed"


@pytest.mark.parametrize("reason", MAY_SKIP)
def test_what_ci_cannot_have_may_skip(reason: str, tmp_path: Path) -> None:
    assert outcome(tmp_path, f"def test_it():\n    pytest.skip({reason!r})", "true") == "skipped"


def test_an_expected_failure_is_none_in_ci(tmp_path: Path) -> None:
    body = "@pytest.mark.xfail(reason='known')\ndef test_it():\n    raise ValueError"
    assert outcome(tmp_path, body, ci="true") not in ("failed", "passed")

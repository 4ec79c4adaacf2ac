"""What is logged and what is not: secrets, arguments, bugs, interrupts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.core.variables import redact, redact_arguments, redact_patch
from tests.unit.calling import ROOT
from tests.unit.tables import rows


@rows("word, shown", "logging.arguments_in_the_log")
def test_arguments_in_the_log(word: str, shown: str) -> None:
    assert redact_arguments([word, "next"]) == [shown, "next"]


@rows("text, shown", "logging.redacting_secrets_without_an_assignment")
def test_redacting_secrets_without_an_assignment(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_redacting_text() -> None:
    text = redact("ran with DB_PASSWORD=hunter2, OPEN=1\nTOKEN=hunter2\n")
    assert "hunter2" not in text
    assert "OPEN=1" in text


BUG = """
import sys
from clusterctl.machines import providers
from clusterctl.cli.main import execute
def boom():
    raise ZeroDivisionError("MY_TOKEN=hunter2 exploded")
providers.PROVIDERS["local"] = "__main__:boom"
sys.exit(execute(["up", "--dry-run", *sys.argv[1:]]))
"""


def run(*argv: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that runs in the checkout."""
    env = {**os.environ, **environment}
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env=env, timeout=60)


@pytest.mark.parametrize("flags", [[], ["--json"], ["--verbose"], ["--quiet"]], ids=str)
def test_a_bug(flags: list[str]) -> None:
    done = run(sys.executable, "-c", BUG, *flags)
    assert done.returncode == 1
    log = Path(os.environ["CLUSTERCTL_HOME"]) / "clusterctl.log"
    assert str(log) in done.stderr
    assert ("Traceback" in done.stderr) == ("--verbose" in flags)
    assert "ZeroDivisionError" in log.read_text()
    assert "Traceback" in log.read_text()
    assert "hunter2" not in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
    if "--json" in flags:
        assert json.loads(done.stdout)["error"]["code"] == 1
    else:
        assert done.stdout == ""


def test_a_bug_without_a_place_for_the_log(tmp_path: Path) -> None:
    (tmp_path / "clusterctl.log").mkdir()
    done = run(sys.executable, "-c", BUG, CLUSTERCTL_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "--verbose" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c() -> None:
    code = BUG.replace('ZeroDivisionError("MY_TOKEN=hunter2 exploded")', "KeyboardInterrupt")
    done = run(sys.executable, "-c", code)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


LOADING = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "clusterctl.actions":
            exec("raise KeyboardInterrupt")  # where dataclasses make their methods
sys.meta_path.insert(0, Interrupted())
"""


def test_ctrl_c_while_a_dataclass_is_made(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LOADING)
    done = run(sys.executable, "-m", "clusterctl", "list", PYTHONPATH=str(tmp_path))
    assert "stopped by Ctrl-C" in done.stderr
    assert done.returncode == 130


def test_ctrl_c_after_the_result(tmp_path: Path) -> None:
    """A late Ctrl-C, when everything has been said, does not change the exit code."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, signal\n"
        # Handlers run last in, first out: this one comes after the command's own.
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
    )
    done = run(sys.executable, "-m", "clusterctl", "--version", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


LONG = "x|-|a-|token|--token|token='| KEY|://|://a:| |key|=|+ token\t|eyJaaaaaaaa.|Bearer |Bearer a"
FORMS = ("-----BEGIN PRIVATE KEY-----", "password: ", "AKIAABCDEFGHIJKLMNOP ")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", [*LONG.split("|"), *FORMS])
def test_long_lines_are_redacted_in_time(text: str) -> None:
    """Minified code has lines of megabytes. With the square of their length it would take hours."""
    line = text * (1_000_000 // len(text))
    assert redact(line)
    assert redact_patch(f"diff --git a/x b/x\n+{line}")

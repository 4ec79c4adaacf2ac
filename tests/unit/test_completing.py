"""What the shell offers for values, and that shells really do, on a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import Need
from tests.terminal import Terminal
from tests.unit.calling import ROOT, clusterctl
from tests.unit.scripts import write_program
from tests.unit.staged import lab
from tests.unit.tables import rows
from tests.warm.client import shared

ENTRY = f"""#!{sys.executable}
from clusterctl.cli.main import main
main()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files, and a cluster with a job on record."""
    made = lab(tmp_path / "nodes")
    folder = tmp_path / "project"
    (folder / "steps").mkdir(parents=True)
    for name in ("tune.py", "steps/one.py", ".hidden"):
        (folder / name).touch()
    made.job(folder)
    monkeypatch.chdir(folder)
    return folder


@rows("words, found", "completing.names_on_record_and_files")
def test_names_on_record_and_files(words: str, found: list[str], here: Path) -> None:
    asks = {"_CLUSTERCTL_COMPLETE": "complete_bash", "COMP_WORDS": words}
    env = {**os.environ, **asks, "COMP_CWORD": str(words.count(" "))}
    done = shared().run(["-m", "clusterctl"], cwd=here, env=env, timeout=60)
    assert done.stdout.split() == found, done.stderr


SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], "bind 'set enable-bracketed-paste off'; . {script}"),
    "zsh": (["-f", "-i"], "autoload -U compinit; compinit -D -u; . {script}"),
    "fish": (["--no-config", "-i"], "source {script}"),
}
"""Without the settings of the person who runs the tests: arguments, and the first line typed."""


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_completes_the_name_of_a_cluster(
    shell: str, here: Path, tmp_path: Path, need: Need
) -> None:
    need(shell)
    program = write_program(tmp_path / "bin" / "clusterctl", ENTRY)
    script = tmp_path / "completion.sh"
    script.write_text(clusterctl(_CLUSTERCTL_COMPLETE=f"source_{shell}").stdout)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PS1": "$ ",
        "TERM": "dumb",
        "INPUTRC": os.devnull,
    }
    arguments, first = SHELLS[shell]
    argv = ["setsid", "--ctty", shell, *arguments]  # fish insists on a terminal that is its own
    terminal = Terminal(argv, keyboard=True, width=200, env=environment)
    try:
        terminal.send(first.format(script=script).encode() + b"; echo rea''dy\n")
        while "ready" not in terminal.raw:
            terminal.until_more()
        terminal.send(b"clusterctl status --json l\t")
        while "--json lab" not in terminal.raw:
            terminal.until_more()
        terminal.send(b"\x15exit\n")
    finally:
        terminal.close()

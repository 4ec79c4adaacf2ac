"""Options that every verb has, help, completion and values."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.core.job import JobState
from clusterctl.errors import UsageError
from clusterctl.options.values import duration
from clusterctl.options.verbs import VERBS, find_limit
from tests.terminal import Terminal
from tests.unit.calling import ROOT, Call, clusterctl, judge
from tests.unit.making import cluster, job
from tests.unit.tables import rows


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb(verb: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option is there, under a heading that people see, with an example to begin from."""
    monkeypatch.setenv("COLUMNS", "100")
    words = verb.split()
    assert call(*words, "-h") == (said := call(*words, "--help"))
    assert call("help", *words) == said
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"Usage: clusterctl {verb} [OPTIONS]")
    assert all(len(line) <= 100 for line in said.out.splitlines())
    assert len(said.out.splitlines()) <= 70
    for option in VERBS[verb].options().values():
        assert (option.flag in said.out) != option.never
        if option.flags or option.help:
            assert f"\n{option.group.heading}:\n" in said.out
        explained = option.help or option.group.native or option.never
        assert explained or option.metavar.split()[0] in (VERBS[verb].__doc__ or "")
    assert re.search(rf"\n(\n|  )Examples?:\s+clusterctl {verb}", said.out)
    assert ("CLUSTERCTL_CLUSTER" in said.out) == ("--cluster" in said.out)


def test_help_of_run_fits_a_terminal(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("run", "--help").out.splitlines()
    assert len(lines) <= 60
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_in_a_hint_can_be_pasted(verb: str) -> None:
    """Between backquotes is one command, not a choice of two."""
    hints = (limit.hint for row in VERBS[verb].options().values() for limit in row.limits)
    commands = [found for hint in hints for found in re.findall("`([^`]+)`", hint)]
    assert not [command for command in commands if " or " in command]


def test_help_needs_no_settings(call: Call) -> None:
    """Who has a mistake in their settings needs it most."""
    Path("clusterctl.toml").write_text("[run]\nbakend = 1\n")
    assert call("run", "--help").code == 0
    assert call("run", "train.py").code == 2


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("option", ["--json", "--quiet", "--verbose", "--cluster"])
def test_every_verb_takes(verb: str, option: str) -> None:
    assert any(option in item.flags for item in VERBS[verb].options().values())


def test_options_come_after_the_command(call: Call) -> None:
    judge(call("-c", "lab", "status"), 2, "-c stands before the command", "after it")


def test_the_verbs_of_the_contract() -> None:
    wanted = "up down status list run jobs logs cancel fetch rerun ssh cp check data image"
    assert set(wanted.split()) <= {verb.split()[0] for verb in VERBS}


def test_version_and_help(call: Call) -> None:
    assert re.fullmatch(r"clusterctl \d\S*\n", call("--version").out)
    said = call("--help")
    assert said.code == 0
    assert all(f"  {verb.split()[0]} " in said.out for verb in VERBS)
    assert "\nJobs:\n  run " in said.out
    assert "  push " in call("data", "--help").out
    assert call("data") == call("data", "--help")


def test_no_arguments_show_the_help(call: Call) -> None:
    said = call()
    text = said.out + said.err
    assert "Usage: clusterctl" in text
    assert "clusterctl: Usage" not in text  # help is no complaint
    assert said.code in (0, 2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = clusterctl(_CLUSTERCTL_COMPLETE=f"source_{shell}")
    assert done.returncode == 0, done.stderr
    assert "clusterctl" in done.stdout
    assert f"complete_{shell}" in done.stdout


@rows("words, found", "options.completion_knows_verbs_and_options")
def test_completion_knows_verbs_and_options(words: str, found: str) -> None:
    done = clusterctl(
        _CLUSTERCTL_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" "))
    )
    assert done.stdout.split() == [found], done.stderr


def show_on_terminal(*arguments: str, **environment: str) -> tuple[str, list[str]]:
    """What a terminal of 80 columns gets, and what it shows."""
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)} | environment
    argv = [sys.executable, "-m", "clusterctl", *arguments]
    terminal = Terminal(argv, env={k: v for k, v in environment.items() if v})
    try:
        shown = terminal.wait()
        return terminal.raw, shown
    finally:
        terminal.close()


@pytest.mark.parametrize("words", [(), ("data",), ("up",), ("run",)], ids=" ".join)
def test_help_has_panels_on_a_terminal(words: tuple[str, ...]) -> None:
    raw, shown = show_on_terminal(*words, "--help", NO_COLOR="")
    assert "\x1b[1;36m--help\x1b[0m" in raw
    assert shown[0].startswith(" ".join(("Usage: clusterctl", *words)))
    panels = re.findall(r"(?m)^╭─ [A-Z].* ─+╮\n(?:│ .* │\n)+╰─+╯$", "\n".join(shown))
    assert len(panels) == sum(line.startswith("╭") for line in shown) > 0
    assert {len(line) for panel in panels for line in panel.splitlines()} == {80}


@rows("reason", "options.help_is_plain_where_a_terminal_shows_no_panels")
def test_help_is_plain_where_a_terminal_shows_no_panels(reason: dict[str, str]) -> None:
    raw, _ = show_on_terminal("data", "--help", **({"NO_COLOR": ""} | reason))
    assert raw.isascii()
    assert "\x1b" not in raw


@pytest.mark.parametrize(
    ("state", "colour"), [(JobState.SUCCEEDED, "32"), (JobState.FAILED, "1;31")]
)
def test_how_jobs_ended_has_a_colour(state: JobState, colour: str) -> None:
    where = cluster()
    open_store().save(where)
    open_store().save_job(job(where, state=state))
    raw, _ = show_on_terminal("jobs", NO_COLOR="")
    assert f"  \x1b[{colour}m{state.value}\x1b[0m  " in raw


def test_no_colours_without_a_terminal() -> None:
    for arguments in (["run", "--help"], ["status"], ["rnu"]):
        done = clusterctl(*arguments, TERM="xterm-256color")
        assert "\x1b" not in done.stdout + done.stderr


@rows("seconds, texts", "options.duration")
def test_duration(texts: str, seconds: float) -> None:
    for text in texts.split("|"):
        assert duration(text, "--timeout") == pytest.approx(seconds)


DURATIONS = ("1h 30m", "", "soon", "-5m", "+5", "5x", "h", "1e3", ".5h", "inf", "nan", "0", "0h0m")


@pytest.mark.timeout(5)
@pytest.mark.parametrize("text", [*DURATIONS, "5m\n", "1" * 40 + "x"])
def test_what_is_no_duration(text: str) -> None:
    """A pattern with two nested repetitions would take years for the last one."""
    with pytest.raises(UsageError) as caught:
        duration(text, "--timeout")
    assert "--timeout" in caught.value.message
    assert caught.value.hint


@rows("words, ours", "options.short_options_of_run_in_one_word")
def test_short_options_of_run_in_one_word(words: str, ours: str) -> None:
    """Where the program's options begin does not depend on how ours are spelled."""
    assert VERBS["run"].arrange(words.split()) == ours.split()


def test_short_options_of_ssh_in_one_word() -> None:
    words = ["-qc", "lab", "worker-1", "hostname", "-c", "x"]
    assert VERBS["ssh"].arrange(words) == ["-qc", "lab", "--", "worker-1", "hostname", "-c", "x"]


@pytest.mark.parametrize("words", [(), ("data",), ("run", "--help")], ids=" ".join)
def test_help_for_a_reader_that_has_gone(words: tuple[str, ...]) -> None:
    argv = [sys.executable, "-m", "clusterctl", *words]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_behind_the_output_is_no_bug() -> None:
    with open("/dev/full", "wb") as full:
        argv = [sys.executable, "-m", "clusterctl", "run", "--help"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, "cannot write the output" in done.stderr) == (2, True)


@rows("option, works, fails", "options.where_options_of_batch_systems_work")
def test_where_options_of_batch_systems_work(option: str, works: str, fails: str) -> None:
    assert find_limit("run", option, works.split()) is None
    assert find_limit("run", option, fails.split()) is not None


@rows("typed, meant", "options.options_of_sites_are_not_taken_for_ours")
def test_options_of_sites_are_not_taken_for_ours(typed: str, meant: str, call: Call) -> None:
    said = call("run", "--dry-run", *typed.split(), "train.py")
    assert said.code == 2
    assert meant in said.err


def test_a_name_before_a_batch_script_is_no_command(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH -n 1\n")
    said = call("run", "--dry-run", "-q", "normal", "job.sh")
    assert (said.code, "-q normal is no option of `run`" in said.err) == (2, True)
    assert "--qos normal (Slurm) or --queue normal (Grid Engine)" in said.err
    assert "normal is no option" not in call("run", "--dry-run", "-q", "sh", "job.sh").err

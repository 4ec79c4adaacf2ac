"""Options that every verb has, help, completion and values."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer.main

from clusterctl.cli import app
from clusterctl.cli.options import duration
from clusterctl.errors import UsageError
from tests.unit.calling import Call, clusterctl

COMMANDS: dict[str, Any] = typer.main.get_command(app()).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_of_every_verb(verb: str, call: Call) -> None:
    for flag in ("--help", "-h"):
        said = call(verb, flag)
        assert (said.code, said.err) == (0, "")
        assert said.out.startswith(f"Usage: clusterctl {verb}")
    assert COMMANDS[verb].help
    for parameter in COMMANDS[verb].params:
        described = parameter.name in ("help", "source", "target") or parameter.help
        assert described or parameter.opts == ["--ranks-per-node", "--ntasks-per-node"]


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("option", ["--json", "--quiet", "--verbose", "--cluster"])
def test_every_verb_takes(verb: str, option: str) -> None:
    assert any(option in parameter.opts for parameter in COMMANDS[verb].params)


def test_the_verbs_of_the_contract() -> None:
    wanted = "up down status list run jobs logs cancel fetch rerun ssh cp data check"
    assert set(wanted.split()) <= set(COMMANDS)


def test_version_and_help(call: Call) -> None:
    assert re.fullmatch(r"clusterctl \d\S*\n", call("--version").out)
    said = call("--help")
    assert said.code == 0
    assert all(f"  {verb} " in said.out for verb in COMMANDS)


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


def test_completion_knows_verbs() -> None:
    done = clusterctl(
        _CLUSTERCTL_COMPLETE="complete_bash", COMP_WORDS="clusterctl st", COMP_CWORD="1"
    )
    assert done.stdout.split() == ["status"]


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "xterm-256color"}])
def test_no_colours_without_a_terminal(environment: dict[str, str]) -> None:
    for arguments in (["--help"], ["run", "--help"], ["status"], ["rnu"]):
        done = clusterctl(*arguments, **environment)
        assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("30m", 1800),
        ("8h", 28800),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("0.1s", 0.1),
        ("1h 30m", None),
        ("", None),
        ("soon", None),
        ("-5m", None),
        ("+5", None),
        ("5x", None),
        ("h", None),
        ("1e3", None),
        (".5h", None),
        ("inf", None),
        ("nan", None),
        ("0", None),
        ("0h0m", None),
        ("5m\n", None),
    ],
)
def test_duration(text: str, seconds: float | None) -> None:
    if seconds is not None:
        assert duration(text, "--timeout") == pytest.approx(seconds)
        return
    with pytest.raises(UsageError) as caught:
        duration(text, "--timeout")
    assert "--timeout" in caught.value.message
    assert caught.value.hint


@pytest.mark.timeout(5)
def test_a_long_duration_is_refused_at_once() -> None:
    """A pattern with two nested repetitions would take years."""
    with pytest.raises(UsageError):
        duration("1" * 40 + "x", "--timeout")

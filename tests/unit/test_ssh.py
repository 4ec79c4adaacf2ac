"""`ssh`: which words are ours and which are the command's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.core.model import Role
from tests.unit.calling import Call
from tests.unit.making import cluster, node


@pytest.fixture(autouse=True)
def login() -> None:
    """A login node that is this machine: commands need no connection."""
    store = open_store()
    login = node("launcher", "", role=Role.LOGIN)
    store.save(cluster(login, provider="slurm", identity=""))
    (store.locate_folder("lab") / "ssh").mkdir()


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "launcher", "--"],
        ["launcher", "--json", "--"],
        ["launcher", "--json"],
        ["-q", "launcher", "--timeout", "20", "--json", "-c", "lab", "--"],
        ["--json", "--"],
    ],
    ids=" ".join,
)
def test_options_before_the_command_are_ours(words: list[str], call: Call) -> None:
    said = call("ssh", *words, "printf", "%s;", "--json", "--", "-c", "two words")
    assert said.code == 0, said
    assert said.document["stdout"] == "--json;--;-c;two words;"
    assert said.document["node"] == "launcher"


@pytest.mark.parametrize(
    "words", [["launcher", "--"], ["launcher"], ["--"], ["-c", "lab", "--"]], ids=" ".join
)
def test_words_from_the_command_on_are_its_own(words: list[str], call: Call) -> None:
    said = call("ssh", *words, "printf", "%s;", "--json", "--timeout")
    assert (said.code, said.out) == (0, "--json;--timeout;"), said


def test_json_needs_a_command(call: Call) -> None:
    for words in (["--json"], ["launcher", "--json"], ["launcher", "--json", "--"]):
        said = call("ssh", *words)
        assert said.code == 2
        assert "--json needs a command" in said.err


@pytest.mark.parametrize("words", [["--jsn", "launcher"], ["launcher", "--jsn", "--", "ls"]])
def test_an_unknown_option_is_no_command(words: list[str], call: Call) -> None:
    said = call("ssh", *words)
    assert said.code == 2
    assert "--jsn" in said.err


def test_a_damaged_ssh_config_is_written_again(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the record: OpenSSH would say that it cannot resolve the name of the node."""
    store = open_store()
    launcher = node("launcher", "10.0.0.6", role=Role.LAUNCHER)
    store.save(cluster(launcher, node("worker-1", "10.0.0.7"), name="ours", id="ours-1a2b"))
    folder = store.locate_folder("ours") / "ssh"
    folder.mkdir()
    (folder / "user").touch()
    shows = tmp_path / "bin" / "ssh"
    shows.parent.mkdir()
    seen = tmp_path / "seen"
    shows.write_text(f"#!/bin/sh\ncat config hosts >{seen}\n")
    shows.chmod(0o755)
    monkeypatch.setenv("PATH", str(shows.parent), prepend=os.pathsep)
    assert call("ssh", "-c", "ours", "worker-1", "--", "true").code == 0
    first = seen.read_text()
    assert "Host worker-1\n    HostName 10.0.0.7\n" in first
    assert "Host ours-worker-1\n" in first
    for name, damage in (("config", "\xff\0"), ("hosts", "Host ours-wor")):
        (folder / name).write_text(damage)
        assert call("ssh", "-c", "ours", "worker-1", "--", "true").code == 0
        assert seen.read_text() == first

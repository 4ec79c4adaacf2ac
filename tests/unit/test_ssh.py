"""`ssh`: which words are ours and which are the command's."""

from __future__ import annotations

import pytest

from clusterctl.actions import open_store
from clusterctl.model import Role
from tests.unit.calling import Call
from tests.unit.making import cluster, node


@pytest.fixture(autouse=True)
def login() -> None:
    """A login node that is this machine: commands need no connection."""
    store = open_store()
    login = node("launcher", "", role=Role.LOGIN)
    store.save(cluster(login, provider="slurm", identity=""))
    (store.folder("lab") / "ssh").mkdir()


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

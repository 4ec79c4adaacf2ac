"""Settings: project over user, variables over files, flags over variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.options.kinds import (
    cluster_option,
    find_files,
    find_settings,
    flag,
    read_settings,
    text,
    texts,
)
from tests.unit.calling import Call
from tests.unit.tables import rows

FLAGS = [flag(flags="--json"), flag(flags="--dry-run")]
TEXTS = [text(flags=f"--{name}") for name in ("workers", "provider", "backend", "ranks")]
LISTS = [texts(flags=f"--{name}") for name in ("env", "module")]
OPTIONS = {option.key: option for option in (*FLAGS, *TEXTS, *LISTS, cluster_option())}
VERBS = {
    verb: {name: OPTIONS[name] for name in names.split()}
    for verb, names in {
        "up": "workers provider json",
        "run": "backend ranks cluster env module dry_run json",
        "status": "cluster json",
    }.items()
}


def values() -> dict[str, dict[str, Any]]:
    """What the settings say, by the verbs that they say something of."""
    found = read_settings(VERBS)
    said = {verb: {k: item.value for k, item in own.items()} for verb, own in found.items()}
    return {verb: own for verb, own in said.items() if own}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(folder / "deep" / "er")
    return folder


@rows("verb, key", "config.what_a_command_does_is_no_setting")
@pytest.mark.parametrize("where", ["table", "general"])
def test_what_a_command_does_is_no_setting(where: str, verb: str, key: str, call: Call) -> None:
    """`[run] m = "ok"` would make an argument of the SCRIPT of every command line."""
    table = f"[{verb}]\n" if where == "table" else ""
    Path("clusterctl.toml").write_text(f'{table}{key} = "ok"\n')
    said = call("list")
    assert said.code == 2
    flag = "-m" if key == "m" else f"--{key}"
    assert f"{flag} applies to a single command" in said.err
    assert f"give {flag} on the command line" in said.err


def user_file() -> Path:
    path = Path(os.environ["HOME"]) / ".config" / "clusterctl" / "clusterctl.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_keys_and_tables(project: Path) -> None:
    (project / "clusterctl.toml").write_text(
        'cluster = "lab"\njson = true\n[run]\nbackend = "mpi"\ncluster = "other"\n'
    )
    assert values() == {
        "up": {"json": True},
        "run": {"cluster": "other", "json": True, "backend": "mpi"},
        "status": {"cluster": "lab", "json": True},
    }


def test_project_over_user(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (find_files(), values()) == ((), {})
    user_file().write_text('cluster = "mine"\n[run]\nbackend = "gloo"\nranks = 2\n')
    (project / "clusterctl.toml").write_text('[run]\nbackend = "mpi"\n')
    assert find_files() == (user_file(), project / "clusterctl.toml")
    found = values()["run"]
    assert found == {"cluster": "mine", "backend": "mpi", "ranks": "2"}
    nearest = project / "deep" / "clusterctl.toml"
    nearest.write_text('cluster = "near"\n')
    other = project / "xdg" / "clusterctl" / "clusterctl.toml"
    other.parent.mkdir(parents=True)
    other.write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "xdg"))
    assert find_files() == (other, nearest)


@rows("text, words, hint", "config.mistakes_name_the_file")
def test_mistakes_name_the_file(project: Path, text: str, words: list[str], hint: str) -> None:
    path = project / "clusterctl.toml"
    path.write_bytes(b"\xff" if text == "not UTF-8" else text.encode())
    with pytest.raises(UsageError) as caught:
        values()
    assert str(path) in caught.value.message
    assert all(word in caught.value.message for word in words), caught.value.message
    assert hint in caught.value.hint


def test_a_vanished_folder_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert find_files() == ()


@pytest.mark.usefixtures("lab")
def test_flags_over_files(call: Call) -> None:
    Path("clusterctl.toml").write_text('[run]\nbackend = "gloo"\n')
    for flags, backend in ((), "gloo"), (("--backend", "nccl"), "nccl"):
        said = call("run", "--dry-run", "--json", *flags, "train.py")
        assert said.document["env"]["CLUSTERCTL_BACKEND"] == backend


@rows("text, found", "config.a_verb_has_the_settings_of_one_that_it_stands_for")
def test_a_verb_has_the_settings_of_one_that_it_stands_for(
    project: Path, text: str, found: str
) -> None:
    """As `launch` has those of `run`; what is set for all verbs comes last."""
    (project / "clusterctl.toml").write_text(text)
    asked = find_settings(("status", "run"), ["cluster"], read_settings(VERBS))
    assert asked["cluster"].value == found

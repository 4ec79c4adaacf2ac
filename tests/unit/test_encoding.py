"""Terminals and locales that are not UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.options.verbs import VERBS
from tests.unit.calling import Call, clusterctl
from tests.unit.making import cluster, job, program, spec

C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""The C locale as it is: ASCII. Python would choose UTF-8."""
OTHERS = [
    pytest.param({"PYTHONIOENCODING": "ascii"}, id="ascii"),
    pytest.param({"PYTHONIOENCODING": "latin-1"}, id="latin-1"),
    pytest.param(C, id="C"),
]


@pytest.mark.parametrize("environment", OTHERS)
def test_messages_are_readable(environment: dict[str, str]) -> None:
    """What a terminal cannot show is written in ASCII, on both streams."""
    where = cluster()
    store = open_store()
    store.save(where)
    store.save_job(job(where, spec(program=program("grün", "x" * 100))))
    done = clusterctl("jobs", **environment)
    assert done.returncode == 0, done
    assert "..." in done.stdout
    assert "gr\\xfcn" in done.stdout or "gr\xfcn" in done.stdout or "gr\ufffdn" in done.stdout
    wrong = clusterctl("status", "nope", **environment)
    assert wrong.returncode == 7
    assert "\n  -> " in wrong.stderr
    assert "bug" not in wrong.stderr


def test_help_is_ascii(call: Call) -> None:
    for words in ([], *(verb.split() for verb in VERBS)):
        assert call(*words, "--help").out.isascii(), words


def test_files_are_utf_8_in_every_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusterctl.toml").write_bytes("# für später\n[run]\nranks = 2\n".encode())
    (tmp_path / "secrets").write_bytes("NAME=grün\n".encode())
    (tmp_path / "train.py").touch()
    open_store().save(cluster())
    done = clusterctl("run", "--dry-run", "--env-file", "secrets", "train.py", **C)
    assert done.returncode == 0, done
    assert "NAME=***" in done.stdout


def test_an_argument_that_the_locale_cannot_pass_on() -> None:
    done = clusterctl("status", "grün", **C)
    assert done.returncode == 2
    assert "is not ASCII, and the locale is not UTF-8 (ascii)" in done.stderr
    assert "LC_ALL=C.UTF-8" in done.stderr

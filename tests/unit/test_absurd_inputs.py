"""Files of absurd depth, length and content: one line what is wrong, exit code 2, and no bug."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.cli.main import explain_input
from clusterctl.transport import copying
from tests.e2e.cli import ROOT
from tests.unit.calling import Call

DEEP = b"a = " + b"[" * 5000 + b"]" * 5000 + b"\n"
CONTENTS = {
    "a NUL": b"one\0 slots=2\n",
    "no end of a line": b"h" * 2_000_000 + b"[\n",
    "UTF-16": "one slots=2\n".encode("utf-16"),
    "not UTF-8": b"one slots=2 # \xff\n",
    "many digits": b"one slots=" + b"9" * 5000 + b"\n",
    "a long range": b"[g]\nnode[1:99999999999999999999]\n",
    "noise": bytes(range(256)) * 64,
    "deep": DEEP,
}
LINES = {
    "hosts": ("attach", "lab", "--hosts", "FILE"),
    "environment": ("run", "--dry-run", "--env-file", "FILE", "t.py"),
    "hostfile": ("run", "--dry-run", "--hostfile", "FILE", "t.py"),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("line", LINES)
def test_a_text_file_is_refused_in_a_line(
    line: str, content: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text("print(1)\n")
    Path("FILE").write_bytes(CONTENTS[content])
    said = call(*LINES[line])
    assert said.code in (2, 7), said  # 7: there is no cluster, and nobody has read it
    assert "bug" not in said.err
    assert len(said.err) < 12_000


def test_a_file_without_an_end_is_refused(call: Call) -> None:
    said = call("attach", "lab", "--hosts", "/dev/zero")
    assert (said.code, "larger than 16 MiB" in said.err) == (2, True)


def test_settings_that_are_nested_too_deeply(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "clusterctl").mkdir()
    (tmp_path / "clusterctl" / "clusterctl.toml").write_bytes(DEEP)
    said = call("list")
    assert (said.code, "nested too deeply" in said.err) == (2, True), said


@pytest.mark.parametrize("line", ["init", "launch x.toml", "status", "run t.py", "data list"])
def test_a_current_folder_that_was_removed(line: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "$1" && rmdir "$1" && exec "$2" -m clusterctl {line}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", gone, sys.executable],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLUSTERCTL_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "bug" not in done.stderr
    assert done.returncode in (0, 2, 7)


def pack(*members: tuple[str, bytes | str]) -> tarfile.TarFile:
    """Files with these contents, and hard links to these names."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.LNKTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    data.seek(0)
    return tarfile.open(fileobj=data)


def test_members_that_no_folder_can_hold_are_named_and_left_out(tmp_path: Path) -> None:
    deep, wide, long = "a/" * 1000 + "f", "b" * 300, "/".join(["c" * 250] * 30)
    members: list[tuple[str, bytes | str]] = [(name, b"x") for name in (deep, wide, long, "kept")]
    archive = pack(*members, ("link", deep), ("d/" * 150 + "f", b"y"))
    (tmp_path / "part").mkdir()
    left_out = copying.unpack(archive, tmp_path / "part")
    assert len(left_out) == 4
    assert all(len(line) < 200 for line in left_out)
    (tmp_path / "target").mkdir()
    copying.move_into(tmp_path / "part", tmp_path / "target")
    assert (tmp_path / "target" / "kept").read_bytes() == b"x"
    assert (tmp_path / "target" / ("d/" * 150 + "f")).read_bytes() == b"y"


def fail(action: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- whatever Python raises
        action()
    return caught.value


def test_what_an_input_did_is_no_bug() -> None:
    nested = "[" * 100_000
    for action in (
        lambda: __import__("json").loads(nested),
        lambda: Path("a\0b").read_bytes(),
        lambda: Path("x" * 5000).read_bytes(),
        lambda: b"\xff".decode(),
        lambda: int("9" * 5000),
    ):
        found = explain_input(fail(action), True)
        assert found is not None
        assert found.hint
        assert len(found.message) < 200
    assert explain_input(FileNotFoundError(2, "No such file"), False) is not None
    for error in (FileNotFoundError(2, "No such file"), KeyError("x"), ValueError("x")):
        assert explain_input(error, True) is None

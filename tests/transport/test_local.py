"""This machine as a node: the same promises without a network."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from clusterctl.core.model import Node, NodeResult, Role, make_error
from clusterctl.transport.pool import LocalTransport, Pool


@pytest.fixture
def here() -> LocalTransport:
    return LocalTransport(node())


def node() -> Node:
    return Node(
        name="login",
        role=Role.LOGIN,
        address="",
        private_address="",
        ssh_port=0,
        job_port=0,
        user="",
        root="/tmp",
    )


def test_a_command_with_input_and_exit_code(here: LocalTransport) -> None:
    result = here.run("cat; echo bad >&2; exit 3", stdin=b"in\0put", timeout=10)
    assert (result.node, result.exit_code) == ("login", 3)
    assert (result.stdout, result.stderr) == (b"in\0put", b"bad\n")


def test_a_signal_is_an_exit_code_as_in_a_shell(here: LocalTransport) -> None:
    assert here.run("kill -KILL $$", timeout=10).exit_code == 137


def test_time_is_limited(here: LocalTransport) -> None:
    began = time.monotonic()
    result = here.run("sleep 60", timeout=0.3)
    assert result.exit_code is None
    assert "0.3 s" in result.error
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, 3), (errno.EDQUOT, 3), (errno.EACCES, 2)]
)
def test_what_fails_here_is_not_the_nodes_fault(number: int, code: int) -> None:
    error = make_error("fetching", NodeResult(node="login", error="x: full", errno=number))
    assert error.exit_code == code
    assert "login" not in error.message
    assert "nodes" not in error.hint


def test_a_channel_talks_until_it_is_closed(here: LocalTransport) -> None:
    channel = here.open('while read -r word; do echo "got $word"; done; echo end')
    for word in (b"a", b"b"):
        channel.send(word + b"\n", 5)
        assert channel.receive(5) == b"got " + word + b"\n"
    with pytest.raises(TimeoutError):
        channel.receive(0.1)
    channel.close()
    channel = here.open("echo bye")
    assert (channel.receive(5), channel.receive(5)) == (b"bye\n", b"")
    channel.close()


def test_closing_ends_the_command_and_its_children(here: LocalTransport) -> None:
    channel = here.open("sleep 60 & echo $!; wait")
    child = Path("/proc", channel.receive(5).decode().strip(), "cmdline")
    assert child.exists()
    channel.close()
    until = time.monotonic() + 30
    while child.exists() and child.read_bytes():  # a zombie has none
        assert time.monotonic() < until
        time.sleep(0.01)


def test_files_and_folders_are_copied(here: LocalTransport, tmp_path: Path) -> None:
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "a" / "sub" / "file").write_text("x")
    assert here.put(tmp_path / "a", str(tmp_path / "new" / "b"), timeout=10).ok
    assert here.get(str(tmp_path / "new" / "b" / "sub" / "file"), tmp_path / "c", timeout=10).ok
    assert (tmp_path / "c").read_text() == "x"
    missing = here.get(str(tmp_path / "nothing"), tmp_path / "d", timeout=10)
    assert not missing.ok
    assert "nothing" in missing.error
    assert not (tmp_path / "d").exists()


def test_a_copy_that_hangs_is_given_up(here: LocalTransport, tmp_path: Path) -> None:
    """As on a file server that does not answer: here a terminal at which nobody types."""
    ours, theirs = os.openpty()
    try:
        result = here.put(Path(os.ttyname(theirs)), str(tmp_path / "copy"), timeout=0.2)
        assert (result.exit_code, result.error) == (None, "did not end within 0.2 s")
        assert not (tmp_path / "copy").exists()
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_pool_takes_a_node_without_an_address_for_this_machine(tmp_path: Path) -> None:
    with Pool([node()], identity=None, known_hosts=tmp_path / "none") as pool:
        [result] = pool.run("uname -n", timeout=10)
        assert pool.connect(timeout=1)[0].ok
    assert result.ok

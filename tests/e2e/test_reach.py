"""ssh, cp, forward: a command's words and a file's bytes arrive as they left."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import NOT_ROOT
from tests.e2e.cli import Cli, wait_for

pytestmark = pytest.mark.sshd

NAMES = ["two words", "it's", 'a "quote"', "$HOME", "semi;colon", "new\nline", "-dash", "ünï"]
ODD = "-".join(["", *NAMES])


def test_every_node_answers_with_its_name(cli: Cli) -> None:
    """One that is none is told which there are."""
    mode = cli.status()["mode"]
    for node in ("launcher", "worker-1", "worker-2"):
        name = cli("ssh", node, "--", "hostname").out.strip()
        assert name == (node if mode == "namespaces" else os.uname().nodename)
        if node == "launcher":  # which is meant where none is named
            assert cli("ssh", "--", "hostname").out.strip() == name
        assert node in cli("ssh", "worker-9", "--", "true", code=7).err


@pytest.mark.parametrize("words", [("ssh", "worker-1", "--", "true"), ("status", "--live")])
def test_host_keys_are_known_again_where_their_file_is_lost(
    words: tuple[str, ...], cli: Cli
) -> None:
    """To OpenSSH, and to clusterctl's own connections."""
    known = cli.home / "clusters" / "default" / "ssh" / "known_hosts"
    before = known.read_bytes()
    known.unlink()
    try:
        cli(*words)
        assert sorted(known.read_bytes().splitlines()) == sorted(before.splitlines())
    finally:
        known.write_bytes(before)


def test_words_reach_the_program_unchanged(cli: Cli) -> None:
    """Several words are an argv; a single one is a line for the node's shell."""
    words = ["a  b", "it's", 'say "x"', "$HOME", "*", "a;b", "", "new\nline", "-x", "--json"]
    done = cli("ssh", "worker-1", "--", "printf", "<%s>\n", *words)
    assert done.out == "".join(f"<{word}>\n" for word in words)
    assert cli("ssh", "worker-1", "--", "echo one; echo two | tr a-z A-Z").out == "one\nTWO\n"


def test_a_session_that_ssh_does_not_get_is_no_exit_code_of_a_program(cli: Cli) -> None:
    """OpenSSH refuses more than clusterctl's own connections do, and says 255, as programs may."""
    key = cli.home / "clusters" / "default" / "ssh" / "user"
    cli("ssh", "worker-2", "--", "exit 255", code=255)
    key.chmod(0o644)
    try:
        for words in (("ssh", "worker-2", "--", "true"), ("forward", "worker-2:22")):
            assert "Permission denied" in cli(*words, code=4).err.splitlines()[-3]
    finally:
        key.chmod(0o600)


def test_a_command_finds_what_a_shell_finds(cli: Cli) -> None:
    """Other nodes by name, mpirun that reaches them, the Python of jobs."""
    line = "ssh -n worker-1 echo there; mpirun -np 2 --hostfile ~/hostfile hostname >out </dev/null"
    line += "; wc -l <out; rm out; command -v python"  # through a pipe, mpirun may lose lines
    plain = cli("ssh", "launcher", "--", line).out
    assert plain.startswith("there\n2\n")
    assert "/shell/bin/python" in plain
    assert cli.json("ssh", "launcher", "--", line)["stdout"] == plain
    assert cli("ssh", "launcher", "--", "ssh", "-n", "worker-2", "echo", "x").out == "x\n"


def test_json_has_everything_apart(cli: Cli) -> None:
    words = ("worker-1", "--", "sh", "-c", "echo 'out put'; echo problem >&2; exit 3")
    said = cli.json("ssh", *words, code=3)
    assert said["node"] == "worker-1"
    assert (said["stdout"], said["stderr"], said["exit_code"]) == ("out put\n", "problem\n", 3)


def test_files_and_folders_with_any_name_travel_both_ways(cli: Cli) -> None:
    """Whole, with empty folders, links and modes."""
    tree = cli.folder / "a tree"
    (tree / "sub dir" / "deep").mkdir(parents=True)
    (tree / "empty").mkdir()
    for name in NAMES:
        (tree / "sub dir" / "deep" / name).write_bytes(os.urandom(300_000))
    odd = tree / "sub dir" / "deep" / ODD
    odd.write_bytes(b"\0\1\2")
    cli("cp", odd.relative_to(cli.folder), f"worker-1:{ODD}")
    cli("cp", f"worker-1:{ODD}", f"./{ODD}")
    assert (cli.folder / ODD).read_bytes() == b"\0\1\2"
    cli("ssh", "worker-1", "--", "rm", "--", ODD)
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("run.sh")
    cli("cp", "a tree", "worker-2:copied")
    cli("cp", "worker-2:copied", "came back")
    assert _digest(cli.folder / "came back") == _digest(tree)
    cli("cp", "a tree", "worker-2:copied/")
    assert cli("ssh", "worker-2", "--", "ls", "copied/a tree/run.sh").code == 0
    cli("ssh", "worker-2", "--", "rm", "-rf", "copied")


def _digest(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "folder"
        else:
            mode = path.stat().st_mode & 0o111
            found[name] = f"{mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return found


def test_cp_refuses_what_makes_no_sense(cli: Cli) -> None:
    cli.script("file", "x")
    for words in (("launcher:no/such/file", "x"), ("file", "launcher:/proc/no/such/folder/x")):
        assert "→" in cli("cp", *words, code=2).err
    assert not (cli.folder / "x").exists()
    for words in (("file", "launcher:no/such/x"), ("launcher:.profile", "no/such/x")):
        assert "there is no folder" in cli("cp", *words, code=2).err
    assert cli("ssh", "launcher", "--", "ls", "no", code=2).code == 2
    said = cli("cp", "worker-1:no/such/file", ".", code=2)
    assert said.err.startswith("clusterctl: worker-1:no/such/file: no such file or folder\n")


def test_a_port_of_a_node_is_reached_from_here(cli: Cli) -> None:
    """A server that listens on the node alone, as TensorBoard does."""
    cli.script(
        "serves.py",
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "print(f'port={server.getsockname()[1]}', flush=True)\n"
        "while True:\n    server.accept()[0].sendall(b'hello')\n",
    )
    job = cli.start("run", "-n", "1", "serves.py")
    job.until("port=")
    there = job.out.partition("port=")[2].split()[0]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = taken.getsockname()[1]
        said = cli("forward", f"worker-1:{there}", "--port", str(here), code=2)
        assert f"port {here} of this machine" in said.err
    forward = cli.start("forward", f"worker-1:{there}", "--port", str(here))

    def hello() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", here), 5) as connection:
            return connection.recv(5) == b"hello"
        return False

    wait_for(hello, 20, "the server to answer")
    forward.interrupt()
    assert forward.wait().code == 130
    forward = cli.start("forward", f"worker-1:{there}", "--port", str(here))
    wait_for(hello, 20, "the server to answer")
    forward.process.send_signal(signal.SIGINT)  # as a script or a notebook does, to it alone
    assert forward.wait().code == 130
    assert not hello()
    assert "between 1 and 65535" in cli("forward", "worker-1:99999", code=2).err
    job.interrupt()
    job.wait()


def test_a_shell_on_a_terminal(cli: Cli) -> None:
    """`clusterctl ssh worker-1` is a real shell: it has a terminal."""
    options = next(
        line.split()[3]
        for line in Path("/proc/mounts").read_text().splitlines()
        if line.split()[1] == "/dev/pts"
    )
    if os.geteuid() != 0 and "gid=" not in options:
        pytest.skip(f"devpts has no gid: a terminal {NOT_ROOT}")
    ours, theirs = os.openpty()
    running = cli.start("ssh", "worker-1", prefix=("setsid", "--ctty"), stdin=theirs)
    os.close(theirs)
    os.write(ours, b"tty; echo on-$((40 + 2)); exit 5\n")
    wait_for(lambda: running.process.poll() is not None, 20, "the shell to end")
    os.close(ours)
    done = running.wait()
    assert done.code == 5
    assert "on-42" in done.out
    assert "/dev/pts/" in done.out


def test_relative_paths_are_of_the_nodes_own_home(cli: Cli) -> None:
    """Local nodes share this machine's accounts, but not their homes."""
    own = cli("ssh", "worker-1", "--", "pwd").out.strip()
    assert own == cli("ssh", "worker-1", "--", "echo $HOME").out.strip()
    assert own != cli("ssh", "worker-2", "--", "pwd").out.strip()
    (cli.folder / "note").write_text("here")
    cli("cp", "note", "worker-1:")
    cli("cp", "note", "worker-1:renamed")
    assert cli("ssh", "worker-1", "--", f"cat {own}/note {own}/renamed").out == "herehere"
    cli("cp", "worker-1:renamed", "back")
    (cli.folder / "into").mkdir()
    cli("cp", "worker-1:renamed", "into")
    for name in ("back", "into/renamed"):
        assert (cli.folder / name).read_text() == "here"
    cli("ssh", "worker-1", "--", "rm note renamed")

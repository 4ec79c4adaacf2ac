"""known_hosts, folding, command lines, ssh_config: text in, value out."""

from __future__ import annotations

import base64
import shlex
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from clusterctl.core import assets
from clusterctl.core import keys as core_keys
from clusterctl.core.clock import Deadline
from clusterctl.core.model import NodeResult, fold, shorten
from clusterctl.transport import protocol
from tests.unit.tables import rows


def test_a_deadline_is_enforced() -> None:
    aborted: list[str] = []

    def hang(name: str, seconds: float) -> None:
        done = threading.Event()
        with Deadline(seconds).enforce(lambda: (aborted.append(name), done.set())):
            assert done.wait(30)

    with Deadline(300).enforce(lambda: aborted.append("never")):
        hang("late", 0.1)
        with Deadline(0.1).enforce(lambda: aborted.append("in time")):
            pass
        hang("later", 0.15)
    assert aborted == ["late", "later"]


KEY = base64.b64encode(b"one").decode()
OTHER = base64.b64encode(b"two").decode()


@rows("line, name, found", "pure.known_hosts_line")
def test_known_hosts_line(line: str, name: str, found: bool) -> None:
    keys = core_keys.find_keys(f"{line}\nlast ssh-ed25519 {OTHER}\n", [name, "last"])
    assert [key.blob for key in keys] == [b"one"] * found + [b"two"]


def test_known_hosts_keeps_all_keys_of_a_host() -> None:
    text = f"a ssh-ed25519 {KEY}\na ssh-ed25519 {OTHER}\n@revoked a ssh-rsa {KEY}\n"
    keys = core_keys.find_keys(text, ["a"])
    assert [(key.kind, key.blob, key.revoked) for key in keys] == [
        ("ssh-ed25519", b"one", False),
        ("ssh-ed25519", b"two", False),
        ("ssh-rsa", b"one", True),
    ]


def test_the_keys_of_a_host_are_those_of_all_files_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(f"# \xe9\n[h]:2222 ssh-rsa {KEY}\n".encode("latin-1"))
    (tmp_path / "b").write_text(f"h ssh-rsa {OTHER}\n")
    names = [core_keys.name_host("h", 22), core_keys.name_host("h", 2222)]
    found = core_keys.find_keys_in([tmp_path / "a", tmp_path / "none", tmp_path / "b"], names)
    assert names == ["h", "[h]:2222"]
    assert [key.blob for key in found] == [b"one", b"two"]


def test_a_fingerprint_is_that_of_ssh_keygen() -> None:
    """GitHub's key, and the fingerprint that GitHub publishes."""
    blob = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    (key,) = core_keys.find_keys(f"github.com ssh-ed25519 {blob}", ["github.com"])
    assert (
        core_keys.compute_fingerprint(key.blob)
        == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
    )


def test_ranges() -> None:
    workers = [f"worker-{i}" for i in range(1, 64)]
    assert shorten(workers) == "worker-[1-63]"
    assert shorten(["launcher", *workers[:3], "worker-5"]) == "launcher,worker-[1-3,5]"
    assert shorten(["worker-1"]) == "worker-1"
    assert shorten(["worker-3", "worker-1", "worker-2", "worker-2"]) == "worker-[1-3]"
    assert shorten(["n08", "n09", "n10"]) == "n[08-10]"
    assert shorten(["n8", "n9", "n10"]) == "n[8-10]"
    assert shorten(["n1", "n01"]) == "n1,n01"
    assert shorten(["ip-10-0-0-7", "login"]) == "ip-10-0-0-7,login"
    assert shorten(["7", "8"]) == "[7-8]"


def result(node: str, **fields: object) -> NodeResult:
    return NodeResult(node=node, **{"exit_code": 0, **fields})  # type: ignore[arg-type]


def test_fold() -> None:
    results = [
        result("worker-1", stdout=b"5.0\n", seconds=1.0),
        result("worker-2", stdout=b"5.0\n", seconds=2.0),
        result("worker-3", exit_code=3, stderr=b"no such thing\n"),
        result("worker-4", exit_code=3, stderr=b"no such thing\n"),
        result("worker-5", exit_code=None, error="no answer within 10 s"),
        result("worker-6", stdout=b"two\nlines\n"),
        result("worker-7"),
        result("worker-8", exit_code=1),
    ]
    assert fold(results) == (
        "worker-[1-2]: 5.0",
        "worker-[3-4]: exit 3: no such thing",
        "worker-5: no answer within 10 s",
        "worker-6: \n  two\n  lines",
        "worker-7: ok",
        "worker-8: exit 1",
    )
    assert fold([]) == ()
    assert fold(result(f"worker-{i}") for i in range(1, 64)) == ("worker-[1-63]: ok",)


NASTY = "a'b \"c\" $HOME `id` \\ \\\\ \\' ! %s %% {x} é \t*\nsecond line \\n"


SHELLS = ["sh", *filter(shutil.which, ["dash", "bash", "zsh", "fish", "csh", "tcsh"])]


@pytest.mark.parametrize("login_shell", SHELLS)
@pytest.mark.parametrize("text", [NASTY, NASTY.replace("\n", ""), "plain ' \" $HOME text", "é"])
def test_a_command_reaches_sh_through_any_shell(login_shell: str, text: str) -> None:
    """From here, and from a node, as scripts there hand it on to another host."""
    command = f"printf '[%s]' {shlex.quote(text)}"
    ours = protocol.wrap_command(command)
    assert not any(char in ours for char in "\n!") or "\\0" in ours
    script = assets.render("transport/wrap.sh.j2") + 'wrap "$1"\nprintf %s "$wrapped"\n'
    made = subprocess.run(["sh", "-c", script, "sh", command], capture_output=True, text=True)
    for wrapped in (ours, made.stdout):
        done = subprocess.run([login_shell, "-c", wrapped], capture_output=True, text=True)
        assert done.stdout == f"[{text}]"


KINDS_OF_SH = ["sh", "bash --posix", "zsh --emulate sh"]


@pytest.mark.parametrize("shell", [one for one in KINDS_OF_SH if shutil.which(one.split()[0])])
def test_each_sh_hands_a_command_on_alike(shell: str) -> None:
    script = assets.render("transport/wrap.sh.j2") + 'wrap "$1"\nprintf %s "$wrapped"\n'
    for text in ("", "'", "it's", "'a' * ''", "a  b "):
        argv = [*shell.split(), "-c", script, "sh", text]
        made = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert shlex.split(made) == ["exec", "/bin/sh", "-c", text]


def test_paths_are_no_options() -> None:
    assert protocol.quote_path("-rf") == "./-rf"
    assert protocol.quote_path("/a b") == "'/a b'"
    assert protocol.quote_path("") == "./"

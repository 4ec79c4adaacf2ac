"""The ssh configurations that are rendered, as OpenSSH itself understands them."""

from __future__ import annotations

import os
import random
import subprocess
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions import access
from clusterctl.actions.common import mend_known_hosts, open_store, write_known_hosts
from clusterctl.core import assets, keys
from clusterctl.core.model import Phase, Role
from clusterctl.errors import UsageError
from clusterctl.state.home import Home
from clusterctl.state.store import Store
from tests.conftest import Need
from tests.unit.calling import Call
from tests.unit.making import cluster, node

NODES = cluster(
    node("launcher", "10.0.0.10"),
    node("worker-1", "10.0.0.11", via="launcher"),
    node("worker-2", "10.0.0.12", job_port=2222),
)
CONFIGS = {
    "ours": lambda: assets.render("client/ssh_config.j2", cluster=NODES, tunnels={}),
    "between nodes": lambda: assets.render("bootstrap/ssh_config.j2", nodes=NODES.nodes),
    "attached": lambda: assets.render("client/attached_config.j2", cluster=NODES, home="/none"),
}


def effective(need: Need, config: Path, name: str) -> dict[str, str]:
    """What `ssh NAME` would do, by option."""
    argv = [need("ssh"), "-G", "-F", str(config), name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, cwd=config.parent)
    assert done.returncode == 0, done.stderr
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {option: value for option, _, value in pairs}


@pytest.mark.parametrize("which", CONFIGS)
@pytest.mark.parametrize("name", ["launcher", "worker-1", "10.0.0.12"])
def test_an_unknown_or_changed_host_key_is_refused(
    which: str, name: str, need: Need, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(CONFIGS[which]())
    options = effective(need, config, name)
    assert options["stricthostkeychecking"] == "true"
    assert options["userknownhostsfile"].split()[0] == "./known_hosts"
    assert options.get("verifyhostkeydns", "false") == "false"
    assert options.get("nohostauthenticationforlocalhost", "no") == "no"
    if which != "attached":
        assert options["globalknownhostsfile"] == "none", "only the keys that we were told"
        assert os.path.basename(options["identityfile"]) in ("user", "mesh")


def test_a_host_of_ones_own_is_called_as_ones_own_ssh_config_calls_it(
    need: Need, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alias, with all that is known of it: for a shell, a forwarded port, a batch system."""
    (tmp_path / ".ssh").mkdir()
    own = "Host hpc\n HostName 10.9.9.9\n Port 2200\n ProxyJump gate\n"
    (tmp_path / ".ssh" / "config").write_text(f"{own} UserKnownHostsFile /tmp/mine\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    login = replace(node("login", "hpc", role=Role.LOGIN), ssh_port=0, user="me")
    hosts = cluster(replace(node("launcher", "hpc"), ssh_port=2201), node("worker-1", "10.0.0.11"))
    store = Store(Home(tmp_path / "state"))
    for made, port in ((replace(cluster(login), identity=""), 2200), (hosts, 2201)):
        made = replace(made, identity="")
        store.save(made)
        (store.locate_folder("lab") / "ssh").mkdir(exist_ok=True)
        access.write_config(store, made)
        config = store.locate_folder(made.name) / "ssh"
        for argv in (
            access.make_ssh_argv(made, None, ["true"])[:-1],
            access.make_forward_argv(made, ":6006", 0)[0],
            access.start_ssh(made, made.launcher, "-t"),
        ):
            argv[0:1] = [need("ssh"), "-G"]
            said = subprocess.run(argv, capture_output=True, text=True, timeout=20, cwd=config)
            options = dict(line.split(" ", 1) for line in said.stdout.splitlines())
            assert (options["hostname"], options["port"]) == ("10.9.9.9", str(port)), said
            assert (options["proxyjump"], options["user"]) == ("gate", made.launcher.user)
            assert options["userknownhostsfile"] == "/tmp/mine"
            assert options["stricthostkeychecking"] == "true"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Of a person whose folder has an odd name, with a cluster `lab`."""
    store = Store(Home(tmp_path / "50% of it" / "state"))
    store.save(replace(NODES, identity=None))
    (store.locate_folder("lab") / "ssh").mkdir()
    assert access.refresh(store) == ("lab-launcher", "lab-worker-1", "lab-worker-2")
    return store


KEYS = {node.name: keys.generate().public for node in NODES.nodes}


def shown(file: Path) -> dict[str, list[str]]:
    """The keys that nodes may show, as our own SSH reads the file."""
    text = file.read_text(errors="replace")
    return {
        node.name: [
            f"{key.kind} {b64encode(key.blob).decode()}"
            for key in keys.find_keys(text, [node.address])
        ]
        for node in NODES.nodes
    }


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda whole: None,
    "emptied": lambda whole: b"",
    "zeros": lambda whole: bytes(len(whole)),
    "noise": lambda whole: random.Random(0).randbytes(len(whole)),
    "cut off": lambda whole: whole[:-30],
    "of another key": lambda whole: whole.replace(b"AAAA", b"AAAB", 1),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_known_hosts_is_mended_from_the_record(how: str, store: Store) -> None:
    made = write_known_hosts(store, replace(NODES, phase=Phase.READY), KEYS)
    file = store.locate_folder("lab") / "ssh" / "known_hosts"
    assert shown(file) == {name: [key] for name, key in KEYS.items()}
    damaged = DAMAGE[how](file.read_bytes())
    file.unlink() if damaged is None else file.write_bytes(damaged)
    making = replace(made, phase=Phase.CREATING)
    mend_known_hosts(store, making)
    now = file.read_bytes() if file.exists() else None
    assert now == damaged, "while `up` writes it, nobody else does"
    mend_known_hosts(store, made)
    assert shown(file) == {name: [key] for name, key in KEYS.items()}


def test_plain_ssh_knows_the_nodes(store: Store, need: Need, tmp_path: Path) -> None:
    config = tmp_path / "home" / ".ssh" / "config"
    assert access.install(store, config)
    options = effective(need, config, "lab-worker-1")
    assert (options["hostname"], options["proxyjump"]) == ("10.0.0.11", "lab-launcher")
    identity = options["identityfile"].replace("%%", "%")  # shown as it is before ssh reads it
    assert identity == str(store.locate_folder("lab") / "ssh" / "user")
    assert options["stricthostkeychecking"] == "true"
    assert options["globalknownhostsfile"] == "none"
    known_hosts = options["userknownhostsfile"].replace("%%", "%")
    assert known_hosts == str(store.locate_folder("lab") / "ssh" / "known_hosts")
    assert effective(need, config, "worker-1")["hostname"] == "worker-1", "not the name alone"
    (store.locate_folder("lab") / "ssh" / "hosts").unlink()  # as `down` does
    assert effective(need, config, "lab-worker-1")["hostname"] == "lab-worker-1"


def test_the_users_ssh_config_keeps_what_it_has(store: Store, tmp_path: Path) -> None:
    mine = tmp_path / "dotfiles"
    mine.write_bytes(b"Host gpu\n    User me\n# caf\xe9\n")
    mine.chmod(0o640)
    config = tmp_path / "config"
    config.symlink_to(mine)
    assert access.install(store, config)
    assert not access.install(store, config)
    first, second, *rest = mine.read_bytes().splitlines()
    assert (first, second) == (access.MARK.encode(), access.include(store).encode())
    assert rest == [b"Host gpu", b"    User me", b"# caf\xe9"]
    assert config.is_symlink()
    assert mine.stat().st_mode & 0o777 == 0o640
    elsewhere = Store(Home(tmp_path / "elsewhere"))
    assert access.install(elsewhere, config)
    assert access.include(store).encode() not in mine.read_bytes()
    assert access.uninstall(config)
    assert not access.uninstall(config)
    assert mine.read_bytes() == b"Host gpu\n    User me\n# caf\xe9\n"


def test_a_folder_that_ssh_cannot_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"contains '\*'"):
        access.include(Store(Home(tmp_path / "a*b")))


def test_a_config_that_cannot_be_written(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be"):
        access.install(store, tmp_path / "file" / "config")


# -------------------------------------------------------------------------------------------------
# `ssh`: which words are ours and which are the command's.


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

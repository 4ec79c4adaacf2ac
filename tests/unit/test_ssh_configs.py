"""The ssh configurations that are rendered, as OpenSSH itself understands them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl import assets
from clusterctl.actions import ssh_config
from clusterctl.errors import UsageError
from clusterctl.state import Store
from clusterctl.state.home import Home
from tests.conftest import Need
from tests.unit.making import cluster, node

NODES = cluster(
    node("launcher", "10.0.0.10"),
    node("worker-1", "10.0.0.11", via="launcher"),
    node("worker-2", "10.0.0.12", job_port=2222),
)
CONFIGS = {
    "ours": lambda: assets.render("client/ssh_config.j2", cluster=NODES),
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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Of a person whose folder has an odd name, with a cluster `lab`."""
    store = Store(Home(tmp_path / "50% of it" / "state"))
    store.save(replace(NODES, identity=None))
    (store.folder("lab") / "ssh").mkdir()
    assert ssh_config.refresh(store) == ("lab-launcher", "lab-worker-1", "lab-worker-2")
    return store


def test_plain_ssh_knows_the_nodes(store: Store, need: Need, tmp_path: Path) -> None:
    config = tmp_path / "home" / ".ssh" / "config"
    assert ssh_config.install(store, config)
    options = effective(need, config, "lab-worker-1")
    assert (options["hostname"], options["proxyjump"]) == ("10.0.0.11", "lab-launcher")
    identity = options["identityfile"].replace("%%", "%")  # shown as it is before ssh reads it
    assert identity == str(store.folder("lab") / "ssh" / "user")
    assert options["stricthostkeychecking"] == "true"
    assert options["globalknownhostsfile"] == "none"
    known_hosts = options["userknownhostsfile"].replace("%%", "%")
    assert known_hosts == str(store.folder("lab") / "ssh" / "known_hosts")
    assert effective(need, config, "worker-1")["hostname"] == "worker-1", "not the name alone"
    (store.folder("lab") / "ssh" / "hosts").unlink()  # as `down` does
    assert effective(need, config, "lab-worker-1")["hostname"] == "lab-worker-1"


def test_the_users_ssh_config_keeps_what_it_has(store: Store, tmp_path: Path) -> None:
    mine = tmp_path / "dotfiles"
    mine.write_bytes(b"Host gpu\n    User me\n# caf\xe9\n")
    mine.chmod(0o640)
    config = tmp_path / "config"
    config.symlink_to(mine)
    assert ssh_config.install(store, config)
    assert not ssh_config.install(store, config)
    first, second, *rest = mine.read_bytes().splitlines()
    assert (first, second) == (ssh_config.MARK.encode(), ssh_config.include(store).encode())
    assert rest == [b"Host gpu", b"    User me", b"# caf\xe9"]
    assert config.is_symlink()
    assert mine.stat().st_mode & 0o777 == 0o640
    elsewhere = Store(Home(tmp_path / "elsewhere"))
    assert ssh_config.install(elsewhere, config)
    assert ssh_config.include(store).encode() not in mine.read_bytes()
    assert ssh_config.uninstall(config)
    assert not ssh_config.uninstall(config)
    assert mine.read_bytes() == b"Host gpu\n    User me\n# caf\xe9\n"


def test_a_folder_that_ssh_cannot_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"contains '\*'"):
        ssh_config.include(Store(Home(tmp_path / "a*b")))


def test_a_config_that_cannot_be_written(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be"):
        ssh_config.install(store, tmp_path / "file" / "config")

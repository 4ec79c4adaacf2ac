"""What decides, without a process or a root: names, subnets, texts, phrases."""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import ExitStack
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from clusterctl.core.model import ClusterSpec, NodeGroup
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import networks
from clusterctl.machines.local import layout, nodes
from clusterctl.machines.local.layout import Server
from clusterctl.machines.local.provider import LocalProvider
from tests.local.lab import cluster, folder_of
from tests.unit.tables import read_rows, rows


@rows("keep, expected", "decisions.what_nodes_do_not_see")
def test_what_nodes_do_not_see(keep: list[str], expected: str) -> None:
    folder = Path("/home/u/.local/state/clusterctl/clusters/demo")
    assert layout.find_hidden(folder, map(Path, keep)) == Path(expected)


def test_a_folder_that_cannot_be_hidden_is_refused() -> None:
    with pytest.raises(UsageError, match="contains files that its nodes need"):
        layout.find_hidden(Path("/a/b/c"), [Path("/a/b/c/python")])


@pytest.mark.parametrize("path", ["/a\nb", "/a\x00b", "/a\x7f", "/a\udc80"])
def test_paths_that_sshd_cannot_read_are_refused(path: str) -> None:
    with pytest.raises(UsageError):
        layout.make_site("id", Path(path))


def test_candidates_are_all_of_the_pool_and_start_by_id() -> None:
    first = list(networks.list_candidates("one"))
    assert len(set(first)) == 512
    assert all(subnet.subnet_of(IPv4Network("198.18.0.0/15")) for subnet in first)
    assert list(networks.list_candidates("one")) == first
    assert next(networks.list_candidates("two")) != first[0]


ADDRESSES = json.dumps(
    [
        {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
        {"ifname": "docker0", "addr_info": [{"local": "198.18.5.1", "prefixlen": 24}]},
        {"ifname": "cctl-mine", "addr_info": [{"local": "198.18.9.254", "prefixlen": 24}]},
        {"ifname": "eth1"},
    ]
)
ROUTES = json.dumps(
    [
        {"dst": "default", "dev": "eth0"},
        {"dst": "0.0.0.0/1", "dev": "tun0"},
        {"dst": "198.19.0.0/16", "dev": "tun0"},
        {"type": "local", "dst": "198.18.77.3", "dev": "eth0", "table": "local"},
    ]
)


def test_networks_in_use() -> None:
    busy = networks.parse_taken(ADDRESSES, ROUTES)
    free = [s for s in networks.list_candidates("x") if not any(s.overlaps(b) for b in busy)]
    assert len(free) == 256 - 3
    missing = {IPv4Network(f"198.18.{third}.0/24") for third in (5, 9, 77)}
    assert not missing & set(free)
    assert networks.parse_taken("", "") == ()


def test_a_claim_excludes_others_until_it_ends() -> None:
    """Clusters that other tests start may hold some of the subnets."""
    with ExitStack() as mine, ExitStack() as theirs:
        first = networks.claim("claimed", lambda: (), mine)
        second = networks.claim("claimed", lambda: (), theirs)
        assert first != second
    with ExitStack() as later:
        assert networks.claim("claimed", lambda: (second,), later) == first


def test_a_rival_that_has_just_finished_is_seen_under_the_claim() -> None:
    with ExitStack() as free:
        first = networks.claim("rival", lambda: (), free)
    with ExitStack() as stack:
        assert networks.claim("rival", lambda: (first,), stack) != first


def test_no_subnet_left() -> None:
    with ExitStack() as stack, pytest.raises(ProviderError, match="overlaps") as error:
        networks.claim("x", lambda: (networks.POOL,), stack)
    assert "CLUSTERCTL_LOCAL_MODE=loopback" in error.value.hint


def test_hosts_give_every_node_its_real_address() -> None:
    text = nodes.render_hosts({"launcher": "198.18.5.1", "worker-1": "198.18.5.2"})
    assert [line.split() for line in text.splitlines()] == [
        ["127.0.0.1", "localhost"],
        ["::1", "localhost", "ip6-localhost"],
        ["198.18.5.1", "launcher"],
        ["::ffff:198.18.5.1", "launcher"],
        ["198.18.5.2", "worker-1"],
        ["::ffff:198.18.5.2", "worker-1"],
    ]


@rows("text, expected", "decisions.versions_of_sshd")
def test_versions_of_sshd(text: str, expected: list[int]) -> None:
    assert layout.parse_version(text) == tuple(expected)


def test_the_configuration_is_strict(tmp_path: Path) -> None:
    site = layout.make_site("the-id", tmp_path / 'a "b" 100%')
    place = site.locate("worker-1")
    place.etc.mkdir(parents=True)
    place.authorized_keys.touch()
    listen = (("198.18.5.2", 22), ("127.0.0.1", 22))
    lines = layout.render_config(
        place, site.make_tag("worker-1"), listen, Server("", (9, 2), "a@b")
    ).splitlines()
    for expected in read_rows("decisions", "the_configuration_is_strict"):
        assert expected in lines
    keys = [line for line in lines if line.startswith("AuthorizedKeysFile")]
    assert keys[0].endswith(r'/a \"b\" 100%%/nodes/worker-1/etc/authorized_keys"')
    assert sum(line.startswith("SetEnv") for line in lines) == 1
    assert not any("PerSourcePenalties" in line for line in lines)
    newer = layout.render_config(place, "", listen, Server("", (9, 8), "a"))
    assert "\nPerSourcePenalties no\n" in newer
    assert "-r" in Server("sshd", (9, 7), "a").build_command(place.config)
    assert "-r" not in Server("sshd", (9, 8), "a").build_command(place.config)
    place.config.write_text("\n".join(lines))
    assert layout.read_endpoint(place) == ("198.18.5.2", 22)


def test_strict_modes_needs_a_path_that_no_one_else_can_change(tmp_path: Path) -> None:
    safe = [Path("/etc/passwd"), Path("/usr/bin/env")]
    assert all(layout.is_safe(path, 0) for path in safe)
    assert not layout.is_safe(tmp_path, 0)  # below /tmp


SHADOW = "root:!$6$hash:19000:0:99999:7:::\nsshd:!:19000::::::\nu:$6$x:19000:0:99999:7:::\n"


def test_accounts_are_unlocked_without_their_hashes(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text(SHADOW)
    assert layout.is_locked("root", tmp_path / "shadow")
    assert not layout.is_locked("u", tmp_path / "shadow")
    assert not layout.is_locked("u", tmp_path / "nothing")
    text = layout.unlock_shadow(SHADOW)
    assert text.splitlines()[0] == "root:*:19000:0:99999:7:::"
    assert "$6$" not in text
    assert "!" not in text


def test_no_sshd_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(layout, "SEARCH", str(tmp_path))
    with pytest.raises(ProviderError, match="sshd is not installed") as error:
        layout.find_server()
    assert "apt-get install openssh-server" in error.value.hint


def test_another_system_than_linux_says_what_is_possible_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(
        ProviderError, match="local clusters need Linux, and this is macOS"
    ) as error:
        LocalProvider().plan(
            ClusterSpec(name="lab", provider="local", groups=(NodeGroup(count=2, family="cpu"),))
        )
    assert "clusterctl attach" in error.value.hint


def test_the_mode_can_be_forced() -> None:
    mode = nodes.choose_mode({"CLUSTERCTL_LOCAL_MODE": "loopback"})
    assert (mode.name, mode.reason) == ("loopback", "CLUSTERCTL_LOCAL_MODE=loopback")
    with pytest.raises(UsageError, match="'bridge'"):
        nodes.choose_mode({"CLUSTERCTL_LOCAL_MODE": "bridge"})


def test_a_removal_that_takes_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    remove = shutil.rmtree

    def remove_slowly(path: Path) -> None:
        limit = time.monotonic() + 10.0
        while not said and time.monotonic() < limit:
            time.sleep(0.01)
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", remove_slowly)
    folder = folder_of(tmp_path)
    (folder / "nodes" / "worker-1").mkdir(parents=True)
    LocalProvider().destroy(cluster("c-1", 1, ""), folder, said.append)
    assert said[0] == "removing the files of the nodes"
    assert len(said) == 2
    assert not (folder / "nodes").exists()

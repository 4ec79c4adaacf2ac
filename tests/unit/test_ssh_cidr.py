"""From which networks a cluster on EC2 lets in SSH, and how our address is found out."""

from __future__ import annotations

import socket
from itertools import repeat

import pytest

from clusterctl.errors import UsageError
from clusterctl.machines.ec2 import network as ec2_network
from tests.unit.answering import answering
from tests.unit.tables import rows


def fail_to_ask() -> str:
    raise OSError("no network")


@rows(
    "said, remembered, answer, network, line",
    "ssh_cidr.ssh_is_open_to_one_address_unless_more_is_asked_for",
)
def test_ssh_is_open_to_one_address_unless_more_is_asked_for(
    said: str, remembered: str, answer: str | None, network: str, line: str
) -> None:
    ask = (lambda: answer) if answer else fail_to_ask
    found, told = ec2_network.resolve_ssh_cidr(said, remembered, ask)
    assert found == network
    assert network in told
    assert line in told
    assert ("the whole internet" in told) == ("0.0.0.0/0" in network)


def test_nobody_is_let_in_where_our_address_is_not_known() -> None:
    with pytest.raises(UsageError, match="did not return this machine's public address") as caught:
        ec2_network.resolve_ssh_cidr("", "", fail_to_ask)
    assert "--ssh-cidr" in caught.value.hint


@pytest.mark.parametrize("said", ["home", "10.0.0.0/33", "10.0.0.1/8/8", "2001:db8::7", "::/0"])
def test_a_network_is_one_of_ipv4(said: str) -> None:
    """AWS takes another argument for IPv6, and `2001:db8::7/32` is not one address."""
    with pytest.raises(UsageError, match=r"--ssh-cidr .* is not an? (IPv4 )?network") as caught:
        ec2_network.resolve_ssh_cidr(said, "", lambda: "203.0.113.7")
    assert caught.value.hint


@rows("body, address, why", "ssh_cidr.our_address_is_one_ipv4_address")
def test_our_address_is_one_ipv4_address(
    body: str, address: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`2001:db8::7/32` would be the network of a whole provider."""
    with answering(repeat(body.encode())) as place:
        monkeypatch.setattr(ec2_network, "WHO_AM_I", place)
        if address:
            assert ec2_network.ask_my_address() == address
            return
        with pytest.raises(ValueError, match=why):
            ec2_network.ask_my_address()


def test_our_address_is_not_that_of_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """SSH would not come from there. Where nothing else answers, a proxy is better than nobody."""
    monkeypatch.setattr(ec2_network, "LIMIT", 5.0)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with (
        answering(repeat(b"203.0.113.7")) as place,
        answering(repeat(b"198.51.100.1")) as proxy,
        socket.socket() as closed,
    ):
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setattr(ec2_network, "WHO_AM_I", place)
        assert ec2_network.ask_my_address() == "203.0.113.7"
        monkeypatch.setattr(ec2_network, "WHO_AM_I", f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert ec2_network.ask_my_address() == "198.51.100.1"
        monkeypatch.delenv("http_proxy")
        with pytest.raises(OSError, match="refused"):
            ec2_network.ask_my_address()


def test_our_address_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(ec2_network, "WHO_AM_I", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(ec2_network, "LIMIT", 0.05)
        with pytest.raises(OSError, match="timed out"):
            ec2_network.ask_my_address()

"""Which network, among those that the nodes have."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest

from clusterctl.core.model import Node
from clusterctl.errors import LaunchError
from clusterctl.launch import network
from tests.unit.making import node
from tests.unit.tables import read_rows

DOCKER0 = "docker0 172.17.0.1/16"


def nodes(*rows: tuple[str, list[str]]) -> list[Node]:
    return [
        node(f"worker-{index + 1}", address, interfaces=interfaces)
        for index, (address, interfaces) in enumerate(rows)
    ]


@pytest.mark.parametrize("case", read_rows("networks", "solved"), ids=itemgetter("id"))
def test_the_network(case: dict[str, Any]) -> None:
    found = network.solve(nodes(*case["rows"]))
    assert list(found.cidrs) == case["cidrs"]
    assert list(found.devices.values()) == case["devices"]
    assert case["why"] in found.reason


@pytest.mark.parametrize("case", read_rows("networks", "unsolved"), ids=itemgetter("id"))
def test_no_network_names_the_nodes(case: dict[str, Any]) -> None:
    with pytest.raises(LaunchError) as caught:
        network.solve(nodes(*case["rows"]))
    assert "worker-1" in caught.value.message
    assert "worker-2" in caught.value.message
    assert caught.value.hint


def test_the_answer_does_not_depend_on_the_order() -> None:
    made = nodes(
        ("10.0.0.1", [DOCKER0, "eth0 10.0.0.1/24", "ib0 10.9.0.1/24"]),
        ("10.0.0.2", ["ib0 10.9.0.2/24", "eth0 10.0.0.2/24", DOCKER0]),
        ("10.0.0.3", ["eth0 10.0.0.3/24", DOCKER0, "ib0 10.9.0.3/24"]),
    )
    answers = [network.solve(order) for order in (made, made[::-1], made[1:] + made[:1])]
    assert len({answer.cidrs for answer in answers}) == 1
    assert all(answer.devices == answers[0].devices for answer in answers)


def test_every_library_is_told_the_same() -> None:
    found = network.solve(
        nodes(("10.0.0.1", ["ens5 10.0.0.1/24"]), ("10.0.0.2", ["eth1 10.0.0.2/24"]))
    )
    for name, device in {"worker-1": "ens5", "worker-2": "eth1"}.items():
        assert found.build_node_env()[name] == {
            "GLOO_SOCKET_IFNAME": device,
            "TP_SOCKET_IFNAME": device,
            "NCCL_SOCKET_IFNAME": f"={device}",  # the whole name: eth1 is not eth10
            "UCX_NET_DEVICES": device,
        }
    [reason] = found.explain_reasons()
    assert all(name in reason.item for name in found.build_node_env()["worker-1"])
    assert "ens5 on worker-1" in reason.why


def test_one_host() -> None:
    found = network.use_loopback(nodes(("10.0.0.1", [DOCKER0]), ("10.0.0.2", [])))
    assert found.cidrs == ("127.0.0.0/8",)
    assert set(found.devices.values()) == {"lo"}


@pytest.mark.parametrize("second", ["", " among"])
def test_a_device_with_several_addresses_is_noticed(second: str) -> None:
    rows = [("10.0.0.1", ["eth0 10.0.0.1/24"]), ("10.0.0.2", [f"eth0 10.0.0.2/24{second}"])]
    assert network.solve(nodes(*rows)).alone is not bool(second)

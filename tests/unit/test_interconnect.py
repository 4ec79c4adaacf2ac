"""Which network, among those that the nodes have."""

from __future__ import annotations

import pytest

from clusterctl.core.model import Node
from clusterctl.errors import LaunchError
from clusterctl.launch import network
from tests.unit.making import node

DOCKER0 = "docker0 172.17.0.1/16"
VIRBR0 = "virbr0 192.168.122.1/24"


def nodes(*rows: tuple[str, list[str]]) -> list[Node]:
    return [
        node(f"worker-{index + 1}", address, interfaces=interfaces)
        for index, (address, interfaces) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("rows", "cidrs", "devices", "why"),
    [
        pytest.param(
            [("10.0.0.1", ["eth0 10.0.0.1/24"]), ("10.0.0.2", ["eth0 10.0.0.2/24"])],
            ["10.0.0.0/24"],
            ["eth0", "eth0"],
            "private addresses",
            id="one network",
        ),
        pytest.param(
            [
                ("10.0.0.1", [DOCKER0, VIRBR0, "eth0 10.0.0.1/24"]),
                ("10.0.0.2", [DOCKER0, VIRBR0, "eth0 10.0.0.2/24"]),
            ],
            ["10.0.0.0/24"],
            ["eth0", "eth0"],
            "private addresses",
            id="docker0 and virbr0 lead nowhere",
        ),
        pytest.param(
            [
                ("10.0.0.1", ["ens5 10.0.0.1/24", DOCKER0]),
                ("10.0.0.2", ["enp0s3 10.0.0.2/24", DOCKER0]),
                ("10.0.0.3", ["bond0 10.0.0.3/24"]),
            ],
            ["10.0.0.0/24"],
            ["ens5", "enp0s3", "bond0"],
            "private addresses",
            id="unlike device names",
        ),
        pytest.param(
            [
                ("10.0.0.1", ["eth0 10.0.0.1/24", "ib0 10.9.0.1/25"]),
                ("10.0.0.2", ["eth0 10.0.0.2/24", "ib0 10.9.0.2/25"]),
            ],
            ["10.0.0.0/24"],
            ["eth0", "eth0"],
            "private addresses",
            id="two shared subnets: the private addresses decide",
        ),
        pytest.param(
            [
                ("1.2.3.4", ["eth0 10.0.0.1/16", "ib0 10.9.0.1/25"]),
                ("1.2.3.5", ["eth0 10.0.0.2/16", "ib0 10.9.0.2/25"]),
            ],
            ["10.9.0.0/25"],
            ["ib0", "ib0"],
            "all nodes share",
            id="two shared subnets, neither holds them: the longest prefix",
        ),
        pytest.param(
            [("10.0.1.5", ["eth0 10.0.1.5/24"]), ("10.0.2.5", ["eth0 10.0.2.5/24"])],
            ["10.0.1.0/24", "10.0.2.0/24"],
            ["eth0", "eth0"],
            "routed",
            id="routed subnets",
        ),
        pytest.param(
            [("10.0.0.2", ["ens4 10.0.0.2/32"]), ("10.0.0.3", ["ens4 10.0.0.3/32"])],
            ["10.0.0.2/32", "10.0.0.3/32"],
            ["ens4", "ens4"],
            "routed",
            id="every address is a network of its own",
        ),
        pytest.param(
            [
                ("10.0.1.5", [DOCKER0, "eth0 10.0.1.5/24"]),
                ("10.0.2.5", [DOCKER0, "eth0 10.0.2.5/24"]),
            ],
            ["10.0.1.0/24", "10.0.2.0/24"],
            ["eth0", "eth0"],
            "routed",
            id="routed subnets beside docker0",
        ),
        pytest.param(
            [
                ("10.0.0.1", ["eth0 10.0.0.1/24", "eth1 10.0.0.101/24"]),
                ("10.0.0.2", ["eth1 10.0.0.102/24", "eth0 10.0.0.2/24"]),
            ],
            ["10.0.0.0/24"],
            ["eth0", "eth0"],
            "private addresses",
            id="two devices in one subnet",
        ),
        pytest.param(
            [
                ("1.2.3.4", ["tun0 10.8.0.1/24", "eth0 10.0.0.1/24 down"]),
                ("1.2.3.5", ["tun0 10.8.0.2/24", "eth0 10.0.0.2/24"]),
            ],
            ["10.8.0.0/24"],
            ["tun0", "tun0"],
            "all nodes share",
            id="a link that is down does not count",
        ),
        pytest.param(
            [("10.0.0.1", [DOCKER0, "eth0 10.0.0.1/24"])],
            ["10.0.0.0/24"],
            ["eth0"],
            "private addresses",
            id="one node",
        ),
    ],
)
def test_the_network(
    rows: list[tuple[str, list[str]]], cidrs: list[str], devices: list[str], why: str
) -> None:
    found = network.solve(nodes(*rows))
    assert list(found.cidrs) == cidrs
    assert list(found.devices.values()) == devices
    assert why in found.reason


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([("1.2.3.4", [DOCKER0]), ("1.2.3.5", [DOCKER0])], id="docker0 alone"),
        pytest.param(
            [("1.2.3.4", ["eth0 10.0.1.5/24"]), ("1.2.3.5", ["eth0 10.0.2.5/24"])], id="none shared"
        ),
        pytest.param(
            [("10.0.0.1", ["eth0 10.0.0.1/24"]), ("10.0.0.2", ["eth0 10.0.0.2/24 down"])],
            id="one link is down",
        ),
        pytest.param([("10.0.0.1", []), ("10.0.0.2", ["eth0 10.0.0.2/24"])], id="loopback only"),
        pytest.param(
            [("127.0.1.1", ["lo 127.0.1.1/8"]), ("127.0.1.2", ["lo 127.0.1.2/8"])],
            id="loopback leads nowhere",
        ),
        pytest.param(
            [("10.0.0.9", ["eth0 10.0.0.9/24"]), ("10.0.1.1", ["eth0 10.0.0.9/24"])],
            id="one address twice",
        ),
    ],
)
def test_no_network_names_the_nodes(rows: list[tuple[str, list[str]]]) -> None:
    with pytest.raises(LaunchError) as caught:
        network.solve(nodes(*rows))
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

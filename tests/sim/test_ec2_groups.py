"""Security groups let in what their rules say, and nothing else."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import pytest

from tests.sim.ec2.network import YOU
from tests.sim.lab import Lab

pytestmark = [pytest.mark.all, pytest.mark.netns, pytest.mark.sshd]

SERVES = "import socket, time; s = socket.create_server(('', {})); time.sleep(600)"


def tcp(first: int, last: int, **source: Any) -> dict[str, Any]:
    return {"IpProtocol": "tcp", "FromPort": first, "ToPort": last, **source}


def networks(*cidrs: str) -> dict[str, Any]:
    return {"IpRanges": [{"CidrIp": cidr} for cidr in cidrs]}


def card(lab: Lab, *groups: str) -> list[dict[str, Any]]:
    where = {"SubnetId": lab.subnet, "AssociatePublicIpAddress": True}
    return [{"DeviceIndex": 0, **where, "Groups": list(groups)}]


def answers(lab: Lab, name: str, port: int = 22) -> bool:
    address = lab.ec2.machine(name).public
    assert address
    try:
        socket.create_connection((address, port), timeout=0.5).close()
    except TimeoutError:
        return False
    return True


def reaches(lab: Lab, name: str, address: str | None, port: int) -> bool:
    script = f"import socket; socket.create_connection(({address!r}, {port}), 0.5)"
    return lab.ec2.machine(name).run("python3", "-c", script).returncode == 0


def test_a_rule_opens_ports_to_a_network_and_closes_them_again(lab: Lab) -> None:
    group = lab.group("g")
    lab.launch("one", NetworkInterfaces=card(lab, group))
    lab.ec2.wait(1)
    assert not answers(lab, "one"), "no rule"
    for wrong in (
        tcp(22, 22, **networks("203.0.113.8/31", "10.77.0.0/16")),
        tcp(23, 2222, **networks(f"{YOU}/32")),
        {"IpProtocol": "udp", "FromPort": 22, "ToPort": 22, **networks("0.0.0.0/0")},
    ):
        lab.api.authorize_security_group_ingress(GroupId=group, IpPermissions=[wrong])
    right = tcp(20, 22, **networks("203.0.113.0/29"))
    with ExitStack() as kept:
        for _ in range(2):
            assert not answers(lab, "one"), "of another network, port or protocol"
            lab.api.authorize_security_group_ingress(GroupId=group, IpPermissions=[right])
            lab.until(lambda: answers(lab, "one"), {False})
            address = (str(lab.ec2.machine("one").public), 22)
            open_one = kept.enter_context(socket.create_connection(address, timeout=10))
            lab.api.revoke_security_group_ingress(GroupId=group, IpPermissions=[right])
            lab.until(lambda: answers(lab, "one"), {True})
            assert open_one.recv(3) == b"SSH", "what was open stays so"


def test_a_group_lets_in_the_private_addresses_of_its_members(lab: Lab) -> None:
    group = lab.group("g")
    members = {"UserIdGroupPairs": [{"GroupId": group}]}
    lab.api.authorize_security_group_ingress(
        GroupId=group, IpPermissions=[tcp(7000, 7009, **members)]
    )
    lab.launch("one", NetworkInterfaces=card(lab, group))
    lab.launch("two", NetworkInterfaces=card(lab, group))
    lab.launch("other")
    lab.ec2.wait(3)
    one = lab.ec2.machine("one")
    for port in (7009, 7010):
        one.run("sh", "-c", f'setsid python3 -c "{SERVES.format(port)}" >/dev/null 2>&1 &')
        lab.until(lambda: reaches(lab, "one", one.private, port), {False})  # noqa: B023
    assert reaches(lab, "two", one.private, 7009)
    assert not reaches(lab, "two", one.private, 7010), "a port that it does not name"
    assert not reaches(lab, "two", one.public, 7009), "an address of the internet is no member's"
    assert not reaches(lab, "other", one.private, 7009), "no member"

    other = lab.instance("other")
    [interface] = other["NetworkInterfaces"]
    default = [one["GroupId"] for one in interface["Groups"]]
    lab.api.modify_network_interface_attribute(
        NetworkInterfaceId=interface["NetworkInterfaceId"], Groups=[group]
    )
    assert [one["GroupId"] for one in lab.instance("other")["SecurityGroups"]] == [group]
    lab.until(lambda: reaches(lab, "other", one.private, 7009), {False})
    lab.until(lambda: answers(lab, "other"), {True})  # the group that it had let us in
    lab.api.modify_instance_attribute(
        InstanceId=lab.instance("other")["InstanceId"], Groups=default
    )
    lab.until(lambda: answers(lab, "other"), {False})
    assert not reaches(lab, "other", one.private, 7009)


def test_a_group_lets_out_what_its_rules_say(lab: Lab) -> None:
    """A new one everything; connections that came in are answered all the same."""
    open_one, shut = lab.group("open"), lab.group("shut")
    everything = {"IpProtocol": "-1", **networks("0.0.0.0/0")}
    lab.api.revoke_security_group_egress(GroupId=shut, IpPermissions=[everything])
    for group in (open_one, shut):
        lab.api.authorize_security_group_ingress(GroupId=group, IpPermissions=[everything])
    lab.launch("one", NetworkInterfaces=card(lab, shut))
    lab.launch("two", NetworkInterfaces=card(lab, open_one))
    lab.ec2.wait(2)
    one, two = lab.ec2.machine("one"), lab.ec2.machine("two")
    lab.until(lambda: reaches(lab, "two", one.private, 22), {False})
    assert answers(lab, "one")
    assert not reaches(lab, "one", two.private, 22)
    ssh = tcp(22, 22, **networks(f"{two.private}/32"))
    lab.api.authorize_security_group_egress(GroupId=shut, IpPermissions=[ssh])
    lab.until(lambda: reaches(lab, "one", two.private, 22), {False})

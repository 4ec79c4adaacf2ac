"""`allow`, and what it is for: this machine has another address than when the cluster was made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.actions import access, status
from clusterctl.actions.common import open_pool, open_store
from clusterctl.actions.lifetime import explain_allowed
from clusterctl.core import keys
from clusterctl.core.model import Cluster, Role
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError
from clusterctl.machines.ec2 import network
from clusterctl.machines.ec2.api import TAG, Api
from clusterctl.machines.protocol import Cloud, Provider
from clusterctl.transport import ssh as transport
from tests.unit.calling import Call
from tests.unit.deaf import deaf_port
from tests.unit.making import cluster, node
from tests.unit.provided import provide
from tests.unit.scripts import write_program
from tests.unit.tables import rows

SILENT = NodeUnreachable(
    "worker-1: no answer within 20 s: address, route, firewall", transient=True
)
WHY = "this machine's address is now 203.0.113.9, and SSH is open to 203.0.113.7/32"


class Firewalled(Cloud):
    """A provider whose nodes answer only `allowed`; this machine is at 203.0.113.9."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def allow(self, cluster: Cluster, folder: Path, networks: Sequence[str]) -> tuple[str, ...]:
        self.allowed = tuple(networks) or ("203.0.113.9/32",)
        return self.allowed

    def explain_shut_out(self, cluster: Cluster, folder: Path) -> str:
        return "" if "203.0.113.9/32" in self.allowed else WHY

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        if "203.0.113.9/32" not in self.allowed:
            raise NodeUnreachable(SILENT.message)


@pytest.fixture
def firewall(monkeypatch: pytest.MonkeyPatch) -> Firewalled:
    made = Firewalled("203.0.113.7/32")
    provide(monkeypatch, "ec2", made)
    open_store().save(cluster(deadline=None))
    return made


def test_networks_are_kept_for_a_later_up(firewall: Firewalled, call: Call) -> None:
    said = call("allow", "203.0.113.9", "198.51.100.0/24", "--json")
    assert (said.code, said.document["networks"]) == (0, ["203.0.113.9", "198.51.100.0/24"])
    assert open_store().read_cluster("lab").spec.cloud.ssh_cidr == "203.0.113.9,198.51.100.0/24"
    said = call("allow")
    assert "cluster lab accepts SSH from 203.0.113.9/32" in said.err
    kept = open_store().read_cluster("lab").spec.cloud.ssh_cidr
    assert kept == "", "a later `up` takes the address of that time"


def test_machines_without_a_firewall_of_ours_have_nothing_to_allow(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    provide(monkeypatch, "ec2", Provider())
    open_store().save(cluster())
    said = call("allow")
    assert said.code == 2
    assert "has no firewall rules of clusterctl" in said.err


def unreachable(error: NodeUnreachable) -> NodeUnreachable:
    """What a person is told when an action ends like this."""
    store = open_store()
    with pytest.raises(NodeUnreachable) as caught, open_pool(store, store.read_cluster("lab")):
        raise error
    return explain_allowed(caught.value)


def test_nodes_that_do_not_answer_another_address_say_so(firewall: Firewalled) -> None:
    told = unreachable(SILENT)
    assert told.message.endswith(f"; {WHY}")
    assert "`clusterctl allow -c lab`" in told.hint
    firewall.allow(open_store().read_cluster("lab"), Path(), ())
    assert unreachable(SILENT) is SILENT


def test_another_failure_is_not_blamed_on_the_address(firewall: Firewalled) -> None:
    refused = NodeUnreachable("worker-1: sshd refused user ubuntu")
    assert unreachable(refused) is refused


@pytest.mark.slow
def test_ssh_to_a_node_that_does_not_answer_another_address_says_so(
    firewall: Firewalled, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSH says no more than 255 here."""
    monkeypatch.setattr(transport, "CONNECT_LIMIT", 0.5)
    monkeypatch.setattr(access, "CONNECT_TIMEOUT", 0.5)
    program = write_program(tmp_path / "bin" / "ssh", "exit 255")
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    store = open_store()
    with deaf_port() as port:
        launcher = node("launcher", "127.0.0.1", role=Role.LAUNCHER, ssh_port=port)
        store.save(cluster(launcher, node(), deadline=None))
        keys.ensure(store.locate_folder("lab") / "ssh" / "user")
        (store.locate_folder("lab") / "ssh" / "config").touch()
        said = call("ssh", "launcher", "--", "true")
    assert said.code == 4
    assert WHY in said.err
    assert "`clusterctl allow -c lab`" in said.err


def test_a_live_status_of_nodes_that_do_not_answer_another_address_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(Firewalled):
        def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
            return {
                "launcher": "machine runs, SSH does not answer: no answer within 10 s",
                "worker-1": "terminated: it shut itself down",
            }

    made = Silent("203.0.113.7/32")
    provide(monkeypatch, "ec2", made)
    store = open_store()
    store.save(cluster(deadline=None))
    [said] = status.read_status(store, store.read_cluster("lab"), live=True).warnings
    assert said == f"{WHY}: `clusterctl allow -c lab` opens the cluster to your present address"
    made.allow(store.read_cluster("lab"), Path(), ())
    assert status.read_status(store, store.read_cluster("lab"), live=True).warnings == ()


def test_extend_says_so(firewall: Firewalled, call: Call) -> None:
    said = call("extend", "--ttl", "1h")
    assert said.code == 4
    assert WHY in said.err
    assert "`clusterctl allow -c lab`" in said.err


@rows("allowed, shut", "allow.the_address_of_now_is_compared_with_the_rule")
def test_the_address_of_now_is_compared_with_the_rule(allowed: str, shut: bool) -> None:
    said = network.explain_shut_out(allowed, lambda: "203.0.113.9")
    assert ("203.0.113.9" in said) is bool(said) is shut

    def unknown() -> str:
        raise OSError("no network")

    assert network.explain_shut_out(allowed, unknown) == ""


def test_several_networks_are_one_option() -> None:
    assert (
        network.parse_networks("--ssh-cidr", "203.0.113.7, 198.51.100.9/24,203.0.113.7")
        == "203.0.113.7/32,198.51.100.0/24"
    )
    with pytest.raises(UsageError, match="clusters on EC2 have no IPv6 addresses"):
        network.parse_networks("--ssh-cidr", "203.0.113.7,2001:db8::7/64")


class Groups:
    """What EC2 keeps of a cluster's security groups."""

    def __init__(self, *rules: tuple[int, str], name: str = "lab-1-ssh") -> None:
        self.rules = set(rules)
        self.name = name
        self.calls: list[str] = []

    def list_all(self, action: str, key: str, *, Filters: Any) -> list[Any]:
        assert (action, key) == ("describe_security_groups", "SecurityGroups")
        assert Filters == [{"Name": f"tag:{TAG}", "Values": ["lab-1"]}]
        permissions = [
            {"FromPort": port, "IpRanges": [{"CidrIp": cidr}]} for port, cidr in self.rules
        ]
        return [
            {"GroupName": "lab-1-nodes", "GroupId": "sg-1", "IpPermissions": []},
            {
                "GroupName": self.name,
                "GroupId": "sg-2",
                "IpPermissions": [*permissions, {"IpProtocol": "-1", "IpRanges": []}],
            },
        ]

    def call(self, action: str, *, GroupId: str, IpPermissions: Any) -> None:
        [rule] = IpPermissions
        assert (GroupId, rule["IpProtocol"], rule["ToPort"]) == ("sg-2", "tcp", 22)
        assert all(item["Description"] == network.DESCRIPTION for item in rule["IpRanges"])
        rules = {(rule["FromPort"], item["CidrIp"]) for item in rule["IpRanges"]}
        self.calls.append(action)
        if action == "authorize_security_group_ingress":
            assert not rules & self.rules, "EC2 refuses a rule that is there"
            self.rules |= rules
        else:
            assert action == "revoke_security_group_ingress"
            self.rules -= rules


def test_networks_are_let_in_before_others_are_shut_out() -> None:
    groups = Groups((22, "203.0.113.7/32"), (22, "198.51.100.0/24"), (8080, "192.0.2.0/24"))
    api = cast("Api", groups)
    wanted = ["203.0.113.9/32", "198.51.100.0/24"]
    network.change(api, "lab-1", wanted)
    assert groups.rules == {(8080, "192.0.2.0/24"), *((22, one) for one in wanted)}
    assert [call.partition("_")[0] for call in groups.calls] == ["authorize", "revoke"]
    network.change(api, "lab-1", wanted)
    assert len(groups.calls) == 2, "nothing has to be changed"


def test_a_security_group_that_is_gone_is_named() -> None:
    api = cast("Api", Groups(name="lab-1-efa"))
    with pytest.raises(ProviderError, match="lab-1-ssh is gone") as caught:
        network.change(api, "lab-1", ["203.0.113.9/32"])
    assert caught.value.hint

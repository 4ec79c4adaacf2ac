"""A network and instances in the simulated EC2, without Terraform, and SSH to them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, TypeVar

import pytest

from clusterctl.machines.ec2.api import Api
from tests.sim.ec2.client import Ec2
from tests.sim.ec2.network import YOU

T = TypeVar("T")
UBUNTU = "ami-0a0000000000c2202"


def keypair(path: Path) -> str:
    """Makes a key; returns its public half."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(argv, check=True)
    return path.with_suffix(".pub").read_text().strip()


@contextmanager
def their_network(
    api: Any, *zones: str, cidr: str = "10.99.0.0/24", public: bool = True
) -> Iterator[tuple[str, ...]]:
    """A VPC of somebody else, with a subnet of 16 addresses in each zone: its id, and theirs. In
    the end it has to be there as it was."""
    vpc = api.create_vpc(CidrBlock=cidr)["Vpc"]["VpcId"]
    [main] = api.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    gateway = api.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    api.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    if public:
        api.create_route(
            RouteTableId=main["RouteTableId"],
            DestinationCidrBlock="0.0.0.0/0",
            GatewayId=gateway,
        )
    parts = IPv4Network(cidr).subnets(new_prefix=28)
    subnets = [
        api.create_subnet(VpcId=vpc, CidrBlock=str(part), AvailabilityZone=zone)["Subnet"]
        for part, zone in zip(parts, zones, strict=False)
    ]
    ids = [subnet["SubnetId"] for subnet in subnets]
    try:
        yield (vpc, *ids)
    finally:
        for id in ids:
            api.delete_subnet(SubnetId=id)
        api.detach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
        api.delete_internet_gateway(InternetGatewayId=gateway)
        api.delete_vpc(VpcId=vpc)


class Lab:
    def __init__(self, ec2: Ec2, folder: Path) -> None:
        self.ec2 = ec2
        self.api = ec2.client("ec2")
        self.folder = folder
        self.public_key = keypair(folder / "user")
        self.known = folder / "known_hosts"
        self.known.touch()
        self.vpcs: list[str] = []
        self.groups: list[str] = []
        self.subnet = self.network()
        self._ids: dict[str, str] = {}

    def connect(self, patch: pytest.MonkeyPatch, **more: str) -> Api:
        """As clusterctl asks AWS, with these variables, too."""
        for name, value in {**self.ec2.env, **more}.items():
            patch.setenv(name, value)
        return Api("us-east-1")

    def network(self, zone: str = "us-east-1a") -> str:
        """A VPC with one subnet, always with the same addresses. Its default group lets its members
        in, as that of every VPC does, and us."""
        vpc = self.api.create_vpc(CidrBlock="10.77.0.0/16")["Vpc"]["VpcId"]
        self.vpcs.append(vpc)
        of_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
        [group] = self.api.describe_security_groups(Filters=of_vpc)["SecurityGroups"]
        sources = {
            "UserIdGroupPairs": [{"GroupId": group["GroupId"]}],
            "IpRanges": [{"CidrIp": f"{YOU}/32"}],
        }
        self.api.authorize_security_group_ingress(
            GroupId=group["GroupId"], IpPermissions=[{"IpProtocol": "-1", **sources}]
        )
        answer = self.api.create_subnet(VpcId=vpc, CidrBlock="10.77.0.0/20", AvailabilityZone=zone)
        return str(answer["Subnet"]["SubnetId"])

    def group(self, name: str) -> str:
        """A security group without a rule, in the first network."""
        made = self.api.create_security_group(GroupName=name, Description=name, VpcId=self.vpcs[0])
        self.groups.append(made["GroupId"])
        return self.groups[-1]

    def launch(
        self,
        name: str,
        user_data: dict[str, Any] | None = None,
        subnet: str | None = None,
        **more: Any,
    ) -> str:
        """An instance that we know the host key of. Returns its id."""
        key = self.folder / f"host-{name}"
        public = key.with_suffix(".pub").read_text() if key.exists() else keypair(key)
        config = {
            "ssh_keys": {
                "ed25519_private": key.read_text(),
                "ed25519_public": public,
            },
            "ssh_authorized_keys": [self.public_key],
            **(user_data or {}),
        }
        answer = self.api.run_instances(
            **{
                "ImageId": UBUNTU,
                "InstanceType": "t3.micro",
                "MinCount": 1,
                "MaxCount": 1,
                "UserData": "#cloud-config\n" + json.dumps(config),
                "NetworkInterfaces": [
                    {
                        "DeviceIndex": 0,
                        "SubnetId": subnet or self.subnet,
                        "AssociatePublicIpAddress": True,
                    }
                ],
                "TagSpecifications": [
                    {"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": name}]}
                ],
                **more,
            }
        )
        self._ids[name] = answer["Instances"][0]["InstanceId"]
        self.trust(name, public)
        return self._ids[name]

    def instance(self, name: str) -> Any:
        answer = self.api.describe_instances(InstanceIds=[self._ids[name]])
        return answer["Reservations"][0]["Instances"][0]

    def trust(self, name: str, public_key: str) -> None:
        kept = [line for line in self.known.read_text().splitlines() if line.split()[0] != name]
        self.known.write_text("\n".join([*kept, f"{name} {public_key.strip()}", ""]))

    def try_ssh(self, name: str, command: str) -> subprocess.CompletedProcess[str]:
        options = {
            "IdentityFile": str(self.folder / "user"),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.known),
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "LogLevel": "ERROR",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        machine = self.ec2.machines.get(self._ids[name])
        if machine is None:
            return subprocess.CompletedProcess([], 255, "", "no such machine")
        argv = ["ssh", "-F", "none", *words, "-o", f"HostKeyAlias={name}"]
        argv.append(f"ubuntu@{machine.public}")
        return subprocess.run([*argv, command], capture_output=True, text=True, timeout=60)

    def ssh(self, name: str, command: str) -> str:
        done = self.try_ssh(name, command)
        said = f"{done.returncode}: {done.stderr}{done.stdout}"
        assert done.returncode == 0, f"{said}\n{self.ec2.failures}\n{self.ec2.log()}"
        return done.stdout

    def until(self, ask: Callable[[], T], not_yet: set[Any], seconds: float = 15) -> T:
        """Asks until the answer is another."""
        until = time.monotonic() + seconds
        while (answer := ask()) in not_yet:
            assert time.monotonic() < until, f"still {answer!r}"
            time.sleep(0.1)
        return answer

    def remove(self) -> None:
        if self._ids:
            ours = [{"Name": "instance-id", "Values": list(self._ids.values())}]
            found = self.api.describe_instances(Filters=ours)["Reservations"]
            if ids := [one["InstanceId"] for group in found for one in group["Instances"]]:
                self.api.terminate_instances(InstanceIds=ids)
        for group in self.groups:
            self.api.delete_security_group(GroupId=group)
        for vpc in self.vpcs:
            subnets = self.api.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])
            for subnet in subnets["Subnets"]:
                self.api.delete_subnet(SubnetId=subnet["SubnetId"])
            self.api.delete_vpc(VpcId=vpc)

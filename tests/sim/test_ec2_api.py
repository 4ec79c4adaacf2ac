"""The layer before moto: what it adds, and what goes wrong when it is told to."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from clusterctl.core import assets
from tests.sim.ec2.iam import allows
from tests.sim.lab import Lab

pytestmark = [pytest.mark.all, pytest.mark.netns, pytest.mark.sshd]


def refused(call: Any, /, **how: Any) -> tuple[str, int]:
    """The code and the HTTP status of the error that this call ends with."""
    with pytest.raises(ClientError) as caught:
        call(**how)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"kind": "ice"}, ("InsufficientInstanceCapacity", 500)),
        ({"kind": "ice", "zone": "us-east-1a"}, ("InsufficientInstanceCapacity", 500)),
        ({"kind": "ice", "instance_type": "t3.micro"}, ("InsufficientInstanceCapacity", 500)),
        ({"kind": "ice", "node": "one"}, ("InsufficientInstanceCapacity", 500)),
        ({"kind": "throttle"}, ("RequestLimitExceeded", 503)),
        ({"kind": "status500", "action": "RunInstances"}, ("InternalError", 500)),
        ({"kind": "expired"}, ("RequestExpired", 400)),
        ({"kind": "error", "code": "UnauthorizedOperation"}, ("UnauthorizedOperation", 400)),
        ({"kind": "quota", "code": "L-1216C47A", "value": 1}, ("VcpuLimitExceeded", 400)),
    ],
)
def test_a_launch_fails_until_all_is_well(
    lab: Lab, fault: dict[str, Any], expected: tuple[str, int]
) -> None:
    lab.ec2.fault(**fault)
    with pytest.raises(ClientError) as caught:
        lab.launch("one")
    answer = caught.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == expected
    assert not lab.ec2.machines
    lab.ec2.clear()
    lab.launch("one")
    lab.ec2.wait(1)


def test_a_fault_keeps_to_its_place(lab: Lab) -> None:
    for how in ({"zone": "us-east-1b"}, {"instance_type": "g4dn.xlarge"}, {"node": "two"}):
        lab.ec2.fault("ice", **how)
    lab.ec2.fault("throttle", action="DescribeVpcs", calls=2)
    lab.launch("one")
    for _ in range(2):
        assert refused(lab.api.describe_vpcs)[0] == "RequestLimitExceeded"
    lab.api.describe_vpcs()
    other = lab.network(zone="us-east-1b")
    with pytest.raises(ClientError, match="us-east-1b"):
        lab.launch("three", subnet=other)


def test_calls_are_slow_and_written_down(lab: Lab) -> None:
    lab.ec2.forget_calls()
    lab.ec2.fault("delay", action="DescribeVpcs", seconds=0.5, calls=1)
    started = time.monotonic()
    lab.api.describe_vpcs()
    assert time.monotonic() - started > 0.5
    lab.launch("one")
    assert lab.ec2.actions == {"ec2:DescribeVpcs", "ec2:RunInstances"}
    (launch,) = (one for one in lab.ec2.calls if one["action"] == "ec2:RunInstances")
    assert (launch["type"], launch["zone"]) == ("t3.micro", "us-east-1a")


def test_machines_that_do_not_come(lab: Lab) -> None:
    lab.ec2.fault("never_boot", node="never")
    lab.ec2.fault("slow_boot", node="slow", seconds=1.5)
    started = time.monotonic()
    for name in ("never", "slow", "quick"):
        lab.launch(name)
    assert [one.name for one in lab.ec2.wait(1).values()] == ["quick"]
    assert {one.name for one in lab.ec2.wait(2).values()} == {"quick", "slow"}
    assert time.monotonic() - started > 1.5
    assert lab.states() == ["running"] * 3


def test_quotas(lab: Lab) -> None:
    quotas = lab.ec2.client("service-quotas")
    ask = {"ServiceCode": "ec2", "QuotaCode": "L-DB2E81BA"}
    assert quotas.get_service_quota(**ask)["Quota"]["Value"] == 0, "a new account"
    lab.ec2.grant(64)
    assert quotas.get_service_quota(**ask)["Quota"]["Value"] == 64
    lab.ec2.fault("quota", code="L-DB2E81BA", value=4)
    assert quotas.get_service_quota(**ask)["Quota"]["Value"] == 4
    lab.launch("one", InstanceType="g4dn.xlarge")
    with pytest.raises(ClientError, match="VcpuLimitExceeded"):
        lab.launch("two", InstanceType="g4dn.xlarge")
    lab.ec2.fault("throttle", action="GetServiceQuota")
    assert refused(quotas.get_service_quota, **ask) == ("ThrottlingException", 400)


def test_prices(lab: Lab) -> None:
    pricing = lab.ec2.client("pricing")

    def ask(kind: str) -> list[dict[str, Any]]:
        wanted = {
            "instanceType": kind,
            "regionCode": "us-east-1",
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
        answer = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)
        return [json.loads(one) for one in answer["PriceList"]]

    def usd(product: dict[str, Any]) -> float:
        (offer,) = product["terms"]["OnDemand"].values()
        (dimension,) = offer["priceDimensions"].values()
        return float(dimension["pricePerUnit"]["USD"])

    assert [usd(one) for one in ask("g4dn.xlarge")] == [0.526]
    lab.ec2.fault("price", instance_type="g4dn.xlarge", value=1.5)
    assert [usd(one) for one in ask("g4dn.xlarge")] == [1.5]
    lab.ec2.fault("price", instance_type="g4dn.xlarge", value=None)
    assert ask("g4dn.xlarge") == []
    history = lab.api.describe_spot_price_history(
        InstanceTypes=["g4ad.xlarge"], AvailabilityZone="us-east-1b"
    )["SpotPriceHistory"]
    assert [float(one["SpotPrice"]) for one in history] == [pytest.approx(0.37853 * 0.31, abs=1e-5)]


def test_calls_are_written_down_with_what_iam_is_asked(lab: Lab) -> None:
    """Who has clusterctl's policy and no other cannot come near somebody else's instance."""
    policy = json.loads((assets.find_folder("infra") / "ec2" / "policy.json").read_text())
    tags = [{"Key": "clusterctl:cluster", "Value": "c"}]
    own = [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")]

    def allowed(call: Any, /, **how: Any) -> bool:
        lab.ec2.forget_calls()
        call(**how)
        return all(allows(policy, **ask) for one in lab.ec2.calls for ask in one["asks"])

    theirs = lab.launch("theirs", TagSpecifications=[])
    assert not allowed(lab.api.create_tags, Resources=[theirs], Tags=tags)
    lab.api.delete_tags(Resources=[theirs], Tags=[{"Key": "clusterctl:cluster"}])
    stay = {"InstanceInitiatedShutdownBehavior": {"Value": "stop"}}
    assert not allowed(lab.api.modify_instance_attribute, InstanceId=theirs, **stay)
    assert not allowed(lab.api.terminate_instances, InstanceIds=[theirs])

    lab.ec2.forget_calls()
    ours = lab.launch("ours", TagSpecifications=own)
    [launch] = lab.ec2.calls
    assert [ask["resource"] for ask in launch["asks"] if ask["action"] == "ec2:CreateTags"] == [
        f"arn:aws:ec2:us-east-1:123456789012:{kind}/*" for kind in ("instance", "volume")
    ]
    assert all(allows(policy, **ask) for ask in launch["asks"])
    assert allowed(lab.api.create_tags, Resources=[ours], Tags=tags)
    assert allowed(lab.api.modify_instance_attribute, InstanceId=ours, **stay)
    assert allowed(lab.api.terminate_instances, InstanceIds=[ours])


def test_placement_groups(lab: Lab) -> None:
    tags = [{"Key": "clusterctl:cluster", "Value": "c"}]
    lab.api.create_placement_group(
        GroupName="g",
        Strategy="cluster",
        TagSpecifications=[{"ResourceType": "placement-group", "Tags": tags}],
    )
    (found,) = lab.api.describe_placement_groups(
        Filters=[{"Name": "tag:clusterctl:cluster", "Values": ["c"]}]
    )["PlacementGroups"]
    assert found["GroupName"] == "g"
    lab.api.create_tags(Resources=[found["GroupId"]], Tags=[{"Key": "more", "Value": "x"}])
    (found,) = lab.api.describe_placement_groups(GroupNames=["g"])["PlacementGroups"]
    assert [tag["Key"] for tag in found["Tags"]] == ["clusterctl:cluster", "more"]
    assert [line.split()[1] for line in lab.ec2.left() if "placement" in line] == [
        "placement-group"
    ]
    with pytest.raises(ClientError, match="InvalidParameterCombination"):
        lab.launch("one", Placement={"GroupName": "g"})
    lab.ec2.grant(64)
    id = lab.launch("one", InstanceType="g4dn.xlarge", Placement={"GroupName": "g"})
    assert lab.instance("one")["Placement"]["GroupName"] == "g"
    in_use = refused(lab.api.delete_placement_group, GroupName="g")
    assert in_use[0] == "InvalidPlacementGroup.InUse"
    lab.api.terminate_instances(InstanceIds=[id])
    lab.api.delete_placement_group(GroupName="g")
    unknown = refused(lab.api.describe_placement_groups, GroupNames=["g"])
    assert unknown[0] == "InvalidPlacementGroup.Unknown"


def test_spot_requests(lab: Lab) -> None:
    market = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
    id = lab.launch("one", InstanceMarketOptions=market)
    assert lab.instance("one")["InstanceLifecycle"] == "spot"
    request = lab.instance("one")["SpotInstanceRequestId"]
    (found,) = lab.api.describe_spot_instance_requests(SpotInstanceRequestIds=[request])[
        "SpotInstanceRequests"
    ]
    assert (found["InstanceId"], found["State"]) == (id, "active")
    lab.api.terminate_instances(InstanceIds=[id])
    (found,) = lab.api.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert found["State"] == "closed"


def test_what_the_provider_reads_back(lab: Lab) -> None:
    group = lab.api.create_security_group(GroupName="g", Description="d", VpcId=lab.vpcs[0])[
        "GroupId"
    ]
    disk = {"VolumeSize": 30, "VolumeType": "gp3", "Encrypted": True, "Throughput": 200}
    interface = {
        "DeviceIndex": 0,
        "SubnetId": lab.subnet,
        "AssociatePublicIpAddress": True,
        "Groups": [group],
    }
    lab.launch(
        "one",
        NetworkInterfaces=[interface],
        BlockDeviceMappings=[
            {"DeviceName": "/dev/sda1", "Ebs": {**disk, "DeleteOnTermination": True}}
        ],
        ClientToken="once",
    )
    assert [one["GroupId"] for one in lab.instance("one")["SecurityGroups"]] == [group]
    assert lab.instance("one")["PublicIpAddress"].startswith("198.51.100.")
    (volume,) = lab.api.describe_volumes()["Volumes"]
    assert (volume["Throughput"], volume["Iops"], volume["Encrypted"]) == (200, 3000, True)
    behavior = {"Value": "terminate"}
    lab.api.modify_instance_attribute(
        InstanceId=lab.instance("one")["InstanceId"], InstanceInitiatedShutdownBehavior=behavior
    )
    assert [one["GroupId"] for one in lab.instance("one")["SecurityGroups"]] == [group]
    lab.api.terminate_instances(InstanceIds=[lab.instance("one")["InstanceId"]])
    lab.api.delete_security_group(GroupId=group)


def test_the_same_launch_twice_is_one(lab: Lab) -> None:
    first = lab.launch("one", ClientToken="once")
    assert lab.launch("one", ClientToken="once") == first
    lab.ec2.wait(1)


def test_a_call_that_an_sdk_repeats_is_done_once(lab: Lab) -> None:
    """Unless its answer is to be lost: then it is done, and may be done again."""

    def same(request: Any, **_: object) -> None:
        request.headers["amz-sdk-invocation-id"] = "once"

    def groups() -> list[str]:
        of_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
        found = lab.api.describe_security_groups(Filters=of_vpc)["SecurityGroups"]
        return sorted(one["GroupName"] for one in found)

    def create(name: str) -> str:
        made = lab.api.create_security_group(GroupName=name, Description=name, VpcId=vpc)
        return str(made["GroupId"])

    subnet = lab.network()
    vpc = lab.api.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    lab.api.meta.events.register("before-send.ec2.CreateSecurityGroup", same)
    first = create("one")
    assert create("one") == first
    lab.api.meta.events.unregister("before-send.ec2.CreateSecurityGroup", same)
    lab.ec2.fault("lost", action="CreateSecurityGroup", calls=1)
    assert refused(lab.api.create_security_group, GroupName="two", Description="d", VpcId=vpc) == (
        "Unavailable",
        503,
    )
    assert groups() == ["default", "one", "two"]
    assert refused(lab.api.create_security_group, GroupName="two", Description="d", VpcId=vpc) == (
        "InvalidGroup.Duplicate",
        400,
    )


def test_what_it_lacks_is_said_at_once(lab: Lab) -> None:
    assert refused(lab.api.describe_ipam_pools) == ("InvalidAction", 400)


def test_an_image_is_found_by_its_owner_and_name(lab: Lab) -> None:
    def names(owner: str, name: str) -> list[str]:
        filters = [{"Name": "name", "Values": [name]}, {"Name": "state", "Values": ["available"]}]
        found = lab.api.describe_images(Owners=[owner], Filters=filters)["Images"]
        return [one["Name"] for one in sorted(found, key=lambda one: str(one["CreationDate"]))]

    ubuntu = "ubuntu/images/hvm-ssd*/ubuntu-jammy-22.04-amd64-server-*"
    assert names("099720109477", ubuntu)[-1].endswith("server-20260511")
    assert names("amazon", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *")


def test_machines_with_amd_gpus(lab: Lab) -> None:
    (found,) = lab.api.describe_instance_types(InstanceTypes=["g4ad.xlarge"])["InstanceTypes"]
    assert found["VCpuInfo"]["DefaultVCpus"] == 4
    assert [gpu["Manufacturer"] for gpu in found["GpuInfo"]["Gpus"]] == ["AMD"]
    offered = lab.api.describe_instance_type_offerings(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": ["g4ad.xlarge"]}],
    )["InstanceTypeOfferings"]
    assert [one["Location"] for one in offered] == ["us-east-1a", "us-east-1b"]

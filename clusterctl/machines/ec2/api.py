"""What we ask AWS ourselves, beside Terraform: a method for each question.

Every call has a time limit; whatever goes wrong becomes a ProviderError that says what to do.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from clusterctl.machines.ec2 import failures
from clusterctl.machines.ec2.answers import (
    LIVING,
    Image,
    Instance,
    InstanceType,
    find_highest_price,
    read_image,
    read_instance,
    read_instance_type,
)
from clusterctl.machines.ec2.client import Client
from clusterctl.machines.ec2.failures import RefusedByAws
from clusterctl.machines.ec2.tags import as_list

PRICING_REGION = "us-east-1"
"""The pricing API lives in three regions only, and knows the prices of all."""


class Api(Client):
    """All questions whose answers are more than a list (`all`) or nothing (`call`)."""

    def list_regions(self) -> tuple[str, ...]:
        """Those that the account has enabled."""
        found = self.list_all("describe_regions", "Regions")
        with self._explain_errors("describe regions"):
            return tuple(sorted(str(item["RegionName"]) for item in found))

    def ask_registry_login(self, account: str) -> tuple[str, str]:
        """User and password, for twelve hours, of the registry of an account in this region."""
        client = self._get_client("ecr")
        with self._explain_errors("asking Amazon ECR for a login"):
            answer = client.get_authorization_token(registryIds=[account])
            token = answer["authorizationData"][0]["authorizationToken"]
            user, _, password = base64.b64decode(token).decode().partition(":")
            return user, password

    def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
        """Those of the types that this region has."""
        wanted = sorted(set(names))
        found = self.list_all(
            "describe_instance_types",
            "InstanceTypes",
            Filters=[{"Name": "instance-type", "Values": wanted}],
        )
        with self._explain_errors("describe instance types"):
            return {item["InstanceType"]: read_instance_type(item) for item in found}

    def list_efa_types(self, families: Iterable[str]) -> tuple[str, ...]:
        """The types of these families (`g5`, `c6i`) that have an Elastic Fabric Adapter."""
        found = self.list_all(
            "describe_instance_types",
            "InstanceTypes",
            Filters=[
                {"Name": "instance-type", "Values": [f"{family}.*" for family in families]},
                {"Name": "network-info.efa-supported", "Values": ["true"]},
            ],
        )
        return tuple(sorted(str(item["InstanceType"]) for item in found))

    def list_zones(self, types: Iterable[str]) -> tuple[str, ...]:
        """The zones of the region that offer all of these types, by name.

        Where an account has opted in to Local or Wavelength Zones, they are among the answers;
        only the names of availability zones are the region's with one letter.
        """
        wanted = set(types)
        offered: dict[str, set[str]] = {}
        found = self.list_all(
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": sorted(wanted)}],
        )
        with self._explain_errors("describe instance type offerings"):
            for item in found:
                offered.setdefault(item["Location"], set()).add(item["InstanceType"])
        usual = re.compile(rf"{re.escape(self.region)}[a-z]")
        return tuple(
            sorted(zone for zone, has in offered.items() if wanted <= has and usual.fullmatch(zone))
        )

    def find_image(self, owner: str, name: str) -> str:
        """The id of the newest available x86-64 image of that owner and name pattern, or ""."""
        images = self.list_all(
            "describe_images",
            "Images",
            Owners=[owner],
            Filters=[
                {"Name": "name", "Values": [name]},
                {"Name": "architecture", "Values": ["x86_64"]},
                {"Name": "state", "Values": ["available"]},
            ],
        )
        newest = max(images, key=lambda image: image.get("CreationDate", ""), default=None)
        return newest["ImageId"] if newest else ""

    def list_images(self, ids: Iterable[str]) -> dict[str, Image]:
        """Those of the images that there are."""
        # Asked for by ImageIds, one that is unknown would be an error like any other.
        wanted = [{"Name": "image-id", "Values": sorted(set(ids))}]
        found = self.list_all("describe_images", "Images", Filters=wanted)
        with self._explain_errors("describe images"):
            return {item["ImageId"]: read_image(item) for item in found}

    def check_launch_right(
        self,
        instance_type: str,
        image: Image,
        *,
        disk: int,
        spot: bool,
        cluster: str,
        subnet: str = "",
        public: bool = True,
        more_tags: Mapping[str, str] | None = None,
    ) -> None:
        """Asks for the right to launch such a machine, and launches none. Raises ProviderError
        where AWS says no to whoever asks; what else it says depends on what is not made yet.

        It asks for what infra/ec2 makes: policies of organizations allow machines with IMDSv2 and
        encrypted disks alone, or none with a public address, or demand tags."""
        tags = as_list({"clusterctl:cluster": cluster, **(more_tags or {})})
        kinds = ["instance", "volume", "network-interface"]
        # Without a subnet, EC2 answers for one of the default network.
        interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": public}
        more: dict[str, Any] = {
            "NetworkInterfaces": [interface | ({"SubnetId": subnet} if subnet else {})]
        }
        if spot:
            more["InstanceMarketOptions"] = {"MarketType": "spot"}
            kinds.append("spot-instances-request")
        self.check_right(
            "run_instances",
            ImageId=image.id,
            InstanceType=instance_type,
            MinCount=1,
            MaxCount=1,
            MetadataOptions={
                "HttpEndpoint": "enabled",
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 1,
            },
            BlockDeviceMappings=[
                {
                    "DeviceName": image.device,
                    "Ebs": {"VolumeType": "gp3", "VolumeSize": disk, "Encrypted": True},
                }
            ],
            TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in kinds],
            **more,
        )

    def check_right(self, action: str, **arguments: Any) -> None:
        """Asks for the right to make something, and makes nothing. Raises RefusedByAws where AWS
        says no to whoever asks; what else it says depends on what is not made yet."""
        try:
            self.call(action, DryRun=True, **arguments)
        except RefusedByAws as refused:
            if failures.is_account_error(refused):
                raise

    def find_tenancy(self, vpc: str) -> str:
        """`default`, or `dedicated` where each machine gets hardware of the account's own."""
        [found] = self.list_all("describe_vpcs", "Vpcs", VpcIds=[vpc])
        return str(found.get("InstanceTenancy", "default"))

    def find_block_mode(self) -> str:
        """How VPC Block Public Access closes the region's internet gateways; `off`: not at all."""
        action, key = "describe_vpc_block_public_access_options", "VpcBlockPublicAccessOptions"
        return str(self.call(action)[key].get("InternetGatewayBlockMode", "off"))

    def find_quota(self, code: str, service: str = "ec2") -> float:
        """The value of a quota: of EC2 in vCPUs, of networks in pieces."""
        client = self._get_client("service-quotas")
        with self._explain_errors("asking for your EC2 quotas"):
            answer = client.get_service_quota(ServiceCode=service, QuotaCode=code)
            return float(answer["Quota"]["Value"])

    def list_instances(
        self, *filters: dict[str, Any], states: Sequence[str] = LIVING
    ) -> list[Instance]:
        """Instances that are not gone; a stopping one still counts, and still has a network."""
        reservations = self.list_all(
            "describe_instances",
            "Reservations",
            Filters=[*filters, {"Name": "instance-state-name", "Values": list(states)}],
        )
        with self._explain_errors("describe instances"):
            return [read_instance(item) for group in reservations for item in group["Instances"]]

    def find_price(self, instance_type: str) -> float | None:
        """On-demand Linux in US dollars per hour; None where the price list has no such row."""
        return self._search_price(
            "AmazonEC2",
            instanceType=instance_type,
            regionCode=self.region,
            operatingSystem="Linux",
            preInstalledSw="NA",
            tenancy="Shared",
            capacitystatus="Used",
        )

    def find_disk_price(self) -> float | None:
        """US dollars for a GiB of gp3 and a month; None as above."""
        return self._search_price(
            "AmazonEC2", volumeApiName="gp3", productFamily="Storage", regionCode=self.region
        )

    def find_address_price(self) -> float | None:
        """US dollars per hour for a public IPv4 address in use; None as above."""
        return self._search_price("AmazonVPC", group="VPCPublicIPv4Address", regionCode=self.region)

    def find_nat_price(self) -> float | None:
        """US dollars per hour for a NAT gateway; None as above."""
        return self._search_nat_price("Hours")

    def find_nat_traffic_price(self) -> float | None:
        """US dollars for a GB through a NAT gateway; None as above."""
        return self._search_nat_price("Bytes")

    def _search_nat_price(self, what: str) -> float | None:
        usage = f"NatGateway-{what}"  # with a prefix of the region, such as USE2-
        family = "NAT Gateway"
        return self._search_price("AmazonEC2", usage, productFamily=family, regionCode=self.region)

    def find_traffic_price(self) -> float | None:
        """US dollars for a GB to the internet, at the dearest step; None as above."""
        return self._search_price(
            "AWSDataTransfer", fromRegionCode=self.region, transferType="AWS Outbound"
        )

    def _search_price(self, service: str, usage: str = "", **fields: str) -> float | None:
        """The highest price of the products that have these attributes, and whose type of usage
        ends so."""
        client = self._get_client("pricing", PRICING_REGION)
        with self._explain_errors("asking for prices"):
            answer = client.get_products(
                ServiceCode=service,
                Filters=[
                    {"Type": "TERM_MATCH", "Field": field, "Value": value}
                    for field, value in fields.items()
                ],
                MaxResults=10,
            )
            return find_highest_price(answer["PriceList"], usage)

    def find_spot_price(self, instance_type: str, *zones: str) -> float | None:
        """The spot price of this moment in the dearest of these zones, in US dollars per hour."""
        now = datetime.now(timezone.utc) - timedelta(minutes=1)
        rows = self.list_all(
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=[instance_type],
            ProductDescriptions=["Linux/UNIX"],
            Filters=[{"Name": "availability-zone", "Values": list(zones)}] if any(zones) else [],
            StartTime=now,  # the price that is in force then, of each zone
            EndTime=now,
        )
        with self._explain_errors("describe spot price history"):
            newest = {}
            for row in sorted(rows, key=lambda row: row["Timestamp"]):
                newest[row["AvailabilityZone"]] = float(row["SpotPrice"])
            return max(newest.values(), default=None)

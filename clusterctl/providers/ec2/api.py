"""What we ask AWS ourselves, beside Terraform. boto3 comes with the first question.

Every call has a time limit; whatever goes wrong becomes a ProviderError that says what to do.
"""

from __future__ import annotations

import base64
import calendar
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from clusterctl.errors import ProviderError
from clusterctl.providers.ec2 import failures, numbers
from clusterctl.providers.ec2.credentials import LEASE, Credentials
from clusterctl.providers.ec2.failures import RefusedByAws
from clusterctl.providers.ec2.tags import as_list

DEFAULT_REGION = "us-east-1"
PRICING_REGION = "us-east-1"
"""The pricing API lives in three regions only, and knows the prices of all."""

USUAL, FIRST, HURRIED = (5.0, 20.0, 5), (3.0, 4.0, 3), (3.0, 8.0, 1)
"""Seconds to connect and to answer, and attempts. Who we are is asked first: where nobody answers,
that is known within a quarter of a minute."""
LIMITS = {
    "sts": FIRST,
    "pricing": FIRST,
    "iam": (2.0, 4.0, 2),
    "scheduler": (2.0, 4.0, 2),
}
"""By service. Nobody waits long for what a cluster can do without, or for what is in a table."""


_DRAWN = re.compile(r"/[A-Za-z-]*\d{9,}$")
"""The name of a session that an SDK has made up from the time."""


def owner_of(arn: str) -> str:
    """Who that is, as a tag may have it: `user/ana`, `assumed-role/Train/ana@example.org`."""
    who = _DRAWN.sub("", arn.split(":", 5)[-1])
    return re.sub(r"[^\w +=.:/@-]", "_", who)[:256]


def default_region() -> str:
    """As AWS's own tools choose it: the environment, then the profile; else us-east-1. Raises
    ProviderError for a configuration that makes no sense."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if os.environ.get(name):
            return os.environ[name]
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        return botocore.session.get_session().get_config_variable("region") or DEFAULT_REGION
    except BotoCoreError as error:
        doing = "reading your AWS configuration"
        raise failures.not_asked(doing, type(error).__name__, str(error)) from error


_MARKETS, _ROOT, _EFA = ("on-demand", "spot"), "/dev/sda1", "efa"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """What EC2 says about a type. `gpu_maker` is empty without GPUs."""

    name: str
    vcpus: int
    gpus: int = 0
    gpu_maker: str = ""
    clusters: bool = False
    """Whether it may be in a cluster placement group."""
    efa: tuple[str, ...] = ()
    """What the interface of each network card is where Elastic Fabric Adapters are used, as
    infra/ec2 has it; () without any."""
    architectures: tuple[str, ...] = ("x86_64",)
    markets: tuple[str, ...] = _MARKETS
    """How it can be bought; also `capacity-block`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A machine image. `disk`: the size in GiB of its root snapshot, which a disk has to hold;
    `device`: what the root disk is called; `windows`: what it runs; `platform`: what is billed for
    its system; `owner`: an account, or `amazon`."""

    id: str
    architecture: str = "x86_64"
    disk: int = 0
    device: str = _ROOT
    windows: bool = False
    name: str = ""
    description: str = ""
    platform: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance. `node` is the value of its tag; `address` is empty without a public one."""

    id: str
    node: str
    type: str
    state: str
    zone: str
    address: str
    private_address: str
    launched: float
    spot: bool = False
    subnet: str = ""
    ended: float | None = None
    """When it stopped or was terminated, if EC2 says so."""
    why: str = ""
    """EC2's code for that, such as Server.SpotInstanceTermination, else who did it."""
    apart: bool = False
    """Whether it was launched with others by one call, without Terraform."""


LIVING = ("pending", "running", "stopping", "stopped", "shutting-down")
ENDED = ("shutting-down", "terminated")


def highest_price(texts: Iterable[str], usage: str = "") -> float | None:
    """In US dollars, of rows of AWS's price list whose type of usage ends so; None without any.
    Raises ValueError for what is no such row."""
    try:
        prices = [
            float(dimension["pricePerUnit"]["USD"])
            for text in texts
            for row in (json.loads(text),)
            if row.get("product", {}).get("attributes", {}).get("usagetype", "").endswith(usage)
            for term in row.get("terms", {}).get("OnDemand", {}).values()
            for dimension in term["priceDimensions"].values()
            if "USD" in dimension.get("pricePerUnit", {})
        ]
    except (AttributeError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return max((price for price in prices if 0 < price < math.inf), default=None)


class Api:
    """AWS in one region, with the credentials that the environment and ~/.aws give. Safe to use
    from many threads. `hurried`: one attempt of a few seconds for each question."""

    owner = ""
    """Who the credentials belong to; known with the account."""
    ahead = 0.0
    """Seconds that this machine's clock is ahead of AWS's; known with the account."""

    def __init__(self, region: str, *, hurried: bool = False) -> None:
        self.region = region
        self._hurried = hurried
        self._credentials: Credentials | None = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._making = threading.Lock()

    def _client(self, service: str, region: str = "") -> Any:
        """Made once: that takes longer than many an answer."""
        key = service, region or self.region
        # A session may make clients for one thread at a time.
        with self._making, self._asking(f"talking to {service}"):
            if key not in self._clients:
                self._clients[key] = self._make(*key)
            return self._clients[key]

    def _make(self, service: str, region: str) -> Any:
        from botocore.config import Config

        session = self._known().session
        connect, read, attempts = HURRIED if self._hurried else LIMITS.get(service, USUAL)
        limits = Config(
            connect_timeout=connect,
            read_timeout=read,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=16,
            user_agent_extra="clusterctl",
        )
        try:
            return session.client(service, region_name=region, config=limits)
        except ValueError as error:  # an AWS_ENDPOINT_URL that is none
            raise failures.not_asked(f"talking to {service}", "ValueError", str(error)) from error

    def _known(self) -> Credentials:
        if self._credentials is None:
            self._credentials = Credentials(self.region)
        return self._credentials

    @contextmanager
    def lent(self, lease: float = LEASE) -> Iterator[dict[str, str]]:
        """Our credentials for a program, by its environment, as long as the block runs. It asks for
        them again after `lease` seconds, where they end. Raises ProviderError."""
        with ExitStack() as stack:
            with self._making, self._asking("reading your AWS credentials"):
                environment = stack.enter_context(self._known().lent(lease))
            yield environment

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        """Around a question and the reading of its answer."""
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            yield
        except ClientError as error:
            said = error.response.get("Error", {})
            raise failures.refused(
                doing,
                str(said.get("Code", "")),
                str(said.get("Message", "")),
                self.region,
                _skew(error.response),
            ) from error
        except BotoCoreError as error:
            raise failures.not_asked(doing, type(error).__name__, str(error)) from error
        except (ResponseParserError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise failures.unreadable(doing, f"{type(error).__name__}: {error}") from error

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        """One call, such as `terminate_instances`. Raises ProviderError."""
        client = self._client(service)
        with self._asking(action.replace("_", " ")):
            return getattr(client, action)(**arguments)

    def all(self, action: str, key: str, service: str = "ec2", /, **arguments: Any) -> list[Any]:
        """All pages of one `describe_…` or `list_…` call."""
        client = self._client(service)
        with self._asking(action.replace("_", " ")):
            if not client.can_paginate(action):
                return list(getattr(client, action)(**arguments).get(key, ()))
            pages = client.get_paginator(action).paginate(**arguments)
            return [item for page in pages for item in page.get(key, ())]

    @property
    def partition(self) -> str:
        """Of AWS, as ARNs say it: `aws`, `aws-cn`, `aws-us-gov`."""
        return str(self._client("ec2").meta.partition)

    def account(self) -> str:
        """The account that the credentials belong to: the cheapest proof that they work.

        In a region that the account has not enabled, good credentials look like wrong ones: then
        another region is asked, too.
        """
        try:
            return self._account(self.region)
        except RefusedByAws as refused:
            if self.region == DEFAULT_REGION or refused.code not in failures.MAYBE_NOT_ENABLED:
                raise
            try:
                self._account(DEFAULT_REGION)
            except ProviderError:
                raise refused from None
            raise failures.not_enabled(self.region) from refused

    def _account(self, region: str) -> str:
        client = self._client("sts", region)
        with self._asking("checking your AWS credentials"):
            found = client.get_caller_identity()
            self.owner = owner_of(str(found["Arn"]))
            self.ahead = _skew(found)
            return str(found["Account"])

    def regions(self) -> tuple[str, ...]:
        """Those that the account has enabled."""
        found = self.all("describe_regions", "Regions")
        with self._asking("describe regions"):
            return tuple(sorted(str(item["RegionName"]) for item in found))

    def registry_login(self, account: str) -> tuple[str, str]:
        """User and password, for twelve hours, of the registry of an account in this region."""
        client = self._client("ecr")
        with self._asking("asking Amazon ECR for a login"):
            answer = client.get_authorization_token(registryIds=[account])
            token = answer["authorizationData"][0]["authorizationToken"]
            user, _, password = base64.b64decode(token).decode().partition(":")
            return user, password

    def instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
        """Those of the types that this region has."""
        wanted = sorted(set(names))
        found = self.all(
            "describe_instance_types",
            "InstanceTypes",
            Filters=[{"Name": "instance-type", "Values": wanted}],
        )
        with self._asking("describe instance types"):
            return {item["InstanceType"]: _instance_type(item) for item in found}

    def with_efa(self, families: Iterable[str]) -> tuple[str, ...]:
        """The types of these families (`g5`, `c6i`) that have an Elastic Fabric Adapter."""
        found = self.all(
            "describe_instance_types",
            "InstanceTypes",
            Filters=[
                {"Name": "instance-type", "Values": [f"{family}.*" for family in families]},
                {"Name": "network-info.efa-supported", "Values": ["true"]},
            ],
        )
        return tuple(sorted(str(item["InstanceType"]) for item in found))

    def zones(self, types: Iterable[str]) -> tuple[str, ...]:
        """The zones of the region that offer all of these types, by name.

        Where an account has opted in to Local or Wavelength Zones, they are among the answers;
        only the names of availability zones are the region's with one letter.
        """
        wanted = set(types)
        offered: dict[str, set[str]] = {}
        found = self.all(
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": sorted(wanted)}],
        )
        with self._asking("describe instance type offerings"):
            for item in found:
                offered.setdefault(item["Location"], set()).add(item["InstanceType"])
        usual = re.compile(rf"{re.escape(self.region)}[a-z]")
        return tuple(
            sorted(zone for zone, has in offered.items() if wanted <= has and usual.fullmatch(zone))
        )

    def image(self, owner: str, name: str) -> str:
        """The id of the newest available x86-64 image of that owner and name pattern, or ""."""
        images = self.all(
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

    def images(self, ids: Iterable[str]) -> dict[str, Image]:
        """Those of the images that there are."""
        # Asked for by ImageIds, one that is unknown would be an error like any other.
        wanted = [{"Name": "image-id", "Values": sorted(set(ids))}]
        found = self.all("describe_images", "Images", Filters=wanted)
        with self._asking("describe images"):
            return {item["ImageId"]: _image(item) for item in found}

    def may_launch(
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
        more: dict[str, Any] = {}
        if subnet:
            network = {"DeviceIndex": 0, "SubnetId": subnet, "AssociatePublicIpAddress": public}
            more["NetworkInterfaces"] = [network]
        if spot:
            more["InstanceMarketOptions"] = {"MarketType": "spot"}
            kinds.append("spot-instances-request")
        try:
            self.call(
                "run_instances",
                DryRun=True,
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
        except RefusedByAws as refused:
            if failures.is_account_error(refused):
                raise

    def disk_key(self) -> str:
        """The key that encrypts disks here unless told otherwise: its ARN, or `alias/aws/ebs`."""
        return str(self.call("get_ebs_default_kms_key_id")["KmsKeyId"])

    def key_state(self, key: str) -> str:
        """`Enabled`, or why a key cannot be used."""
        client = self._client("kms")
        with self._asking("describe key"):
            return str(client.describe_key(KeyId=key)["KeyMetadata"]["KeyState"])

    def block_mode(self) -> str:
        """How VPC Block Public Access closes the region's internet gateways; `off`: not at all."""
        action, key = "describe_vpc_block_public_access_options", "VpcBlockPublicAccessOptions"
        return str(self.call(action)[key].get("InternetGatewayBlockMode", "off"))

    def quota(self, code: str) -> float:
        """The value of an EC2 quota, in vCPUs."""
        client = self._client("service-quotas")
        with self._asking("asking for your EC2 quotas"):
            answer = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)
            return float(answer["Quota"]["Value"])

    def instances(self, *filters: dict[str, Any], states: Sequence[str] = LIVING) -> list[Instance]:
        """Instances that are not gone; a stopping one still counts, and still has a network."""
        reservations = self.all(
            "describe_instances",
            "Reservations",
            Filters=[*filters, {"Name": "instance-state-name", "Values": list(states)}],
        )
        with self._asking("describe instances"):
            return [_instance(item) for group in reservations for item in group["Instances"]]

    def price(self, instance_type: str) -> float | None:
        """On-demand Linux in US dollars per hour; None where the price list has no such row."""
        return self._listed(
            "AmazonEC2",
            instanceType=instance_type,
            regionCode=self.region,
            operatingSystem="Linux",
            preInstalledSw="NA",
            tenancy="Shared",
            capacitystatus="Used",
        )

    def disk_price(self) -> float | None:
        """US dollars for a GiB of gp3 and a month; None as above."""
        return self._listed(
            "AmazonEC2", volumeApiName="gp3", productFamily="Storage", regionCode=self.region
        )

    def address_price(self) -> float | None:
        """US dollars per hour for a public IPv4 address in use; None as above."""
        return self._listed("AmazonVPC", group="VPCPublicIPv4Address", regionCode=self.region)

    def nat_price(self) -> float | None:
        """US dollars per hour for a NAT gateway; None as above."""
        return self._nat("Hours")

    def nat_traffic_price(self) -> float | None:
        """US dollars for a GB through a NAT gateway; None as above."""
        return self._nat("Bytes")

    def _nat(self, what: str) -> float | None:
        usage = f"NatGateway-{what}"  # with a prefix of the region, such as USE2-
        family = "NAT Gateway"
        return self._listed("AmazonEC2", usage, productFamily=family, regionCode=self.region)

    def traffic_price(self) -> float | None:
        """US dollars for a GB to the internet, at the dearest step; None as above."""
        return self._listed(
            "AWSDataTransfer", fromRegionCode=self.region, transferType="AWS Outbound"
        )

    def _listed(self, service: str, usage: str = "", **fields: str) -> float | None:
        """The highest price of the products that have these attributes, and whose type of usage
        ends so."""
        client = self._client("pricing", PRICING_REGION)
        with self._asking("asking for prices"):
            answer = client.get_products(
                ServiceCode=service,
                Filters=[
                    {"Type": "TERM_MATCH", "Field": field, "Value": value}
                    for field, value in fields.items()
                ],
                MaxResults=10,
            )
            return highest_price(answer["PriceList"], usage)

    def spot_price(self, instance_type: str, *zones: str) -> float | None:
        """The spot price of this moment in the dearest of these zones, in US dollars per hour."""
        now = datetime.now(timezone.utc) - timedelta(minutes=1)
        rows = self.all(
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=[instance_type],
            ProductDescriptions=["Linux/UNIX"],
            Filters=[{"Name": "availability-zone", "Values": list(zones)}] if any(zones) else [],
            StartTime=now,  # the price that is in force then, of each zone
            EndTime=now,
        )
        with self._asking("describe spot price history"):
            newest = {}
            for row in sorted(rows, key=lambda row: row["Timestamp"]):
                newest[row["AvailabilityZone"]] = float(row["SpotPrice"])
            return max(newest.values(), default=None)


def _skew(response: Any) -> float:
    """Seconds that this machine's clock is ahead of that of whoever answered."""
    sent = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return time.time() - parsedate_to_datetime(sent).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _instance_type(item: dict[str, Any]) -> InstanceType:
    gpus = item.get("GpuInfo", {}).get("Gpus", ())
    return InstanceType(
        name=item["InstanceType"],
        vcpus=int(item["VCpuInfo"]["DefaultVCpus"]),
        gpus=sum(int(gpu.get("Count", 1)) for gpu in gpus),
        gpu_maker=gpus[0].get("Manufacturer", "") if gpus else "",
        clusters="cluster" in item.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
        efa=_efa_cards(item.get("NetworkInfo", {})),
        architectures=tuple(item.get("ProcessorInfo", {}).get("SupportedArchitectures", ())),
        markets=tuple(item.get("SupportedUsageClasses", _MARKETS)),
    )


def _efa_cards(network: dict[str, Any]) -> tuple[str, ...]:
    """The first card has an address of its own, and the others none: with many they would use up a
    subnet, and confuse Linux about the way back. Source: EC2 User Guide, "Maximize network
    bandwidth on Amazon EC2 instances with multiple network cards"."""
    if not network.get("EfaSupported"):
        return ()
    cards = sorted(network.get("NetworkCards", ()), key=lambda card: int(card["NetworkCardIndex"]))
    # Without a word about a card, it has what its type has.
    can = [_EFA in card.get("InterfaceTypes", (_EFA,)) for card in cards] or [True]
    others = [f"{_EFA}-only" for card in can[1:] if card]
    most = int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", len(can)))
    return (_EFA if can[0] else "interface", *others[: most - can[0]])


def _image(item: dict[str, Any]) -> Image:
    root = item.get("RootDeviceName", "")
    disks = [
        int(disk["Ebs"].get("VolumeSize", 0))
        for disk in item.get("BlockDeviceMappings", ())
        if disk.get("DeviceName") == root and "Ebs" in disk
    ]
    return Image(
        id=item["ImageId"],
        architecture=item.get("Architecture", "x86_64"),
        disk=max(disks, default=0),
        device=root or _ROOT,
        windows=item.get("Platform", "") == "windows",
        name=item.get("Name", ""),
        description=item.get("Description", ""),
        platform=item.get("PlatformDetails", ""),
        owner=item.get("ImageOwnerAlias") or item.get("OwnerId", ""),
    )


def _ended(reason: str) -> float | None:
    """`User initiated (2026-11-22 21:30:00 GMT)`, or `Service initiated`; else there is no time."""
    found = re.search(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)", reason)
    return calendar.timegm(time.strptime(found[1], "%Y-%m-%d %H:%M:%S")) if found else None


def _instance(item: dict[str, Any]) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    launched = item.get("LaunchTime")
    reason = str(item.get("StateTransitionReason", ""))
    return Instance(
        id=item["InstanceId"],
        node=tags.get("clusterctl:node", "")
        or numbers.node(tags.get(numbers.TAG, ""), int(item.get("AmiLaunchIndex", 0))),
        apart=numbers.TAG in tags,
        type=item.get("InstanceType", ""),
        state=item["State"]["Name"],
        zone=item.get("Placement", {}).get("AvailabilityZone", ""),
        address=item.get("PublicIpAddress", ""),
        private_address=item.get("PrivateIpAddress", ""),
        launched=launched.timestamp() if launched else 0.0,
        spot=item.get("InstanceLifecycle") == "spot",
        subnet=item.get("SubnetId", ""),
        ended=_ended(reason),
        why=item.get("StateReason", {}).get("Code", "") or reason.partition(" (")[0],
    )

"""What we ask AWS ourselves, beside Terraform: a method for each question.

Every call has a time limit; whatever goes wrong becomes a ProviderError that says what to do.
"""

from __future__ import annotations

import base64
import calendar
import json
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from email.utils import parsedate_to_datetime
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import refusals
from clusterctl.machines.ec2.refusals import RefusedByAws

# -------------------------------------------------------------------------------------------------
# Whose AWS account it is: boto3 finds the credentials, and Terraform gets those.
#
# boto3 and the AWS provider look for them in different orders: with both AWS_PROFILE and keys in
# the environment, each takes another one. Nor does the provider know every kind of profile. So it
# is given what boto3 found: keys that last in its environment, others by an endpoint like that of a
# container on AWS, from which it fetches new ones before the old ones end.


CLI_CACHE = "~/.aws/cli/cache"
"""Where `aws` keeps the sessions of roles: an MFA code that it has asked for counts for us, too."""

LEASE = 480.0
"""Seconds after which Terraform asks again. boto3 hands out credentials that are good for ten
minutes at least."""

_OTHERS = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)
"""What else would tell Terraform's provider who we are."""

_SETTINGS = {
    "ca_bundle": "AWS_CA_BUNDLE",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "use_dualstack_endpoint": "AWS_USE_DUALSTACK_ENDPOINT",
    "use_fips_endpoint": "AWS_USE_FIPS_ENDPOINT",
}
"""What a profile says beside credentials, and the provider needs."""


class Credentials:
    """Those of the user, for `region`. Nobody is asked for an MFA code: threads and scripts run
    here."""

    def __init__(self, region: str) -> None:
        import boto3
        import botocore.session
        from botocore.credentials import create_credential_resolver

        self._core = core = botocore.session.get_session()
        resolver = create_credential_resolver(core, cache=_open_cache(), region_name=region)
        # By the constructor, all that the resolver knows would have to be given again.
        resolver.get_provider("assume-role")._prompter = _refuse
        core.register_component("credential_provider", resolver)
        self.session = boto3.session.Session(botocore_session=core, region_name=region)

    @contextmanager
    def lend(self, lease: float) -> Iterator[dict[str, str]]:
        """What Terraform's environment has to hold while the block runs; "" is what must not be
        there. `lease`: seconds after which it asks again. Raises as boto3 does."""
        from botocore.credentials import RefreshableCredentials
        from botocore.exceptions import NoCredentialsError

        found = self.session.get_credentials()
        if found is None:
            raise NoCredentialsError
        profile = self._core.get_scoped_config()
        clean = {
            **dict.fromkeys(_OTHERS, ""),
            **{
                name: str(profile[key])
                for key, name in _SETTINGS.items()
                if key in profile and name not in os.environ
            },
            # A default profile of theirs would go before the endpoint.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        keys = found.get_frozen_credentials()
        if not isinstance(found, RefreshableCredentials):
            yield {
                **clean,
                "AWS_ACCESS_KEY_ID": keys.access_key,
                "AWS_SECRET_ACCESS_KEY": keys.secret_key,
                "AWS_SESSION_TOKEN": keys.token or "",
            }
            return
        endpoint = _Endpoint(found.get_frozen_credentials, lease)
        threading.Thread(target=endpoint.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield {
                **clean,
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": endpoint.url,
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": endpoint.token,
            }
        finally:
            endpoint.shutdown()
            endpoint.server_close()


def _open_cache() -> Any:
    """The sessions that `aws` keeps; where it cannot be written, ours are kept in memory alone."""
    from botocore.utils import JSONFileCache

    class Cache(JSONFileCache):  # type: ignore[misc]
        def __setitem__(self, key: str, value: object) -> None:
            with suppress(OSError):
                super().__setitem__(key, value)

    return Cache(str(Path(CLI_CACHE).expanduser()))


def _refuse(prompt: str) -> str:
    raise refusals.make_unanswered_error(
        "reading your AWS credentials", "RefreshWithMFAUnsupportedError", ""
    )


class _Endpoint(ThreadingHTTPServer):
    """Hands out credentials on this machine to whoever knows the token."""

    daemon_threads = True

    def __init__(self, ask: Callable[[], Any], lease: float) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.ask = ask
        self.lease = lease
        self.token = secrets.token_urlsafe(32)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: whoever asked has ended, and stderr is for people."""


class _Answer(BaseHTTPRequestHandler):
    server: _Endpoint
    timeout = 10

    def do_GET(self) -> None:
        if not secrets.compare_digest(self.headers.get("Authorization", ""), self.server.token):
            self._reply(403, {"code": "Forbidden", "message": "wrong token"})
            return
        try:
            keys = self.server.ask()
        except Exception as error:  # boto3 raises much, and Terraform shows what it is told
            self._reply(500, {"code": type(error).__name__, "message": str(error)})
            return
        end = datetime.fromtimestamp(time.time() + self.server.lease, timezone.utc)
        self._reply(
            200,
            {
                "AccessKeyId": keys.access_key,
                "SecretAccessKey": keys.secret_key,
                "Token": keys.token,
                "Expiration": f"{end:%Y-%m-%dT%H:%M:%SZ}",
            },
        )

    def _reply(self, status: int, what: dict[str, str]) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: stderr is for people."""


# -------------------------------------------------------------------------------------------------
# What AWS's answers say, as values: instance types, images, instances, prices, clocks. Pure.


_DRAWN = re.compile(r"/[A-Za-z-]*\d{9,}$")
"""The name of a session that an SDK has made up from the time."""


def name_owner(arn: str) -> str:
    """Who that is, as a tag may have it: `user/ana`, `assumed-role/Train/ana@example.org`."""
    who = _DRAWN.sub("", arn.split(":", 5)[-1])
    return re.sub(r"[^\w +=.:/@-]", "_", who)[:256]


_MARKETS, _ROOT, _EFA = ("on-demand", "spot"), "/dev/sda1", "efa"


class InstanceType(Struct, frozen=True, kw_only=True):
    """What EC2 says about a type. `gpu_maker` and `gpu`, what they are called, are empty without
    GPUs."""

    name: str
    vcpus: int
    gpus: int = 0
    gpu_maker: str = ""
    gpu: str = ""
    clusters: bool = False
    """Whether it may be in a cluster placement group."""
    efa: tuple[str, ...] = ()
    """What the interface of each network card is where Elastic Fabric Adapters are used, as
    infra/ec2 has it; () without any."""
    architectures: tuple[str, ...] = ("x86_64",)
    markets: tuple[str, ...] = _MARKETS
    """How it can be bought; also `capacity-block`."""
    free_plan: bool = False
    """Whether an account on AWS's free plan can start it."""


class Image(Struct, frozen=True, kw_only=True):
    """A machine image. `disk`: the size in GiB of its root snapshot, which a disk has to hold;
    `device`: what the root disk is called; `platform`: what is billed for its system;
    `maker`: who made it with clusterctl."""

    id: str
    architecture: str = "x86_64"
    disk: int = 0
    device: str = _ROOT
    name: str = ""
    platform: str = ""
    maker: str = ""


class Instance(Struct, frozen=True, kw_only=True):
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
    born: float | None = None
    """When its first disk was attached: `launched` is when it was started last."""
    why: str = ""
    """EC2's code for that, such as Server.SpotInstanceTermination, else who did it."""
    shared: str = ""
    """The folder that it shares with the other nodes of its cluster."""


LIVING = ("pending", "running", "stopping", "stopped", "shutting-down")
STOPPED = ("stopping", "stopped")
ENDED = ("shutting-down", "terminated")


def find_highest_price(texts: Iterable[str], usage: str = "") -> float | None:
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


class _PriceQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What AWS's price list is asked for: a row of prices.toml, which explains it."""

    service: str
    fields: dict[str, str]
    usage: str = ""


_PRICE_QUERIES = msgspec.toml.decode(
    Path(__file__).with_name("prices.toml").read_bytes(), type=dict[str, _PriceQuery]
)


def read_skew(response: Any) -> float:
    """Seconds that this machine's clock is ahead of that of whoever answered."""
    sent = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return time.time() - parsedate_to_datetime(sent).timestamp()
    except (TypeError, ValueError):
        return 0.0


def read_instance_type(item: dict[str, Any]) -> InstanceType:
    gpus = item.get("GpuInfo", {}).get("Gpus", ())
    return InstanceType(
        name=item["InstanceType"],
        vcpus=int(item["VCpuInfo"]["DefaultVCpus"]),
        gpus=sum(int(gpu.get("Count", 1)) for gpu in gpus),
        gpu_maker=gpus[0].get("Manufacturer", "") if gpus else "",
        gpu=gpus[0].get("Name", "") if gpus else "",
        clusters="cluster" in item.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
        efa=_choose_efa_cards(item.get("NetworkInfo", {})),
        architectures=tuple(item.get("ProcessorInfo", {}).get("SupportedArchitectures", ())),
        markets=tuple(item.get("SupportedUsageClasses", _MARKETS)),
        free_plan=bool(item.get("FreeTierEligible")),
    )


def _choose_efa_cards(network: dict[str, Any]) -> tuple[str, ...]:
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


def read_image(item: dict[str, Any]) -> Image:
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
        name=item.get("Name", ""),
        platform=item.get("PlatformDetails") or item.get("Platform", "").capitalize(),
        maker=read_tags(item).get(OWNER_TAG, ""),
    )


def _read_end(reason: str) -> float | None:
    """`User initiated (2026-11-22 21:30:00 GMT)`, or `Service initiated`; else there is no time."""
    found = re.search(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)", reason)
    with suppress(ValueError):
        return calendar.timegm(time.strptime(found[1], "%Y-%m-%d %H:%M:%S")) if found else None
    return None


def read_instance(item: dict[str, Any]) -> Instance:
    tags = read_tags(item)
    launched = item.get("LaunchTime")
    reason = str(item.get("StateTransitionReason", ""))
    disks = [disk.get("Ebs", {}) for disk in item.get("BlockDeviceMappings", ())]
    return Instance(
        id=item["InstanceId"],
        node=tags.get("clusterctl:node", ""),
        shared=tags.get("clusterctl:shared", ""),
        type=item.get("InstanceType", ""),
        state=item["State"]["Name"],
        zone=item.get("Placement", {}).get("AvailabilityZone", ""),
        address=item.get("PublicIpAddress", ""),
        private_address=item.get("PrivateIpAddress", ""),
        launched=launched.timestamp() if launched else 0.0,
        spot=item.get("InstanceLifecycle") == "spot",
        subnet=item.get("SubnetId", ""),
        ended=_read_end(reason),
        born=min((d["AttachTime"].timestamp() for d in disks if "AttachTime" in d), default=None),
        why=item.get("StateReason", {}).get("Code", "") or reason.partition(" (")[0],
    )


# -------------------------------------------------------------------------------------------------
# Tags: clusterctl's own, by which all of a cluster is found again, and those of --tag, which some
# organizations demand of whatever is made. Pure.


TAG, NAME_TAG = "clusterctl:cluster", "clusterctl:name"
OWNER_TAG, CLIENT_TAG, DEADLINE_TAG, SHARED_TAG = (
    "clusterctl:owner",
    "clusterctl:client",
    "clusterctl:deadline",
    "clusterctl:shared",
)
UNUSED_TAG = "clusterctl:unused"
"""On a NAT gateway that was removed before it was there: AWS does not bill it, and shows it as it
shows others that were deleted."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def parse_tags(texts: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE` of --tag; of equal keys the last counts. Raises UsageError."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        ours = key.lower().startswith(("aws:", "clusterctl:")) or key == "Name"
        if not equals or not key or ours:
            taken = f"{key} is reserved by AWS or set by clusterctl itself"
            raise UsageError(
                f"--tag {text!r}: {taken if ours else 'not KEY=VALUE'}",
                hint="choose another key" if ours else "for example --tag team=ml",
            )
        found[key] = value
    return found


def add(before: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """Those of a cluster with more: tags can be added and changed, not removed."""
    tags = {**parse_tags(before), **parse_tags(more)}
    return tuple(f"{key}={value}" for key, value in tags.items())


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """As calls of the API take them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def read_tags(item: Mapping[str, Any]) -> dict[str, str]:
    """Of what EC2 describes."""
    return {tag["Key"]: str(tag["Value"]) for tag in item.get("Tags", item.get("TagSet", ()))}


def filter_by_cluster(cluster_id: str) -> dict[str, Any]:
    """The filter for what belongs to that cluster."""
    return {"Name": f"tag:{TAG}", "Values": [cluster_id]}


def render_deadline(deadline: float) -> str:
    """As the tag has it: 2026-11-22T21:30:00Z."""
    return time.strftime(_TIME, time.gmtime(deadline))


def read_deadline(tag: str) -> float | None:
    """Seconds since the epoch; None for what is no time."""
    try:
        return float(calendar.timegm(time.strptime(tag, _TIME)))
    except ValueError:
        return None


# -------------------------------------------------------------------------------------------------
# How we ask AWS, beside Terraform: boto3, with time limits and with errors that say what to do.
# boto3 comes with the first question.


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
    "freetier": (2.0, 4.0, 2),
}
"""By service. Nobody waits long for what a cluster can do without, or for what is in a table."""


POLL = 2
"""Seconds between two looks whether machines have stopped or started."""


def choose_region() -> str:
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
        raise refusals.make_unanswered_error(doing, type(error).__name__, str(error)) from error


def _doubt(region: str) -> str:
    """What to say of a region that botocore does not know: it may be newer, or mistyped."""
    from botocore.loaders import create_loader

    known = [
        name
        for part in create_loader().load_data("endpoints")["partitions"]
        for name in part["regions"]
    ]
    if region in known:
        return ""
    close = "".join(f"did you mean {name}? " for name in get_close_matches(region, known, n=1))
    return f"is there a region {region!r}? {close}"


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
        self._clients: dict[tuple[str, str], Any] = {}
        self._making = threading.Lock()

    def _get_client(self, service: str, region: str = "") -> Any:
        """Made once: that takes longer than many an answer."""
        from botocore.config import Config

        key = service, region or self.region
        connect, read, attempts = HURRIED if self._hurried else LIMITS.get(service, USUAL)
        # A session may make clients for one thread at a time.
        with self._making, self._explain_errors(f"talking to {service}"):
            if key not in self._clients:
                limits = Config(
                    connect_timeout=connect,
                    read_timeout=read,
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    max_pool_connections=16,
                    user_agent_extra="clusterctl",
                )
                session = self._credentials.session
                self._clients[key] = session.client(*key, config=limits)
            return self._clients[key]

    @cached_property
    def _credentials(self) -> Credentials:
        return Credentials(self.region)

    @contextmanager
    def lend_credentials(self, lease: float = LEASE) -> Iterator[dict[str, str]]:
        """Our credentials for a program, by its environment, as long as the block runs. It asks for
        them again after `lease` seconds, where they end. Raises ProviderError."""
        with ExitStack() as stack:
            with self._making, self._explain_errors("reading your AWS credentials"):
                environment = stack.enter_context(self._credentials.lend(lease))
            yield environment

    @contextmanager
    def _explain_errors(self, doing: str) -> Iterator[None]:
        """Around a question and the reading of its answer."""
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            yield
        except ClientError as error:
            said = error.response.get("Error", {})
            raise refusals.make_refusal(
                doing,
                str(said.get("Code", "")),
                str(said.get("Message", "")),
                self.region,
                read_skew(error.response),
            ) from error
        except BotoCoreError as error:
            raise refusals.make_unanswered_error(doing, type(error).__name__, str(error)) from error
        except (ResponseParserError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise refusals.make_unreadable_error(
                doing, f"{type(error).__name__}: {error}"
            ) from error

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        """One call, such as `terminate_instances`. Raises ProviderError."""
        client = self._get_client(service)
        with self._explain_errors(action.replace("_", " ")):
            return getattr(client, action)(**arguments)

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        """All pages of one `describe_…` or `list_…` call."""
        client = self._get_client(service)
        with self._explain_errors(action.replace("_", " ")):
            if not client.can_paginate(action):
                return list(getattr(client, action)(**arguments).get(key, ()))
            pages = client.get_paginator(action).paginate(**arguments)
            return [item for page in pages for item in page.get(key, ())]

    def wait(self, waiter: str, seconds: float, **arguments: Any) -> None:
        """Until `waiter`, one of boto3's for EC2, sees what it waits for. Raises ProviderError."""
        from botocore.exceptions import WaiterError

        waiting = self._get_client("ec2").get_waiter(waiter)
        tries = {"Delay": POLL, "MaxAttempts": round(seconds / POLL)}
        try:
            waiting.wait(WaiterConfig=tries, **arguments)
        except WaiterError as error:
            raise ProviderError(
                f"waiting for {waiter.replace('_', ' ')}: {error}",
                hint="check it in the EC2 console, and run the same command again",
            ) from error

    def find_account(self) -> str:
        """The account that the credentials belong to: the cheapest proof that they work.

        In a region that the account has not enabled, good credentials look like wrong ones: then
        another region is asked, too.
        """
        try:
            return self._ask_account(self.region)
        except ProviderError as refused:
            refused.hint = f"{_doubt(self.region)}{refused.hint}"
            if self.region == DEFAULT_REGION or not refusals.may_be_not_enabled(refused):
                raise
            try:
                self._ask_account(DEFAULT_REGION)
            except ProviderError:
                raise refused from None
            raise refusals.make_not_enabled_error(self.region) from refused

    def _ask_account(self, region: str) -> str:
        client = self._get_client("sts", region)
        with self._explain_errors("checking your AWS credentials"):
            found = client.get_caller_identity()
            self.owner = name_owner(str(found["Arn"]))
            self.ahead = read_skew(found)
            return str(found["Account"])

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

    def has_free_plan(self) -> bool:
        """Whether the account is on AWS's free plan, with which it can start few types."""
        client = self._get_client("freetier", DEFAULT_REGION)
        with self._explain_errors("asking for the plan of your account"):
            return bool(client.get_account_plan_state()["accountPlanType"] == "FREE")

    def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
        """Those of the types that this region has."""
        return self._list_types("instance-type", sorted(set(names)))

    def list_free_types(self) -> dict[str, InstanceType]:
        """Those that an account on AWS's free plan can start in this region."""
        return self._list_types("free-tier-eligible", ["true"])

    def _list_types(self, filter: str, values: Sequence[str]) -> dict[str, InstanceType]:
        found = self.list_all(
            "describe_instance_types",
            "InstanceTypes",
            Filters=[{"Name": filter, "Values": list(values)}],
        )
        with self._explain_errors("describe instance types"):
            return {item["InstanceType"]: read_instance_type(item) for item in found}

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

    def find_image(self, owner: str, name: str) -> Image | None:
        """The newest available x86-64 image of that owner and name pattern."""
        wanted = {"name": name, "architecture": "x86_64", "state": "available"}
        filters = [{"Name": key, "Values": [value]} for key, value in wanted.items()]
        return self._find_newest(Owners=[owner], Filters=filters)

    def read_image(self, id: str) -> Image | None:
        """None where there is none of that id."""
        # Asked for by ImageIds, one that is unknown would be an error like any other.
        return self._find_newest(Filters=[{"Name": "image-id", "Values": [id]}])

    def _find_newest(self, **search: Any) -> Image | None:
        found = self.list_all("describe_images", "Images", **search)
        with self._explain_errors("describe images"):
            rows = sorted(found, key=lambda row: row.get("CreationDate", ""))
            return read_image(rows[-1]) if rows else None

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
            if refusals.is_account_error(refused):
                raise

    def read_console(self, instance: str) -> str:
        """The end of what a machine and its cloud-init have written to its console: 64 KiB."""
        answer = self.call("get_console_output", InstanceId=instance, Latest=True)
        return str(answer.get("Output", ""))

    def find_tenancy(self, vpc: str) -> str:
        """`default`, or `dedicated` where each machine gets hardware of the account's own."""
        [found] = self.list_all("describe_vpcs", "Vpcs", VpcIds=[vpc])
        return str(found.get("InstanceTenancy", "default"))

    def find_block_mode(self) -> str:
        """How VPC Block Public Access closes the region's internet gateways; `off`: not at all."""
        action, key = "describe_vpc_block_public_access_options", "VpcBlockPublicAccessOptions"
        return str(self.call(action)[key].get("InternetGatewayBlockMode", "off"))

    def find_quota(self, code: str) -> float:
        """The value of a quota of EC2, in vCPUs."""
        client = self._get_client("service-quotas")
        with self._explain_errors("asking for your EC2 quotas"):
            answer = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)
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

    def find_price(self, item: str) -> float | None:
        """On-demand, in US dollars: of an instance type (Linux) per hour, or of what a row of
        prices.toml is named after. None where the price list has no such product."""
        row = _PRICE_QUERIES.get(item, _PRICE_QUERIES["instance"])
        client = self._get_client("pricing", PRICING_REGION)
        with self._explain_errors("asking for prices"):
            answer = client.get_products(
                ServiceCode=row.service,
                Filters=[
                    {
                        "Type": "TERM_MATCH",
                        "Field": field,
                        "Value": value.format(item=item, region=self.region),
                    }
                    for field, value in row.fields.items()
                ],
                MaxResults=10,
            )
            return find_highest_price(answer["PriceList"], row.usage)

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


def check_making(
    api: Api, name: str, tag: Iterable[str], action: str, hint: str, **arguments: Any
) -> None:
    """Raises ProviderError where we may not make such a thing, with the tags that a cluster of this
    name gives it: Terraform would find out halfway."""
    kind = action.removeprefix("create_").replace("_", "-")
    kind = {"allocate-address": "elastic-ip"}.get(kind, kind)
    tags = [{"ResourceType": kind, "Tags": as_list({TAG: name, **parse_tags(tag)})}]
    try:
        api.check_right(action, TagSpecifications=tags, **arguments)
    except RefusedByAws as refused:
        raise ProviderError(refused.message, hint=f"{hint}; {refused.hint}") from refused


# -------------------------------------------------------------------------------------------------
# The instances of a cluster, by its tag.


SETTLE = 10.0
"""Seconds that AWS may not yet show what was made just before, by its tags:
https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html"""
AT_A_TIME = 1000
"""Machines that one call may end."""
MOST_TAGGED = 500
"""Resources that one call may tag; EC2 takes 1,000."""
T = TypeVar("T")


def split(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """In parts of at most so many."""
    return [items[first : first + size] for first in range(0, len(items), size)]


def find_instances(api: Api, cluster_id: str) -> list[Instance]:
    """Those of a cluster that run, or can be started again."""
    return api.list_instances(
        filter_by_cluster(cluster_id), states=("pending", "running", "stopping", "stopped")
    )


def terminate_instances(api: Api, cluster_id: str) -> None:
    """Begins to end all machines of a cluster at once, as far as AWS lets us. What is refused (a
    protected machine) is for who ends them one by one."""
    for ids in split([item.id for item in find_instances(api, cluster_id)], AT_A_TIME):
        with suppress(ProviderError):
            api.call("terminate_instances", InstanceIds=ids)


def label(api: Api, cluster_id: str, key: str, value: str) -> None:
    """Gives all that carries a cluster's tag another tag, whatever else it has."""
    mine = [{"Name": "key", "Values": [TAG]}, {"Name": "value", "Values": [cluster_id]}]
    found = [item["ResourceId"] for item in api.list_all("describe_tags", "Tags", Filters=mine)]
    for ids in split(found, MOST_TAGGED):
        if not label_if_there(api, ids, key, value):
            # One that is gone, and whose tags are still shown, keeps the others from theirs.
            for id in ids:
                label_if_there(api, [id], key, value)


def label_if_there(api: Api, ids: Sequence[str], key: str, value: str) -> bool:
    """Gives resources a tag, where all of them are still there: returns whether they are."""
    try:
        api.call("create_tags", Resources=ids, Tags=as_list({key: value}))
    except RefusedByAws as refused:
        if not refused.code.endswith(".NotFound"):
            raise
        return False
    return True

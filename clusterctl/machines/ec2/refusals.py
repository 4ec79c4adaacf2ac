"""What AWS answers, and what it means: tables by code, by text and by exception.

tests/unit/aws_errors.toml has AWS's own texts, each with its source and what becomes of it here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.errors import ProviderError
from clusterctl.machines.protocol import NoCapacity


@dataclass(frozen=True, slots=True)
class Known:
    """`what` and `hint` are for people. `capacity`: worth trying in the next zone; `account`: true
    of all that this user asks for, whatever it is; `passing`: it may be different in a moment, and
    the same request is worth repeating."""

    what: str
    hint: str
    capacity: bool = False
    account: bool = False
    passing: bool = False


_KEYS = "`aws sts get-caller-identity` shows who you are; run `aws configure` or `aws sso login`"
_NO_KEYS = "run `aws configure` or `aws sso login`"
_LOGIN = "run `aws sso login` or `aws login`, with --profile if AWS_PROFILE is set"
_ELSEWHERE = "try --zones, another --region, another --instance-type, or later"
_LATER = "try again in a few minutes; see https://health.aws.amazon.com/health/status"
_SUPPORT = "open a case at https://console.aws.amazon.com/support: only AWS can change that"
CLOCK = "set this machine's clock (`timedatectl set-ntp true`) and try again"
NETWORK = "check your network, your proxy and AWS_ENDPOINT_URL, and try again"
UNKNOWN = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html explains it"
_GC = (
    "`clusterctl gc` finds forgotten clusters; otherwise request a higher quota in the Service"
    " Quotas console, or use another --region"
)

_NO_CAPACITY = Known("no capacity", _ELSEWHERE, capacity=True)
_NOT_OFFERED = Known("this zone does not offer that", _ELSEWHERE, capacity=True)
_VCPUS = Known(
    "your quota of vCPUs is too small", "request a higher quota in the Service Quotas console"
)
_EXPIRED = Known("your AWS credentials have expired", _KEYS, account=True)
_UNKNOWN_KEYS = Known(
    "AWS does not recognize your credentials",
    _KEYS,
    account=True,
)
_RIGHTS = Known(
    "your AWS user is not allowed to do that",
    "infra/ec2/policy.json lists all the rights it needs; a deny in an organization's policy can"
    " only be lifted by its administrator",
    account=True,
)
_DENIED = Known(
    _RIGHTS.what,
    "if an organization's policy demands tags, give them with --tag KEY=VALUE; any other deny can"
    " only be lifted by its administrator; infra/ec2/policy.json lists all the rights it needs",
    account=True,
)
_BARRED = Known(
    _RIGHTS.what,
    "an organization's policy denies it: if it allows only certain regions, choose one of them with"
    " --region or AWS_REGION; otherwise only its administrator can lift it",
    account=True,
)
_THROTTLED = Known("AWS is throttling your account", "try again in a minute", passing=True)
_INTERNAL = Known("AWS reports an internal error", _LATER)
_MFA = Known(
    "the AWS profile asks for an MFA code",
    "run `aws sts get-caller-identity` first, with the same AWS_PROFILE: it asks for the code, and"
    ' the session that it keeps is used here; or `eval "$(aws configure export-credentials --format'
    ' env)"`',
)
_IN_USE = Known(
    "something else in the VPC still uses it",
    "run the same command again; what stays is shown with its id in the EC2 console",
)
NOT_YET = Known(
    "it does not exist in AWS, or not yet", "run the same command again in a minute", passing=True
)
_KMS = Known(
    "the key that encrypts disks cannot be used",
    "the account's default EBS encryption key has to be enabled, and its key policy has to let you"
    " use it: kms:CreateGrant, Decrypt, DescribeKey, GenerateDataKeyWithoutPlaintext, ReEncrypt",
)
_TAG_POLICY = Known(
    "a tag policy of your organization does not allow this tag or its value",
    "correct it: --tag KEY=VALUE; keys and values may have to be spelled in one way",
    account=True,
)
_NETWORK_QUOTA = Known("a quota of your account for networks is used up", _GC)

CODES = {
    # ---- machines
    "InsufficientInstanceCapacity": _NO_CAPACITY,
    "InsufficientHostCapacity": _NO_CAPACITY,
    "InsufficientReservedInstanceCapacity": _NO_CAPACITY,
    "InsufficientCapacity": _NO_CAPACITY,
    "InsufficientVolumeCapacity": _NO_CAPACITY,
    "UnfulfillableCapacity": _NO_CAPACITY,
    "ReservationCapacityExceeded": _NO_CAPACITY,
    "SpotMaxPriceTooLow": Known("no spot capacity", _ELSEWHERE, capacity=True),
    "Unsupported": _NOT_OFFERED,
    "MaxSpotInstanceCountExceeded": Known(
        "your quota of spot vCPUs is used up",
        "request a higher quota in the Service Quotas console, or leave --spot out",
    ),
    "VcpuLimitExceeded": _VCPUS,
    "InstanceLimitExceeded": _VCPUS,
    "VolumeLimitExceeded": Known(
        "your quota of disk space is used up",
        "a smaller --disk, fewer --workers, or a higher quota in the Service Quotas console",
    ),
    "InvalidBlockDeviceMapping": Known(
        "the disk is smaller than the image that is copied to it", "give a larger --disk"
    ),
    "InvalidAMIID.NotFound": Known(
        "there is no such machine image in this region",
        "images have a different id in each region: correct --ami, or leave it out",
    ),
    "InvalidAMIID.Unavailable": Known(
        "the machine image cannot be used any more", "choose another --ami, or leave it out"
    ),
    "InvalidKMSKey": _KMS,
    "Client.InvalidKMSKey": _KMS,
    "Client.InternalError": _KMS,
    "IncorrectInstanceState": Known(
        "the machine is changing its state", "run the same command again"
    ),
    "OperationNotPermitted": Known(
        "the machine is protected",
        "remove its stop or termination protection in the EC2 console (Actions, Instance settings)",
    ),
    "IdempotentParameterMismatch": Known(
        "AWS got the same request twice, with different contents", "run the same command again"
    ),
    # ---- networks
    "VpcLimitExceeded": Known("your quota of VPCs in this region is used up", _GC),
    "InternetGatewayLimitExceeded": _NETWORK_QUOTA,
    "NatGatewayLimitExceeded": _NETWORK_QUOTA,
    "NetworkInterfaceLimitExceeded": _NETWORK_QUOTA,
    "SecurityGroupLimitExceeded": _NETWORK_QUOTA,
    "AddressLimitExceeded": _NETWORK_QUOTA,
    "RulesPerSecurityGroupLimitExceeded": Known(
        "a security group has too many rules", "allow fewer networks at a time"
    ),
    "InsufficientFreeAddressesInSubnet": Known(
        "the subnet has no free addresses for so many machines", "use fewer --workers"
    ),
    "DependencyViolation": _IN_USE,
    "InvalidGroup.InUse": _IN_USE,
    "InvalidPlacementGroup.InUse": _IN_USE,
    "VPCIdNotSpecified": Known(
        "your account has no default VPC in this region",
        "clusterctl makes a VPC of its own; please report where this was needed",
    ),
    # ---- who asks
    "TagPolicyViolation": _TAG_POLICY,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestExpired": Known(
        "your AWS credentials have expired, or the clock is wrong", _KEYS, account=True
    ),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Known(
        "your account has no service-linked role for spot instances yet, and you may not create it",
        "ask an administrator to run once: `aws iam create-service-linked-role --aws-service-name"
        " spot.amazonaws.com`; or add the right from infra/ec2/policy.json",
        account=True,
    ),
    "AuthFailure": Known("AWS does not accept your credentials", _KEYS, account=True),
    "InvalidClientTokenId": _UNKNOWN_KEYS,
    "UnrecognizedClientException": _UNKNOWN_KEYS,
    "MissingAuthenticationToken": _UNKNOWN_KEYS,
    "SignatureDoesNotMatch": Known("your AWS secret key is wrong", _KEYS, account=True),
    "InvalidSignatureException": Known("your AWS secret key is wrong", _KEYS, account=True),
    "IncompleteSignature": Known("your AWS secret key is wrong", _KEYS, account=True),
    "UnauthorizedOperation": _RIGHTS,
    "AccessDenied": _RIGHTS,
    "AccessDeniedException": _RIGHTS,
    "OptInRequired": Known(
        "this region is not enabled for your account",
        "enable it in the AWS console (Account, AWS Regions), or choose another --region",
        account=True,
    ),
    "PendingVerification": Known(
        "AWS is still checking your account for this region",
        "AWS sends you an email, usually within minutes and at most after 4 hours; then try again",
        account=True,
    ),
    "Blocked": Known("AWS has blocked your account", _SUPPORT, account=True),
    "NotSignedUp": Known(
        "your AWS account is not activated yet",
        "AWS sends you an email when it is; see https://console.aws.amazon.com/billing",
        account=True,
    ),
    # ---- AWS
    "RequestLimitExceeded": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "TooManyRequestsException": _THROTTLED,
    "InternalError": _INTERNAL,
    "InternalFailure": _INTERNAL,
    "InternalServiceError": _INTERNAL,
    "ServiceUnavailable": _INTERNAL,
    "Unavailable": _INTERNAL,
}

TEXTS = (
    (
        r"perform: ec2:(RunInstances|CreateTags|Create[A-Z]\w+|ImportKeyPair) on .* explicit deny",
        _DENIED,
    ),
    (r"explicit deny in a service control policy", _BARRED),
    (r"[Tt]ag policy does not allow", _TAG_POLICY),
    (
        r"not eligible for Free Tier",
        Known(
            "your account is on AWS's free plan, which has only a few small instance types",
            "upgrade it to the paid plan in the Billing console; remaining credits stay usable",
            account=True,
        ),
    ),
    (
        r"AWS Marketplace product",
        Known(
            "the machine image is from the AWS Marketplace, and you have not subscribed to it",
            "open the address in the message and accept its terms, or leave --ami out",
        ),
    ),
    (
        r"Signature (not yet current|expired)",
        Known("this machine's clock is wrong", CLOCK, account=True),
    ),
    (
        r"EBS-optimized instances are not supported",
        Known("this instance type is too old", "choose a current --instance-type"),
    ),
    (
        r"architecture .* does not match the architecture",
        Known(
            "instance type and machine image are for different processors",
            "choose an x86_64 type such as c7i.xlarge, or another --ami",
        ),
    ),
    (
        r"associated with a one-time Spot Instance request",
        Known(
            "a spot instance can be neither stopped nor started", "`clusterctl up` makes a new one"
        ),
    ),
    (
        r"AssumeRoleTokenProvider session option not set",
        _MFA,
    ),
    (
        r"SSO session has expired|retrieving token from sso|Token has expired and refresh failed",
        Known("your AWS login has expired", _LOGIN),
    ),
    (r"[Nn]o valid credential sources", Known("Terraform finds no AWS credentials", _NO_KEYS)),
    (r"[Cc]annot assume (IAM )?[Rr]ole|cannot be assumed", _RIGHTS),
)
"""What a message says, whatever its code is: looked at first."""

EXCEPTIONS = {
    "NoCredentialsError": Known("no AWS credentials found", _NO_KEYS),
    "PartialCredentialsError": Known("your AWS credentials are incomplete", _NO_KEYS),
    "CredentialRetrievalError": Known("your AWS credentials cannot be read", _KEYS),
    "InvalidConfigError": Known("your AWS configuration is invalid", "correct ~/.aws/config"),
    "ConfigParseError": Known("your AWS configuration cannot be read", "correct ~/.aws/config"),
    "InfiniteLoopConfigError": Known(
        "the source_profile of your AWS profile refers back to it", "correct ~/.aws/config"
    ),
    "UnauthorizedSSOTokenError": Known("your AWS login has expired", _LOGIN),
    "SSOTokenLoadError": Known("your AWS login has expired", _LOGIN),
    "TokenRetrievalError": Known("your AWS login has expired", _LOGIN),
    "ProfileNotFound": Known("no such AWS profile", "correct AWS_PROFILE"),
    "InvalidRegionError": Known(
        "the name of the region is invalid", "correct --region or AWS_REGION"
    ),
    "MissingDependencyException": Known(
        "your AWS profile needs a package that is missing",
        "install it: `pip install 'botocore[crt]'`",
    ),
    "SSLError": Known(
        "the connection to AWS is not trusted",
        "behind a proxy that replaces certificates, set AWS_CA_BUNDLE to its certificate",
    ),
    "ProxyConnectionError": Known(
        "the proxy does not answer",
        "correct HTTPS_PROXY, or add amazonaws.com to NO_PROXY",
        passing=True,
    ),
    "EndpointConnectionError": Known(
        "AWS cannot be reached",
        f"check --region and AWS_REGION for a typing error; {NETWORK}",
        passing=True,
    ),
    "RefreshWithMFAUnsupportedError": _MFA,
    "LoginRefreshRequired": Known("your AWS login has expired", _LOGIN),
    "LoginTokenLoadError": Known("your AWS login has expired", _LOGIN),
}

MAYBE_NOT_ENABLED = frozenset(
    {"AuthFailure", "InvalidClientTokenId", "OptInRequired", "UnrecognizedClientException"}
)
"""What credentials are told in a region that their account has not enabled."""

PLAIN = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "RefreshWithMFAUnsupportedError"}
)
"""Whose own message says no more than ours."""

UNSIGNED = frozenset(
    {"AccessDenied", "AccessDeniedException", "OptInRequired", "UnauthorizedOperation"}
)
"""Said to those whose signature is accepted, whatever their clock says."""

REPEATED = frozenset(
    {
        "InvalidGroup.Duplicate",
        "InvalidKeyPair.Duplicate",
        "InvalidPermission.Duplicate",
        "InvalidPermission.NotFound",
        "InvalidPlacementGroup.Duplicate",
        "Resource.AlreadyAssociated",
        "RouteAlreadyExists",
    }
)
"""What a call is told that was done before: AWS's SDK asks again where an answer got lost."""


# -------------------------------------------------------------------------------------------------
# What AWS answers, in words that help: errors by the tables of `known_failures`. Pure.


class RefusedByAws(ProviderError):
    """AWS said no, with this code."""

    code = ""


class WrongClock(RefusedByAws):
    """This machine's clock is so wrong that AWS does not accept what it signs."""


class CapacityError(RefusedByAws, NoCapacity):
    """No machines of the wanted kind in a zone: another may have some."""


SKEW = 300.0
"""Seconds that a signature may be from AWS's own time."""


def make_refusal(
    doing: str, code: str, message: str, region: str, skew: float = 0.0
) -> RefusedByAws:
    """The error for what AWS said to a call of ours. `skew`: seconds that this machine's clock is
    ahead of AWS's, negative where it is behind."""
    message = _make_readable(message)
    known, kind = _find_known(code, message), RefusedByAws
    if known and known.account and abs(skew) > SKEW and code not in UNSIGNED:
        known = Known(describe_skew(skew), CLOCK, account=True)
    if known and known.hint == CLOCK:
        kind = WrongClock
    if known is None:
        error = RefusedByAws(f"{doing} failed in {region}: {code}: {message}", hint=UNKNOWN)
    else:
        kind = CapacityError if known.capacity else kind
        error = kind(f"{doing}: {known.what} ({code}: {message})", hint=known.hint)
    error.code = code
    return error


def describe_skew(seconds: float) -> str:
    """`this machine's clock is 4 min behind AWS's`; `seconds` that it is ahead."""
    late = abs(seconds)
    far = f"{late / 3600:.1f} h" if late >= 5400 else f"{late / 60:.0f} min"
    if late < 90:
        far = f"{late:.0f} s"
    return f"this machine's clock is {far} {'ahead of' if seconds > 0 else 'behind'} AWS's"


def make_clock_error(skew: float) -> WrongClock:
    """The error for a clock that no deadline can be computed with."""
    return WrongClock(describe_skew(skew), hint=CLOCK)


def make_not_enabled_error(region: str) -> ProviderError:
    """The error for a region that the account has to opt in to first."""
    known = CODES["OptInRequired"]
    return ProviderError(f"{region}: {known.what}", hint=known.hint)


def _find_known(code: str, message: str = "") -> Known | None:
    """The row of what the message says, else of a code such as `AuthFailure.Detail`: its own, or
    that of what it begins with. The reason why a machine has ended begins with whose fault it is
    (`Client.VolumeLimitExceeded`)."""
    for pattern, known in TEXTS:
        if re.search(pattern, message):
            return known
    if code not in CODES and re.fullmatch(r"Invalid\w+\.NotFound", code):
        return NOT_YET
    parts = (code if code in CODES else re.sub(r"^(Client|Server)\.", "", code)).split(".")
    shorter = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((CODES[one] for one in shorter if one in CODES), None)


def is_permanent(error: ProviderError) -> bool:
    """Whether asking again cannot help: not before a person has changed something."""
    if not isinstance(error, RefusedByAws):
        return False
    return error.code == "OperationNotPermitted" or is_account_error(error)


def is_account_error(refused: RefusedByAws) -> bool:
    """Whether this user would be told the same about anything else."""
    known = _find_known(refused.code, refused.message)
    return known is not None and known.account


def make_unreadable_error(doing: str, what: str) -> ProviderError:
    """The error for an answer that is not what AWS sends, such as the login page of a network."""
    return ProviderError(
        f"{doing}: the answer cannot be read ({what}), so it is probably not from AWS",
        hint="check your network, your proxy and AWS_ENDPOINT_URL, and try again",
        transient=True,
    )


def make_unanswered_error(doing: str, exception: str, message: str) -> ProviderError:
    """The error for a call that did not get through."""
    known = EXCEPTIONS.get(exception) or _find_known("", message)
    if known is None:
        return ProviderError(
            f"{doing}: AWS did not answer: {message}", hint=NETWORK, transient=True
        )
    said = "" if exception in PLAIN else f" ({message})"
    # What was to be done matters no more where nothing can be.
    what = known.what if "credentials" in known.what else f"{doing}: {known.what}"
    return ProviderError(f"{what}{said}", hint=known.hint, transient=known.passing)


def is_repeated(texts: Iterable[str]) -> bool:
    """Whether Terraform failed over a call of its own whose answer had got lost: the thing is
    there, and Terraform does not know."""
    said = " ".join(" ".join(texts).split())
    return not REPEATED.isdisjoint(re.findall(r"api error ([\w.]+\w)", said))


def is_transient(texts: Iterable[str]) -> bool:
    """Whether Terraform failed over nothing but what may be different in a moment."""
    found = [known for text in texts for known in _find_in_terraform(text)]
    return bool(found) and all(known.passing for known in found)


def from_terraform(texts: Iterable[str]) -> ProviderError | None:
    """The first thing that we know in what Terraform said; a capacity error goes first."""
    found = []
    for text in texts:
        flat = " ".join(text.split())
        for known in _find_in_terraform(text):
            kind = CapacityError if known.capacity else ProviderError
            found.append(kind(f"{known.what} ({_make_readable(flat)[:500]})", hint=known.hint))
    return next((item for item in found if isinstance(item, CapacityError)), None) or next(
        iter(found), None
    )


def _make_readable(message: str) -> str:
    """Without what only fills the line: the number of a request, and what AWS has told in words
    already, in a code that takes a right of its own to read. In one line."""
    if "<html" in message.lower():
        return "received a web page instead of an answer, perhaps from a proxy"
    message = re.sub(r"https? response error StatusCode: \d+, RequestID: [\w-]*, ", "", message)
    if "not authorized to perform: " in message:
        message = re.sub(r"\s*Encoded authorization failure message: \S{64,}", "", message)
    return re.sub(r"\s*\n\s*", " ", message.strip())


_QUOTED = re.compile(
    r"api error ([\w.]*\w)"
    r"|\b([A-Z]\w+(?:Exceeded|Capacity|Failure))\b"
    rf"|\b({'|'.join(map(re.escape, sorted(CODES, key=len, reverse=True)))})(?:\.\w+)?:"
)


def _find_in_terraform(text: str) -> list[Known]:
    flat = " ".join(text.split())
    if said := _find_known("", flat):
        return [said]
    codes = ("".join(code) for code in _QUOTED.findall(flat))
    return [known for code in codes if (known := _find_known(code))]

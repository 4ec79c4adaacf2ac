"""What AWS answers, in words that help: one table of error codes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.errors import ProviderError


class CapacityError(ProviderError):
    """No machines of the wanted kind here and now: another zone may have some."""


@dataclass(frozen=True, slots=True)
class Known:
    """`capacity`: worth trying in the next zone. `what` and `hint` are for people."""

    what: str
    hint: str
    capacity: bool = False


_KEYS = "`aws sts get-caller-identity` shows who you are; run `aws configure` or `aws sso login`"
_ELSEWHERE = "try --zones, another --region, another --instance-type, or later"
_LATER = "try again in a few minutes; see https://health.aws.amazon.com/health/status"

CODES = {
    "InsufficientInstanceCapacity": Known("no capacity", _ELSEWHERE, capacity=True),
    "InsufficientHostCapacity": Known("no capacity", _ELSEWHERE, capacity=True),
    "InsufficientReservedInstanceCapacity": Known("no capacity", _ELSEWHERE, capacity=True),
    "SpotMaxPriceTooLow": Known("no spot capacity", _ELSEWHERE, capacity=True),
    "Unsupported": Known("this zone does not offer that", _ELSEWHERE, capacity=True),
    "MaxSpotInstanceCountExceeded": Known(
        "your quota of spot vCPUs is used up",
        "request a higher quota in the Service Quotas console",
    ),
    "VcpuLimitExceeded": Known(
        "your quota of vCPUs is too small", "request a higher quota in the Service Quotas console"
    ),
    "InstanceLimitExceeded": Known(
        "your quota of vCPUs is too small", "request a higher quota in the Service Quotas console"
    ),
    "VpcLimitExceeded": Known(
        "your quota of VPCs in this region is used up",
        "`clusterctl gc` finds forgotten clusters; otherwise request a higher quota, or use another"
        " --region",
    ),
    "ExpiredToken": Known("your AWS credentials have expired", _KEYS),
    "RequestExpired": Known("your AWS credentials have expired, or the clock is wrong", _KEYS),
    "ExpiredTokenException": Known("your AWS credentials have expired", _KEYS),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Known(
        "your account has no service-linked role for spot instances yet, and you may not create it",
        "let an administrator run it once: `aws iam create-service-linked-role --aws-service-name"
        " spot.amazonaws.com`; or add the right from infra/ec2/policy.json",
    ),
    "AuthFailure": Known("AWS does not accept your credentials", _KEYS),
    "InvalidClientTokenId": Known("AWS does not know your credentials", _KEYS),
    "SignatureDoesNotMatch": Known("your AWS secret key is wrong", _KEYS),
    "UnrecognizedClientException": Known("AWS does not know your credentials", _KEYS),
    "UnauthorizedOperation": Known(
        "your AWS user is not allowed to do that",
        "infra/ec2/policy.json lists all the rights it needs",
    ),
    "AccessDenied": Known(
        "your AWS user is not allowed to do that",
        "infra/ec2/policy.json lists all the rights it needs",
    ),
    "AccessDeniedException": Known(
        "your AWS user is not allowed to do that",
        "infra/ec2/policy.json lists all the rights it needs",
    ),
    "OptInRequired": Known(
        "this region is not enabled for your account", "choose another --region"
    ),
    "RequestLimitExceeded": Known("AWS is throttling your account", "try again in a minute"),
    "InternalError": Known("AWS reports an internal error", _LATER),
    "InternalFailure": Known("AWS reports an internal error", _LATER),
    "ServiceUnavailable": Known("AWS reports an internal error", _LATER),
    "Unavailable": Known("AWS reports an internal error", _LATER),
    "Throttling": Known("AWS is throttling your account", "try again in a minute"),
}

_EXCEPTIONS = {
    "NoCredentialsError": Known("no AWS credentials found", _KEYS),
    "PartialCredentialsError": Known("your AWS credentials are incomplete", _KEYS),
    "CredentialRetrievalError": Known("your AWS credentials cannot be read", _KEYS),
    "ProfileNotFound": Known("no such AWS profile", "correct AWS_PROFILE"),
    "TokenRetrievalError": Known("your AWS login has expired", "`aws sso login`"),
    "SSOTokenLoadError": Known("your AWS login has expired", "`aws sso login`"),
    "UnauthorizedSSOTokenError": Known("your AWS login has expired", "`aws sso login`"),
}


_REPEATED = frozenset(
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


def refused(doing: str, code: str, message: str, region: str) -> ProviderError:
    """The error for what AWS said to a call of ours."""
    known = _known(code)
    if known is None:
        return ProviderError(f"{doing} failed in {region}: {code}: {message}", hint="see above")
    kind = CapacityError if known.capacity else ProviderError
    return kind(f"{doing}: {known.what} ({code}: {message})", hint=known.hint)


def _known(code: str) -> Known | None:
    """The row of a code such as `AuthFailure.Detail`: its own, else that of what it begins with."""
    return CODES.get(code) or CODES.get(code.partition(".")[0])


def unreadable(doing: str, what: str) -> ProviderError:
    """The error for an answer that is not what AWS sends, such as the login page of a network."""
    return ProviderError(
        f"{doing}: the answer cannot be read ({what}), so it is probably not from AWS",
        hint="check your network, your proxy and AWS_ENDPOINT_URL, and try again",
        transient=True,
    )


def not_asked(doing: str, exception: str, message: str) -> ProviderError:
    """The error for a call that did not get through."""
    known = _EXCEPTIONS.get(exception)
    if known is None:
        return ProviderError(
            f"{doing}: AWS did not answer: {message}",
            hint="check your network and AWS_ENDPOINT_URL, and try again",
            transient=True,
        )
    return ProviderError(f"{doing}: {known.what}", hint=known.hint)


def repeated(texts: Iterable[str]) -> bool:
    """Whether Terraform failed over a call of its own whose answer had got lost: the thing is
    there, and Terraform does not know."""
    said = " ".join(" ".join(texts).split())
    return not _REPEATED.isdisjoint(re.findall(r"api error ([\w.]+\w)", said))


def from_terraform(texts: Iterable[str]) -> ProviderError | None:
    """The first error code that we know in what Terraform said; a capacity error goes first."""
    found = []
    for text in texts:
        flat = " ".join(text.split())
        for code in re.findall(
            r"api error ([\w.]*\w)|\b([A-Z]\w+(?:Exceeded|Capacity|Failure))\b", flat
        ):
            known = _known(code[0] or code[1])
            if known:
                kind = CapacityError if known.capacity else ProviderError
                found.append(kind(f"{known.what} ({flat[:300]})", hint=known.hint))
    return next((item for item in found if isinstance(item, CapacityError)), None) or next(
        iter(found), None
    )

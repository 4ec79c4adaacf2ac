"""What AWS answers, and what it means: tables by code, by text and by exception.

tests/unit/aws_errors.toml has AWS's own texts, each with its source and what becomes of it here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from clusterctl.errors import ProviderError
from clusterctl.machines.protocol import NoCapacity

CLOCK = "set this machine's clock (`timedatectl set-ntp true`) and try again"
NETWORK = "check your network, your proxy and AWS_ENDPOINT_URL, and try again"
UPGRADE = "upgrade it to the paid plan in the Billing console; remaining credits stay usable"
UNKNOWN = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html explains it"


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One meaning, and how it is said: a row of refusals.toml, which explains the fields."""

    what: str
    hint: str
    codes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    capacity: bool = False
    account: bool = False
    passing: bool = False
    signed: bool = False
    plain: bool = False


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    not_enabled: frozenset[str]
    repeated: frozenset[str]
    refusal: tuple[Known, ...]


# Read with the module: whatever asks AWS does so in several threads, and msgspec must not learn a
# type in two of them at once.
_TABLE = msgspec.toml.decode(Path(__file__).with_name("refusals.toml").read_bytes(), type=_Table)
_BY_CODE = {code: row for row in _TABLE.refusal for code in row.codes}
_CODES = "|".join(map(re.escape, sorted(_BY_CODE, key=len, reverse=True)))
_QUOTED = re.compile(
    r"api error ([\w.]*\w)"
    r"|\b([A-Z]\w+(?:Exceeded|Capacity|Failure))\b"
    rf"|\b({_CODES})(?:\.\w+)?:"
)
"""Codes as Terraform quotes them."""


class RefusedByAws(ProviderError):
    """AWS said no, with this code."""

    code = ""


class CapacityError(RefusedByAws, NoCapacity):
    """No machines of the wanted kind in a zone: another may have some. `said`: AWS's own words."""

    said = ""


SKEW = 300.0
"""Seconds that a signature may be from AWS's own time."""


def make_refusal(
    doing: str, code: str, message: str, region: str, skew: float = 0.0
) -> RefusedByAws:
    """The error for what AWS said to a call of ours. `skew`: seconds that this machine's clock is
    ahead of AWS's, negative where it is behind."""
    message = _make_readable(message)
    known = _find_known(code, message)
    if known and known.account and not known.signed and abs(skew) > SKEW:
        known = Known(what=describe_skew(skew), hint=CLOCK)
    if known is None:
        error = RefusedByAws(f"{doing} failed in {region}: {code}: {message}", hint=UNKNOWN)
    else:
        kind = CapacityError if known.capacity else RefusedByAws
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


def make_not_enabled_error(region: str) -> ProviderError:
    """The error for a region that the account has to opt in to first."""
    known = _BY_CODE["OptInRequired"]
    return ProviderError(f"{region}: {known.what}", hint=known.hint)


def _find_known(code: str, message: str = "") -> Known | None:
    """The row of what the message says, else of the code: its own, else that of what it begins or
    ends with (`AuthFailure.Detail`, `InvalidSubnetID.NotFound`). The reason why a machine has ended
    begins with whose fault it is (`Client.VolumeLimitExceeded`)."""
    for row in _TABLE.refusal:
        if any(re.search(pattern, message) for pattern in row.texts):
            return row
    parts = (code if code in _BY_CODE else re.sub(r"^(Client|Server)\.", "", code)).split(".")
    names = (*(".".join(parts[:count]) for count in range(len(parts), 0, -1)), parts[-1])
    return next((_BY_CODE[name] for name in names if name in _BY_CODE), None)


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
        hint=NETWORK,
        transient=True,
    )


def make_unanswered_error(doing: str, exception: str, message: str) -> ProviderError:
    """The error for a call that did not get through."""
    known = next((row for row in _TABLE.refusal if exception in row.exceptions), None)
    known = known or _find_known("", message)
    if known is None:
        return ProviderError(
            f"{doing}: AWS did not answer: {message}", hint=NETWORK, transient=True
        )
    said = "" if known.plain else f" ({message})"
    # What was to be done matters no more where nothing can be.
    what = known.what if "credentials" in known.what else f"{doing}: {known.what}"
    return ProviderError(f"{what}{said}", hint=known.hint, transient=known.passing)


def may_be_not_enabled(error: ProviderError) -> bool:
    """Whether good credentials hear that in a region that their account has not enabled."""
    return isinstance(error, RefusedByAws) and error.code in _TABLE.not_enabled


def is_repeated(texts: Iterable[str]) -> bool:
    """Whether Terraform failed over a call of its own whose answer had got lost: the thing is
    there, and Terraform does not know."""
    said = " ".join(" ".join(texts).split())
    return not _TABLE.repeated.isdisjoint(re.findall(r"api error ([\w.]+\w)", said))


def is_transient(texts: Iterable[str]) -> bool:
    """Whether Terraform failed over nothing but what may be different in a moment."""
    found = [known for text in texts for known in _find_in_terraform(text)]
    return bool(found) and all(known.passing for known in found)


def may_be_early(texts: Iterable[str]) -> bool:
    """Whether Terraform was refused what a policy allows by tags: IAM may not know the tags of what
    was made a moment ago (terraform-provider-aws issues 6055 and 27028)."""
    found = [" ".join(text.split()) for text in texts]
    denied = [text for text in found if "api error UnauthorizedOperation" in text]
    return bool(denied) and not any("explicit deny" in text for text in denied)


def count_named_zones(texts: Iterable[str]) -> Counter[str]:
    """The zones that EC2 names where one has no room, by how many refusals name them: `You can
    currently get … capacity by … choosing us-west-2b, us-west-2c.`"""
    found = (re.findall(r"\bchoosing ((?:[\w-]+, )*[\w-]+)", " ".join(t.split())) for t in texts)
    return Counter(zone for lists in found for zone in set(", ".join(lists).split(", ")))


def from_terraform(texts: Iterable[str]) -> ProviderError | None:
    """The first thing that we know in what Terraform said; a capacity error goes first."""
    found = []
    for text in texts:
        flat = " ".join(text.split())
        for known in _find_in_terraform(text):
            kind, said = CapacityError if known.capacity else ProviderError, _make_readable(flat)
            error = kind(f"{known.what} ({said[:500]})", hint=known.hint)
            if isinstance(error, CapacityError):
                error.said = re.sub(r"^.*api error ", "", said)[:500].rstrip(".")
            found.append(error)
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


def _find_in_terraform(text: str) -> Iterator[Known]:
    flat = " ".join(text.split())
    if said := _find_known("", flat):
        yield said
        return
    for code in _QUOTED.findall(flat):
        if known := _find_known("".join(code)):
            yield known

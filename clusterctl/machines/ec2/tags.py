"""Tags: clusterctl's own, by which all of a cluster is found again, and those of --tag, which some
organizations demand of whatever is made. Pure."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from clusterctl.core.errors import UsageError

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
MOST = 40
"""EC2 takes 50 for each resource, and some are clusterctl's."""
KEY, VALUE = 128, 256
"""Characters that EC2 takes: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html"""
_OURS = "clusterctl:"


def parse_tags(texts: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE` of --tag; of equal keys the last counts. Raises UsageError."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not key:
            raise UsageError(f"--tag {text!r} is not KEY=VALUE", hint="for example --tag team=ml")
        if key.lower().startswith("aws:"):
            raise UsageError(
                f"--tag {text!r}: keys that begin with aws: are reserved by AWS",
                hint="choose another key",
            )
        if key.lower().startswith(_OURS) or key == "Name":
            raise UsageError(
                f"--tag {text!r}: {key} is one of the tags that clusterctl sets itself",
                hint="choose another key",
            )
        if len(key) > KEY or len(value) > VALUE:
            raise UsageError(
                f"--tag {text[:40]!r}…: EC2 takes keys of up to {KEY} and values of up to {VALUE}"
                " characters",
                hint="shorten it",
            )
        found[key] = value
    if len(found) > MOST:
        raise UsageError(
            f"{len(found)} tags with --tag: {MOST} are possible, because EC2 takes 50 for each"
            " resource, including clusterctl's own",
            hint="leave some out",
        )
    return found


def render_tags(tags: Mapping[str, str]) -> tuple[str, ...]:
    """As --tag has them."""
    return tuple(f"{key}={value}" for key, value in tags.items())


def add(before: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """Those of a cluster with more: tags can be added and changed, not removed."""
    return render_tags({**parse_tags(before), **parse_tags(more)})


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """As calls of the API take them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


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


_OF_MACHINES = r"i-[0-9a-f]+|[0-9a-f]{32}|SageMaker|GitHubActions|(AWSCodeBuild|eks)-.*"
"""Names that AWS and its tools give to the session of a machine, a container or a service."""
_SHARED_OWNER = re.compile(rf"root|assumed-role/[^/]*(/({_OF_MACHINES}))?")


def is_shared(owner: str) -> bool:
    """Whether the tag of an owner may mean several people: those without a name for their session,
    and all who log in to a machine with a role."""
    return bool(_SHARED_OWNER.fullmatch(owner))

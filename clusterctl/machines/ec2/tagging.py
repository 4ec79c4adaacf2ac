"""Puts tags on what a cluster has already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterctl.machines.ec2 import failures
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.tags import TAG, as_list

MOST_TAGGED = 500
"""Resources in one call; EC2 takes 1,000."""


def label(api: Api, cluster_id: str, key: str, value: str) -> None:
    """Gives all that carries a cluster's tag another tag, whatever else it has."""
    mine = [{"Name": "key", "Values": [TAG]}, {"Name": "value", "Values": [cluster_id]}]
    ids = [item["ResourceId"] for item in api.list_all("describe_tags", "Tags", Filters=mine)]
    _label(api, ids, {key: value})


def label_resource(api: Api, id: str, key: str, value: str) -> None:
    """Gives one resource a tag, where it is still there."""
    _label_if_there(api, id, as_list({key: value}))


def _label(api: Api, ids: Sequence[str], tags: Mapping[str, str]) -> None:
    for first in range(0, len(ids), MOST_TAGGED):
        some = ids[first : first + MOST_TAGGED]
        try:
            api.call("create_tags", Resources=some, Tags=as_list(tags))
        except failures.RefusedByAws as refused:
            if not refused.code.endswith(".NotFound"):
                raise
            # One that is gone, and whose tags are still shown, keeps the others from theirs.
            for id in some:
                _label_if_there(api, id, as_list(tags))


def _label_if_there(api: Api, id: str, tags: list[dict[str, str]]) -> None:
    try:
        api.call("create_tags", Resources=[id], Tags=tags)
    except failures.RefusedByAws as refused:
        if not refused.code.endswith(".NotFound"):
            raise

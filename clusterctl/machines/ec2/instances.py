"""The instances of a cluster, by its tag."""

from __future__ import annotations

from contextlib import suppress

from clusterctl.core.errors import ProviderError
from clusterctl.machines.ec2.answers import Instance
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.tags import filter_by_cluster

SETTLE = 10.0
"""Seconds that AWS may not yet show what was made just before, by its tags:
https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html"""
AT_A_TIME = 1000
"""Machines that one call may end."""


def find_instances(api: Api, cluster_id: str) -> list[Instance]:
    """Those of a cluster that run, or can be started again."""
    return api.list_instances(
        filter_by_cluster(cluster_id), states=("pending", "running", "stopping", "stopped")
    )


def terminate_instances(api: Api, cluster_id: str) -> None:
    """Begins to end all machines of a cluster at once, as far as AWS lets us. What is refused (a
    protected machine) is for who ends them one by one."""
    ids = [item.id for item in find_instances(api, cluster_id)]
    for first in range(0, len(ids), AT_A_TIME):
        with suppress(ProviderError):
            api.call("terminate_instances", InstanceIds=ids[first : first + AT_A_TIME])

"""`allow`: from which networks a cluster can be connected to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterctl.actions import running_costs
from clusterctl.actions.common import open_store, require_owned
from clusterctl.core.model import Cluster, Reporter
from clusterctl.errors import ClusterctlError, NodeUnreachable, UsageError
from clusterctl.machines import providers
from clusterctl.machines.protocol import Cloud
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store


def advise(cluster: str) -> str:
    """What to do where this machine is not let in."""
    return f"`clusterctl allow -c {cluster}` opens the cluster to your present address"


def allow(store: Store, name: str, networks: Sequence[str], report: Reporter) -> tuple[str, ...]:
    """Lets connections in from these networks, or from this machine's address where none are given,
    and from no others. A later `up` keeps to it."""
    with ClusterLock(store.home, name, "allow", report):
        cluster = require_owned(store.read_cluster(name))
        provider = providers.load_provider(cluster.spec.provider)
        if not isinstance(provider, Cloud):
            raise UsageError(
                f"cluster {name} ({cluster.spec.provider}) has no firewall rules of clusterctl",
                hint="`clusterctl status --live` shows which nodes answer",
            )
        allowed = provider.allow(cluster, store.locate_folder(name), networks)
        # "": the address that this machine has at the next `up`.
        kept = ",".join(allowed) if networks else ""
        cloud = replace(cluster.spec.cloud, ssh_cidr=kept)
        store.save(replace(cluster, spec=replace(cluster.spec, cloud=cloud)))
        store.add_event(name, "allowed", networks=list(allowed))
    return allowed


def explain_lockout(store: Store, cluster: Cluster, said: str) -> str:
    """Why the nodes do not answer this machine, as far as their provider knows; "" for nothing.
    `said` is what became of connecting to them."""
    if "no answer" not in said:
        return ""
    provider = providers.load_provider(cluster.spec.provider)
    return provider.explain_shut_out(cluster, store.locate_folder(cluster.name))


def explain_allowed(error: NodeUnreachable) -> ClusterctlError:
    """The error, with the reason why the nodes do not answer this machine, if there is one."""
    try:
        store = open_store()
        cluster = store.read_cluster(error.cluster)
        if ended := running_costs.explain_ended_workers(store, cluster):
            return ended
        why = explain_lockout(store, cluster, error.message)
    except ClusterctlError:
        return error
    return NodeUnreachable(f"{error.message}; {why}", hint=advise(error.cluster)) if why else error

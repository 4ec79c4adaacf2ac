"""`attach` and `detach`: clusters that exist already. Nothing is made, nothing is taken down."""

from __future__ import annotations

import secrets
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl import assets, providers, schedulers
from clusterctl.actions import Tell, check_name, connected
from clusterctl.bootstrap import facts
from clusterctl.errors import BootstrapError, NodeUnreachable, RecordError, UsageError
from clusterctl.model import Cluster, ClusterSpec, Node, NodeGroup, NodeResult, Phase, Role
from clusterctl.state import ClusterLock, Store
from clusterctl.state.home import write_atomic
from clusterctl.transport.pool import Pool

CONNECT_TIMEOUT = 20.0
ASK_TIMEOUT = 120.0
FREE_NODE = 20
"""Seconds to wait for a free node that looks whether it sees our folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Where the batch system's commands are: `host` "" is this machine; `identity` "" leaves the
    key to ssh_config and agent, `user` "" the name."""

    system: str
    host: str = ""
    user: str = ""
    identity: str = ""
    workdir: str = ""
    """The folder that login and compute nodes share; "": `.clusterctl` in the home there."""


def attach_site(store: Store, name: str, login: Login, tell: Tell) -> Cluster:
    """Makes a batch system known. Doing it again looks at it anew and keeps its jobs.

    Raises NodeUnreachable, BootstrapError for missing commands, UsageError where the folder is not
    shared.
    """
    check_name(name)
    site = providers.load_site(login.system)
    with ClusterLock(store.home, name, "attach"):
        cluster = _record(store, name, login.system, 1, login.identity)
        user, _, host = login.host.rpartition("@")
        node = Node(
            name="login",
            role=Role.LOGIN,
            address=host,
            private_address=host,
            ssh_port=0,
            job_port=0,
            user=login.user or user,
            root="",
        )
        cluster = replace(cluster, nodes=(node,))
        (store.home.make(store.folder(name)) / "ssh").mkdir(mode=0o700, exist_ok=True)
        store.save(cluster)
        try:
            with connected(store, cluster) as pool:
                cluster = _survey_site(store, cluster, site, login, pool, tell)
        except BaseException:
            if cluster.phase is Phase.CREATING:
                store.retire(cluster)
            raise
        cluster = replace(cluster, phase=Phase.READY)
        store.save(cluster)
        _write_config(store, cluster)
        store.event(name, "attached", system=login.system, version=cluster.traits["version"])
    return cluster


def _record(store: Store, name: str, provider: str, count: int, identity: str) -> Cluster:
    """The record to attach to: a new one, or the one that an earlier `attach` has made."""
    try:
        old = store.cluster(name)
    except RecordError:
        if (store.folder(name) / "cluster.json").exists():
            raise
        old = None
    if old and old.spec.provider != provider:
        verb = "detach" if old.spec.provider in providers.ATTACHED else "down"
        raise RecordError(
            f"cluster {name!r} exists ({old.spec.provider})",
            hint=f"`clusterctl {verb} {name}` first, or choose another name",
        )
    spec = ClusterSpec(name=name, provider=provider, groups=(NodeGroup(count=count),))
    if old:
        return replace(old, spec=spec, identity=identity)
    return Cluster(
        id=f"{name}-{secrets.token_hex(4)}",
        spec=spec,
        phase=Phase.CREATING,
        created=time.time(),
        mode="attached",
        identity=identity,
    )


def _survey_site(
    store: Store, cluster: Cluster, site: providers.Site, login: Login, pool: Pool, tell: Tell
) -> Cluster:
    node = cluster.launcher
    _connect(pool, cluster)
    script = assets.render(
        "batch/attach.sh.j2",
        name=cluster.name,
        id=cluster.id,
        workdir=login.workdir,
        files={
            "bin/survey": schedulers.load_batch(site.name).survey(),
            "bin/free-port": assets.render("bootstrap/free-port.sh.j2"),
        },
        questions={**facts.questions([sys.executable] if node.here else []), **site.questions()},
        marker=facts.MARKER,
    )
    where = node.address or "this machine"
    result = pool.transport(node.name).run(
        "exec /bin/sh -s", stdin=script.encode(), timeout=ASK_TIMEOUT
    )
    if result.exit_code is None:
        raise NodeUnreachable(f"{where}: {result.error}", hint="try again", transient=True)
    if not result.ok:
        raise BootstrapError(
            f"{where} could not be made ready: {_last(result)}",
            hint="--workdir names a folder that can be written there",
        )
    answers = facts.answers(result.text)
    found = facts.parse(result.text)
    missing = {tool: package for tool, package in site.required.items() if tool not in found.tools}
    missing |= {tool: package for tool, package in _NEEDED.items() if tool not in found.tools}
    if missing:
        raise BootstrapError(
            f"{where} lacks {', '.join(missing)}",
            hint="is it a login node of the cluster? On Debian: apt-get install "
            + " ".join(sorted(set(missing.values()))),
        )
    traits = site.traits(answers)
    node = replace(
        node,
        root=answers["root"].strip(),
        user=answers["user"].strip(),
        facts=found,
        python=found.python.executable if found.python else "",
        mpi_prefix=found.mpi.prefix if found.mpi else "",
        slots=sum(queue.slots for queue in site.queues(answers.get("queues", ""))) or 1,
    )
    traits["shared"] = _shared(pool, node, site, tell)
    return replace(cluster, nodes=(node,), traits=traits, mode_reason=traits["version"])


def _shared(pool: Pool, node: Node, site: providers.Site, tell: Tell) -> str:
    """`yes`, or why it is not known. UsageError where a compute node does not see the folder."""
    command = site.shared_command(node.root, FREE_NODE)
    result = pool.transport(node.name).run(command, timeout=FREE_NODE + 20.0)
    if result.ok and result.text.strip().endswith("shared"):
        return "yes"
    said = _last(result)
    if "No such file" in said:
        raise UsageError(
            f"the compute nodes do not see {node.root}",
            hint="--workdir names a folder that login and compute nodes share",
        )
    tell(f"whether compute nodes see {node.root} could not be checked now: {said}")
    return said


def _connect(pool: Pool, cluster: Cluster) -> None:
    for node in cluster.nodes:
        if not node.here:
            pool.transport(node.name).connect(CONNECT_TIMEOUT)


def _write_config(store: Store, cluster: Cluster) -> None:
    """An ssh_config for `clusterctl ssh`: the user's own, with our names on top."""
    path = store.folder(cluster.name) / "ssh" / "config"
    text = assets.render(
        "client/attached_config.j2", cluster=cluster, home=str(Path.home() / ".ssh")
    )
    write_atomic(path, text.encode())


def _last(result: NodeResult) -> str:
    said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
    return result.error or (said[-1] if said else f"exit code {result.exit_code}")


_NEEDED = {
    "flock": "util-linux",
    "tar": "tar",
    "stat": "coreutils",
    "awk": "mawk",
}
"""Commands that handing in a job takes on a login node."""

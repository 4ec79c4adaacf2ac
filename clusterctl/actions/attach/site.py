"""A batch system, through its login node."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from clusterctl import assets, providers, schedulers
from clusterctl.actions import check_name, open_pool, ssh_config
from clusterctl.actions.attach.record import (
    ASK_TIMEOUT,
    CONNECT_TIMEOUT,
    prepare_record,
)
from clusterctl.bootstrap import REQUIRED, facts
from clusterctl.errors import BootstrapError, NodeUnreachable, UsageError
from clusterctl.model import Cluster, Node, Phase, Reporter, Role
from clusterctl.providers.protocol import Queue
from clusterctl.providers.shared.batch_site import STATUS_TIMEOUT, BatchSite
from clusterctl.state import ClusterLock, Store
from clusterctl.transport.pool import Pool

FREE_NODE = 20
"""Seconds to wait for a free node that looks whether it sees our folder."""

_NEEDED = {tool: REQUIRED[tool] for tool in ("flock", "tar", "stat", "awk")}
"""Commands that handing in a job takes on a login node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLogin:
    """Where the batch system's commands are: `host` "" is this machine; `identity` "" leaves the
    key to ssh_config and agent, `user` "" the name."""

    system: str
    host: str = ""
    user: str = ""
    identity: str = ""
    workdir: str = ""
    """The folder that login and compute nodes share; "": `.clusterctl` in the home there."""


def attach_site(store: Store, name: str, login: SiteLogin, report: Reporter) -> Cluster:
    """Makes a batch system known. Doing it again looks at it anew and keeps its jobs.

    Raises NodeUnreachable, BootstrapError for missing commands and for a batch system that does not
    answer, UsageError where the folder is not shared.
    """
    check_name(name)
    site = providers.load_site(login.system)
    with ClusterLock(store.home, name, "attach"):
        cluster = prepare_record(store, name, login.system, 1, login.identity)
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
        (store.home.make(store.locate_folder(name)) / "ssh").mkdir(mode=0o700, exist_ok=True)
        store.save(cluster)
        try:
            with open_pool(store, cluster) as pool:
                cluster = _survey_site(store, cluster, site, login, pool, report)
        except BaseException:
            if cluster.phase is Phase.CREATING:
                store.retire(cluster)
            raise
        cluster = replace(cluster, phase=Phase.READY)
        store.save(cluster)
        ssh_config.write_config(store, cluster)
        store.add_event(name, "attached", system=login.system, version=cluster.site_info["version"])
    return cluster


def suggest_size(cluster: Cluster) -> str:
    """Options of `run` that ask this batch system for two ranks."""
    return schedulers.load_batch(cluster.system).example_size


def _survey_site(
    store: Store, cluster: Cluster, site: BatchSite, login: SiteLogin, pool: Pool, report: Reporter
) -> Cluster:
    node = cluster.launcher
    if not node.here:
        pool.find_transport(node.name).connect(CONNECT_TIMEOUT)
    script = assets.render(
        "batch/attach.sh.j2",
        name=cluster.name,
        id=cluster.id,
        workdir=login.workdir,
        files={
            "bin/survey": schedulers.load_batch(site.name).survey(),
            "bin/free-port": assets.render("bootstrap/free-port.sh.j2"),
        },
        questions={
            **facts.list_questions([sys.executable] if node.here else [], tools=site.required),
            **site.list_questions(),
        },
        marker=facts.MARKER,
    )
    where = node.address or "this machine"
    result = pool.find_transport(node.name).run(
        "exec /bin/sh -s", stdin=script.encode(), timeout=ASK_TIMEOUT
    )
    if result.exit_code is None:
        raise NodeUnreachable(f"{where}: {result.error}", hint="try again", transient=True)
    if not result.ok:
        raise BootstrapError(
            f"{where} could not be prepared: {result.why}",
            hint="correct that there, or choose another folder with --workdir",
        )
    answers = facts.split_answers(result.text)
    found = facts.parse(result.text)
    required = {**site.required, **_NEEDED}
    missing = {tool: package for tool, package in required.items() if tool not in found.tools}
    if missing:
        raise BootstrapError(
            f"{where} lacks {', '.join(missing)}",
            hint="is this a login node of the cluster? On Debian: apt-get install "
            + " ".join(sorted(set(missing.values()))),
        )
    queues = _list_queues(pool, node, site, where)
    info = {**site.parse_site_info(answers), "home": answers["home"].strip()}
    node = replace(
        node,
        root=answers["root"].strip(),
        user=answers["user"].strip(),
        facts=found,
        python=found.python.executable if found.python else "",
        mpi_prefix=found.mpi.prefix if found.mpi else "",
        slots=sum(queue.slots for queue in queues) or 1,
    )
    info["shared"] = _probe_shared(pool, node, site, report)
    return replace(
        cluster, nodes=(node,), site_info=info, mode_reason=info["version"] or site.title
    )


def _list_queues(pool: Pool, login: Node, site: BatchSite, where: str) -> tuple[Queue, ...]:
    """Raises BootstrapError where there are commands, but no batch system that answers them."""
    command = site.build_status_command()
    result = pool.find_transport(login.name).run(command, timeout=STATUS_TIMEOUT)
    if not result.ok:
        raise BootstrapError(
            f"{site.title} on {where} does not answer: {result.why}",
            hint="is this a login node of a running cluster?"
            f" `{command.partition(' ')[0]}` must work there",
        )
    return site.parse_queues(result.text)


def _probe_shared(pool: Pool, node: Node, site: BatchSite, report: Reporter) -> str:
    """`yes`, or why it is not known. UsageError where a compute node does not see the folder."""
    look = ("sh", "-c", 'cat "$1/.shared" 2>/dev/null || echo unseen', "sh", node.root)
    command = site.build_node_command(look, FREE_NODE)
    result = pool.find_transport(node.name).run(command, timeout=FREE_NODE + 20.0)
    answer = result.text.split()[-1:] if result.ok else []
    if answer == ["shared"]:
        return "yes"
    if answer == ["unseen"]:
        raise UsageError(
            f"{node.root} is not visible on the compute nodes",
            hint="choose a folder that the login and compute nodes share with --workdir",
        )
    said = result.text.strip() if result.ok else result.why
    report(f"could not check whether {node.root} is visible on the compute nodes: {said}")
    return said

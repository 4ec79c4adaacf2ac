"""`attach`: clusters that exist already. Nothing is made, nothing is taken down."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path

from msgspec.structs import replace

from clusterctl.actions import access as actions_access
from clusterctl.actions import verify
from clusterctl.actions.common import check_name, open_pool, write_known_hosts
from clusterctl.batch.system import load_system
from clusterctl.core import assets, catalog, keys
from clusterctl.core.model import (
    Cluster,
    ClusterSpec,
    Node,
    NodeGroup,
    NodeResult,
    Phase,
    Reporter,
    Role,
    fold,
)
from clusterctl.core.text import MAX_HOST_LINE, count, read_input
from clusterctl.errors import (
    BootstrapError,
    ClusterctlError,
    LaunchError,
    NodeUnreachable,
    RecordError,
    UsageError,
)
from clusterctl.launch import network as launch_network
from clusterctl.launch.hostfile import parse_hosts
from clusterctl.launch.mpirun import find_common_mpi
from clusterctl.machines import bootstrap, facts, providers
from clusterctl.machines.attached import STATUS_TIMEOUT, BatchSite, load_site, make_key_mark
from clusterctl.machines.bootstrap import REQUIRED, check_mesh
from clusterctl.options.verbs import Attach
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import SshTransport

# -------------------------------------------------------------------------------------------------
# What attaching hosts and attaching a batch system have in common.


CONNECT_TIMEOUT = 20.0
ASK_TIMEOUT = 120.0


def prepare_record(
    store: Store, name: str, provider: str, count: int, identity: Path | None
) -> Cluster:
    """The record to attach to: a new one, or the one that an earlier `attach` has made."""
    old = store.find(name)
    if old and old.spec.provider != provider:
        raise RecordError(
            f"cluster {name!r} already exists ({old.spec.provider})",
            hint=f"`clusterctl {old.end} {name}` first, or choose another name",
        )
    spec = ClusterSpec(name=name, provider=provider, groups=(NodeGroup(count=count),))
    key = str(identity.absolute()) if identity else ""
    if old:
        return replace(old, spec=spec, identity=key)
    return Cluster(
        id=f"{name}-{secrets.token_hex(4)}",
        spec=spec,
        phase=Phase.CREATING,
        created=time.time(),
        mode="attached",
        identity=key,
    )


def _attach(
    store: Store, cluster: Cluster, prepare: Callable[[Pool], Cluster], report: Reporter
) -> Cluster:
    """The record of the cluster as `prepare` has made it ready. Where that fails, nothing is left
    of a new one; an old one stays as it was: it knows where our files are."""
    folder = store.home.make(store.locate_folder(cluster.name)) / "ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    if cluster.phase is Phase.CREATING:
        store.save(cluster)
    try:
        with open_pool(store, cluster) as pool:
            prepared = replace(prepare(pool), phase=Phase.READY)
    except BaseException:
        if cluster.phase is Phase.CREATING:
            _clean_up_quietly(store, store.read_cluster(cluster.name), report)
        raise
    store.save(prepared)
    actions_access.write_config(store, prepared)
    return prepared


def _clean_up_quietly(store: Store, cluster: Cluster, report: Reporter) -> None:
    """An attach that failed leaves no files of ours on the hosts, as far as they answer."""
    reached = tuple(node for node in cluster.nodes if node.root)
    try:
        if reached:
            provider = providers.load_provider(cluster.spec.provider)
            folder = store.locate_folder(cluster.name)
            provider.destroy(replace(cluster, nodes=reached), folder, report)
    except ClusterctlError as error:
        report(error.message)
    store.retire(cluster)


# -------------------------------------------------------------------------------------------------
# Do the hosts reach each other at ports other than SSH's? MPI and training take theirs, high ones,
# when a job starts; a firewall between hosts would let the job hang.


def check_ports(pool: Pool, cluster: Cluster) -> None:
    """Each host is called by its two neighbours at a port that it chooses. What has no Python is
    left out. Raises NodeUnreachable with the connections that do not work."""
    names = [node.name for node in cluster.nodes if node.python]
    ring = dict(zip(names, [*names[1:], *names[:1]], strict=True)) if len(names) > 1 else {}
    found = verify.Measured(cluster, pool)
    for pairs in (ring, {second: first for first, second in ring.items()})[: len(ring) - 1]:
        found.connect_pairs(pairs, verify.SHORTEST, verify.LINK_PATIENCE)
    failed = [f"{link.second} → {link.first}: {link.error}" for link in found.links if link.error]
    if failed:
        raise NodeUnreachable(
            f"the hosts reach each other by SSH, but not on other ports: {'; '.join(failed)}",
            hint="MPI and training choose ports when a job starts: open the TCP ports 1024"
            " to 65535 between the hosts in their firewalls",
            transient=True,
        )


# -------------------------------------------------------------------------------------------------
# Machines that people have: found out, made ready, let in to each other.


INSTALL_TIMEOUT = 900.0
WANTED = {"mpirun": "openmpi-bin", "python3": "python3"}
"""Commands that most jobs take, with Debian's packages; a host may do without."""


def attach_hosts(store: Store, name: str, file: Path, given: Attach, report: Reporter) -> Cluster:
    """Makes machines of the user's ready for jobs. Doing it again repairs, adds and removes.

    Raises UsageError for the file, NodeUnreachable, BootstrapError with a reason per host.
    """
    check_name(name)
    text = read_input(
        file,
        f"--hosts {file}",
        hint="name a file with one line per host: HOST [slots=N] [user=] [port=]",
        max_line=MAX_HOST_LINE,
    )
    nodes = parse_hosts(text, str(file), given.user)
    with ClusterLock(store.home, name, "attach"):
        before = prepare_record(store, name, "hosts", len(nodes), given.identity)
        # Which keys the hosts may show is found out anew.
        cluster = replace(before, nodes=nodes, host_keys={})
        # A host that is no longer in the file may still run a job, and has files of ours.
        gone = {node.name for node in before.nodes} - {node.name for node in nodes}
        if gone:
            raise RecordError(
                f"cluster {name!r} has {', '.join(sorted(gone))}, which the file does not list",
                hint=f"`clusterctl detach {name}` removes clusterctl's files there;"
                " then attach again",
            )

        def prepare(pool: Pool) -> Cluster:
            return _prepare_hosts(store, cluster, before.nodes, given, pool, report)

        cluster = _attach(store, cluster, prepare, report)
        store.add_event(name, "attached", nodes=len(nodes))
    return cluster


def _prepare_hosts(
    store: Store,
    cluster: Cluster,
    known: tuple[Node, ...],
    given: Attach,
    pool: Pool,
    report: Reporter,
) -> Cluster:
    """`known`: the nodes as an earlier `attach` has found them. One that does not pass now stays so
    in the record: jobs may still run there."""
    folder = store.locate_folder(cluster.name) / "ssh"
    actions_access.forget(store, cluster)
    report(f"connecting to {count(len(cluster.nodes), 'host')}")
    _require_all_well(
        "some hosts cannot be used", pool.connect(timeout=CONNECT_TIMEOUT), NodeUnreachable
    )
    host_keys = {}
    for node in cluster.nodes:
        transport = pool.find_transport(node.name)
        assert isinstance(transport, SshTransport)
        host_keys[node.name] = transport.read_host_key()
    found, wrong = _probe(cluster, given.workdir, given.bootstrap, pool, report)
    unfit = {result.node for result in wrong}
    found.update((node.name, node) for node in known if node.name in unfit)
    cluster = replace(cluster, nodes=tuple(found.get(node.name, node) for node in cluster.nodes))
    store.save(cluster)
    installs = not given.bootstrap and any("apt-get install" in result.error for result in wrong)
    hint = "; --bootstrap installs packages with sudo" * installs
    _require_all_well("some hosts cannot be used", wrong, BootstrapError, f"correct that{hint}")
    try:
        if able := [node for node in cluster.nodes if node.facts.mpi]:
            find_common_mpi(able)
    except LaunchError as error:  # each host by itself is well
        report(f"{error.message}: {error.hint}")
    cluster = replace(cluster, nodes=_choose_addresses(cluster.nodes))
    store.save(cluster)
    key = keys.ensure_pair(folder / "mesh")
    files = bootstrap.list_mesh_files(key, cluster.nodes, host_keys)
    steps = (bootstrap.let_in(key.public, make_key_mark(cluster)),)
    scripts = {
        node.name: bootstrap.render_script(
            node, files, pythons=[node.python] * bool(node.python), steps=steps
        )
        for node in cluster.nodes
    }
    results = pool.run("exec /bin/sh -s", stdin=scripts, timeout=ASK_TIMEOUT)
    wrong = [NodeResult(node=r.node, error=w) for r in results if (w := bootstrap.find_problem(r))]
    _require_all_well("some hosts could not be set up", wrong, BootstrapError)
    check_mesh(
        pool,
        cluster,
        what="hosts",
        hint="check for a firewall between them, and that their sshd reads ~/.ssh/authorized_keys",
    )
    check_ports(pool, cluster)
    return write_known_hosts(store, cluster, host_keys)


def _probe(
    cluster: Cluster, workdir: str, sudo: bool, pool: Pool, report: Reporter
) -> tuple[dict[str, Node], list[NodeResult]]:
    """The nodes with what they have told of themselves, as far as our folder could be made there,
    and what is wrong with any."""
    scripts = {
        node.name: assets.render(
            "bootstrap/probe.sh.j2",
            node=node,
            id=cluster.id,
            workdir=_quote_workdir(workdir),
            sudo=sudo,
            packages={**bootstrap.REQUIRED, **WANTED},
            questions=facts.list_questions(
                [node.python] * bool(node.python), only=bool(node.python)
            ),
            marker=facts.MARKER,
        ).encode()
        for node in cluster.nodes
    }
    limit = INSTALL_TIMEOUT if sudo else ASK_TIMEOUT
    results = pool.run("exec /bin/sh -s", stdin=scripts, timeout=limit)
    wrong: list[NodeResult] = []
    lacking: list[NodeResult] = []
    found: dict[str, Node] = {}
    for node, result in zip(cluster.nodes, results, strict=True):
        why = _explain_unfit(node, result)
        if facts.split_answers(result.text).get("root", "").startswith("/"):
            found[node.name] = _read(node, result)
        if why:
            wrong.append(NodeResult(node=node.name, error=why))
        elif lacks := _describe_lacks(found[node.name]):
            lacking.append(NodeResult(node=node.name, error=lacks))
    for line in fold(lacking):
        report(line)
    return found, wrong


def _quote_workdir(workdir: str) -> str:
    """For sh on a node: below the home folder there unless it is absolute."""
    if workdir.startswith("/"):
        return shlex.quote(workdir)
    below = (workdir or ".clusterctl") if workdir[:2] not in ("~", "~/") else workdir[2:]
    return f'"$HOME"/{shlex.quote(below)}' if below else '"$HOME"'


def _explain_unfit(node: Node, result: NodeResult) -> str:
    """Why no job can run there; "" if one can."""
    if result.error or not result.ok:
        return result.why
    answers = facts.split_answers(result.text)
    reasons = []
    root = answers.get("root", "").strip()
    if not root.startswith("/"):
        full = "No space left" in root or "Disk quota" in root
        what = "cannot be written"
        if root.endswith("noexec"):
            what = "lies on a file system that is mounted noexec, so no program can start there"
        why = root.removeprefix("cannot: ").removesuffix("noexec").strip()
        reasons.append(
            f"clusterctl's folder {what} ({why})"
            + (": free some space there" if full else ": choose another one with --workdir")
        )
    access = answers.get("keys", "").strip()
    if access != "ok":
        reasons.append(f"~/.ssh/authorized_keys cannot be written ({access})")
    told = facts.parse_facts(result.text)
    if node.python and told.python is None:
        reasons.append(f"the file sets python={node.python}, which is not a Python on that host")
    elif told.python is None:
        reasons.append(
            "no working Python 3.6 or newer was found (sudo apt-get install python3, or name one"
            " in the file: python=/…)"
        )
    if lacks := bootstrap.find_lacking(told):
        reasons.append(lacks)
    return "; ".join(reasons)


def _describe_lacks(node: Node) -> str:
    """What some jobs will miss there, and the command that installs it."""
    missing = []
    if node.facts.mpi is None:
        missing.append(
            "no mpirun: it cannot take part in jobs on several hosts"
            " (sudo apt-get install openmpi-bin)"
        )
    if without := _list_lacking(node):
        missing.append(
            f"{node.python} lacks {', '.join(without)}: it cannot run the bundled programs"
            f" ({node.python} -m pip install {' '.join(without)} there, or name a Python that has"
            " them: python=/… in the file)"
        )
    return "; ".join(missing)


def _read(node: Node, result: NodeResult) -> Node:
    """The node as its answers describe it. The address and port that our connection has at its end
    are those at which the others find it too."""
    answers, found = facts.split_answers(result.text), bootstrap.read_bootstrap(node, result)
    address, port = ([*answers["connection"].split(), "", "", "", ""])[2:4]
    return replace(
        found,
        private_address=address or node.address,
        job_port=int(port) if port.isdecimal() else 22,
        user=answers["user"].strip(),
        root=answers["root"].strip(),
        python=node.python or found.python,
        slots=node.slots or found.slots or found.facts.cores,
    )


def _choose_addresses(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with addresses at which they reach each other: on the network that they share, if
    they do. One that we are on ourselves may have been reached over loopback."""
    network = launch_network.solve(nodes)
    addresses = {
        node.name: item.address
        for node in nodes
        for item in node.facts.interfaces
        if item.device == network.devices.get(node.name)
        and any(ip_address(item.address) in ip_network(cidr) for cidr in network.cidrs)
    }
    return tuple(
        replace(node, private_address=addresses.get(node.name, node.private_address))
        for node in nodes
    )


def _require_all_well(
    what: str,
    results: Sequence[NodeResult],
    kind: type[ClusterctlError],
    hint: str = "correct that and attach again",
) -> None:
    """One error that names every host that is not well."""
    failed = [result for result in results if not result.ok]
    if not failed:
        return
    hint = next((result.hint for result in failed if result.hint), hint)
    raise kind(f"{what}: {'; '.join(fold(failed))}", hint=hint)


# -------------------------------------------------------------------------------------------------
# A batch system, through its login node.


FREE_NODE = 20
"""Seconds to wait for a free node that looks whether it sees our folder."""

_NEEDED = {tool: REQUIRED[tool] for tool in ("flock", "tar", "stat", "awk")}
"""Commands that handing in a job takes on a login node."""


def attach_site(
    store: Store, name: str, system: str, host: str, given: Attach, report: Reporter
) -> Cluster:
    """Makes a batch system known. Doing it again looks at it anew and keeps its jobs.
    Its commands are on `host`; "" is this machine.

    Raises NodeUnreachable, BootstrapError for missing commands and for a batch system that does not
    answer, UsageError where the folder is not shared.
    """
    check_name(name)
    site = load_site(system)
    with ClusterLock(store.home, name, "attach"):
        cluster = prepare_record(store, name, system, 1, given.identity)
        user, _, host = host.rpartition("@")
        node = Node(
            name="login",
            role=Role.LOGIN,
            address=host,
            private_address=host,
            ssh_port=0,
            job_port=0,
            user=given.user or user,
            root="",
        )
        planned = replace(cluster, nodes=(node,))
        cluster = _attach(
            store,
            planned,
            lambda pool: _survey_site(planned, site, given.workdir, pool, report),
            report,
        )
        store.add_event(name, "attached", system=system, version=cluster.site_info["version"])
    return cluster


def suggest_run(cluster: Cluster) -> str:
    """A first command line of `run`: a bundled program where the nodes can run one, for two ranks
    where a batch system has to know how many."""
    size = "" if cluster.workers else f"{load_system(cluster.system).example_size} "
    can = not any(map(_list_lacking, cluster.workers or (cluster.launcher,)))
    return size + ("reduce_all.py" if can else "-- hostname")


def _list_lacking(node: Node) -> list[str]:
    packages = node.facts.python.packages if node.facts.python else {}
    return [name for name in catalog.BUNDLED if name not in packages]


def _survey_site(
    cluster: Cluster, site: BatchSite, workdir: str, pool: Pool, report: Reporter
) -> Cluster:
    node = cluster.launcher
    if not node.here:
        pool.find_transport(node.name).connect(CONNECT_TIMEOUT)
    script = assets.render(
        "batch/attach.sh.j2",
        name=cluster.name,
        id=cluster.id,
        workdir=_quote_workdir(workdir),
        questions={
            **facts.list_questions([sys.executable] if node.here else [], tools=site.required),
            **site.questions,
        },
        marker=facts.MARKER,
        agent=assets.render_agent(*[sys.executable] * node.here),
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
    found = facts.parse_facts(result.text)
    required = {**site.required, **_NEEDED}
    missing = {tool: package for tool, package in required.items() if tool not in found.tools}
    if missing:
        raise BootstrapError(
            f"{where} lacks {', '.join(missing)}",
            hint="is this a login node of the cluster? On Debian: apt-get install "
            + " ".join(sorted(set(missing.values()))),
        )
    status = pool.find_transport(node.name).run(site.status_question, timeout=STATUS_TIMEOUT)
    if not status.ok:
        raise BootstrapError(
            f"{site.title} on {where} does not answer: {status.why}",
            hint="is this a login node of a running cluster?"
            f" `{site.status_command.partition(' ')[0]}` must work there",
        )
    info = {**site.parse_site_info(answers), "home": answers["home"].strip()}
    node = replace(
        node,
        root=answers["root"].strip(),
        user=answers["user"].strip(),
        facts=found,
        python=found.python.executable if found.python else "",
        mpi_prefix=found.mpi.prefix if found.mpi else "",
        slots=0,
    )
    info["shared"] = _probe_shared(pool, node, site, report)
    return replace(
        cluster, nodes=(node,), site_info=info, mode_reason=info["version"] or site.title
    )


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

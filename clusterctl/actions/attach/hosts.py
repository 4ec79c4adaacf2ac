"""Machines that people have: found out, made ready, let in to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from pathlib import Path

from clusterctl import assets, bootstrap, catalog, keys, providers
from clusterctl.actions import check_name, open_pool, ssh_config, terminal
from clusterctl.actions.attach.ports import check_ports
from clusterctl.actions.attach.record import (
    ASK_TIMEOUT,
    CONNECT_TIMEOUT,
    prepare_record,
)
from clusterctl.actions.known_hosts_file import write_known_hosts
from clusterctl.bootstrap import facts
from clusterctl.errors import (
    BootstrapError,
    ClusterctlError,
    LaunchError,
    NodeUnreachable,
    RecordError,
)
from clusterctl.formats import count
from clusterctl.input_files import MAX_HOST_LINE, read_input
from clusterctl.launch import interconnect
from clusterctl.launch.mpirun import find_common_mpi
from clusterctl.model import Cluster, Node, NodeResult, Phase, Reporter
from clusterctl.node_results import fold
from clusterctl.providers.hosts import inventory
from clusterctl.providers.shared.take_back import make_key_mark
from clusterctl.state import ClusterLock, Store
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import SshTransport

INSTALL_TIMEOUT = 900.0
WANTED = {"mpirun": "openmpi-bin", "python3": "python3"}
"""Commands that most jobs take, with Debian's packages; a host may do without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Hosts from a file. `sudo` lets us install what is missing; the rest as in Login."""

    file: Path
    user: str = ""
    identity: str = ""
    workdir: str = ""
    sudo: bool = False


def attach_hosts(store: Store, name: str, machines: Machines, report: Reporter) -> Cluster:
    """Makes machines of the user's ready for jobs. Doing it again repairs, adds and removes.

    Raises UsageError for the file, NodeUnreachable, BootstrapError with a reason per host.
    """
    check_name(name)
    nodes = inventory.build_nodes(_read_hosts(machines.file), machines.user)
    with ClusterLock(store.home, name, "attach"):
        cluster = prepare_record(store, name, "hosts", len(nodes), machines.identity)
        before = cluster
        # Which keys the hosts may show is found out anew.
        cluster = replace(cluster, nodes=nodes, host_keys={})
        _refuse_to_drop(before, cluster, store)
        store.home.make(store.locate_folder(name))
        if cluster.phase is Phase.CREATING:
            # Until they have answered again, the old record knows better where our files are.
            store.save(cluster)
        try:
            with open_pool(store, cluster) as pool:
                cluster = _prepare_hosts(store, cluster, machines, pool, report)
        except BaseException:
            if cluster.phase is Phase.CREATING:
                _clean_up_quietly(store, store.read_cluster(name), report)
            raise
        cluster = replace(cluster, phase=Phase.READY)
        store.save(cluster)
        ssh_config.write_config(store, cluster)
        store.add_event(name, "attached", nodes=len(nodes))
    return cluster


def _read_hosts(file: Path) -> tuple[inventory.Host, ...]:
    text = read_input(
        file,
        f"--hosts {file}",
        hint="name a file with one line per host: HOST [slots=N] [user=] [port=]",
        max_line=MAX_HOST_LINE,
    )
    return inventory.parse(text, str(file))


def _refuse_to_drop(before: Cluster, after: Cluster, store: Store) -> None:
    """A host that is no longer in the file may still run a job, and has files of ours."""
    gone = sorted({node.name for node in before.nodes} - {node.name for node in after.nodes})
    if gone:
        raise RecordError(
            f"cluster {before.name!r} has {', '.join(gone)}, which the file does not list",
            hint=f"`clusterctl detach {before.name}` removes clusterctl's files there;"
            " then attach again",
        )


def _prepare_hosts(
    store: Store, cluster: Cluster, machines: Machines, pool: Pool, report: Reporter
) -> Cluster:
    folder = store.locate_folder(cluster.name) / "ssh"
    terminal.forget(store, cluster)
    report(f"connecting to {count(len(cluster.nodes), 'host')}")
    _require_all_well(
        "some hosts cannot be used", pool.connect(timeout=CONNECT_TIMEOUT), NodeUnreachable
    )
    host_keys = {}
    for node in cluster.nodes:
        transport = pool.find_transport(node.name)
        assert isinstance(transport, SshTransport)
        host_keys[node.name] = transport.read_host_key()
    found, wrong = _probe(cluster, machines, pool, report)
    cluster = replace(cluster, nodes=tuple(found.get(node.name, node) for node in cluster.nodes))
    store.save(cluster)
    hint = "" if machines.sudo else "; --bootstrap installs packages with sudo"
    _require_all_well("some hosts cannot be used", wrong, BootstrapError, f"correct that{hint}")
    if different := _compare_mpi(cluster.nodes):
        report(different)
    cluster = replace(cluster, nodes=_choose_addresses(cluster.nodes))
    store.save(cluster)
    mesh = bootstrap.Mesh(
        key=keys.ensure_pair(folder / "mesh"),
        nodes=cluster.nodes,
        host_keys=host_keys,
    )
    steps = (bootstrap.LetIn(mesh.key.public, make_key_mark(cluster)),)
    scripts = {
        node.name: bootstrap.render_script(
            node, mesh, pythons=_list_first(node.python), steps=steps
        )
        for node in cluster.nodes
    }
    results = pool.run("exec /bin/sh -s", stdin=scripts, timeout=ASK_TIMEOUT)
    wrong = [NodeResult(node=r.node, error=w) for r in results if (w := bootstrap.find_problem(r))]
    _require_all_well("some hosts could not be set up", wrong, BootstrapError)
    bootstrap.check_mesh(
        pool,
        cluster,
        what="hosts",
        hint="check for a firewall between them, and that their sshd reads ~/.ssh/authorized_keys",
    )
    check_ports(pool, cluster)
    return write_known_hosts(store, cluster, host_keys)


def _probe(
    cluster: Cluster, machines: Machines, pool: Pool, report: Reporter
) -> tuple[dict[str, Node], list[NodeResult]]:
    """The nodes with what they have told of themselves, as far as our folder could be made there,
    and what is wrong with any."""
    scripts = {
        node.name: assets.render(
            "bootstrap/probe.sh.j2",
            node=node,
            id=cluster.id,
            workdir=machines.workdir,
            sudo=machines.sudo,
            packages={**bootstrap.REQUIRED, **WANTED},
            questions=facts.list_questions(_list_first(node.python), only=bool(node.python)),
            marker=facts.MARKER,
        ).encode()
        for node in cluster.nodes
    }
    limit = INSTALL_TIMEOUT if machines.sudo else ASK_TIMEOUT
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


def _list_first(python: str) -> list[str]:
    return [python] if python else []


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
    told = facts.parse(result.text)
    if node.python and told.python is None:
        reasons.append(f"the file sets python={node.python}, which is not a Python on that host")
    if lacks := bootstrap.find_lacking(told):
        reasons.append(lacks)
    return "; ".join(reasons)


def _describe_lacks(node: Node) -> str:
    """What some jobs will miss there, and the command that installs it."""
    missing = []
    packages = node.facts.python.packages if node.facts.python else {}
    if node.facts.mpi is None:
        missing.append(
            "no mpirun: it cannot take part in jobs on several hosts"
            " (sudo apt-get install openmpi-bin)"
        )
    if not node.python:
        missing.append("no Python: it cannot run Python programs (sudo apt-get install python3)")
    elif without := [name for name in catalog.BUNDLED if name not in packages]:
        missing.append(
            f"{node.python} lacks {', '.join(without)}: it cannot run the bundled programs"
            f" ({node.python} -m pip install {' '.join(without)} there, or name a Python that has"
            " them: python=/… in the file)"
        )
    if node.slots and node.facts.gpus and node.slots > len(node.facts.gpus):
        missing.append(
            f"the file sets {count(node.slots, 'slot')}, but the host has"
            f" {count(len(node.facts.gpus), 'GPU')}"
        )
    return "; ".join(missing)


def _compare_mpi(nodes: tuple[Node, ...]) -> str:
    """What stands in the way of jobs of several hosts, where each host by itself is well."""
    able = [node for node in nodes if node.facts.mpi]
    try:
        if able:
            find_common_mpi(able)
    except LaunchError as error:
        return f"{error.message}: {error.hint}"
    return ""


def _read(node: Node, result: NodeResult) -> Node:
    """The node as its answers describe it. The address and port that our connection has at its end
    are those at which the others find it too."""
    answers, found = facts.split_answers(result.text), bootstrap.read(node, result)
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
    network = interconnect.solve(nodes)
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


def _clean_up_quietly(store: Store, cluster: Cluster, report: Reporter) -> None:
    """An attach that failed leaves no files of ours on the hosts, as far as they answer."""
    reached = tuple(node for node in cluster.nodes if node.root)
    try:
        if reached:
            provider = providers.load(cluster.spec.provider)
            provider.destroy(
                replace(cluster, nodes=reached), store.locate_folder(cluster.name), report
            )
    except ClusterctlError as error:
        report(error.message)
    store.retire(cluster)


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
    unknown = any("is not known; nothing was sent" in result.error for result in failed)
    if unknown:
        hint = (
            "compare the fingerprint with what the host's console or administrator says"
            " (there: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then:"
            " ssh-keyscan HOST >>~/.ssh/known_hosts"
        )
    raise kind(f"{what}: {'; '.join(fold(failed))}", hint=hint)

"""`ssh`, `cp` and `forward`: a shell on a node, a file to or from it, a port of it."""

from __future__ import annotations

import re
import shlex
import socket
import sys
from pathlib import Path

from clusterctl import process
from clusterctl.actions import open_pool, ssh_config, terminal
from clusterctl.actions.known_hosts_file import mend_known_hosts
from clusterctl.errors import FULL, NodeUnreachable, RecordError, UsageError, make_local_error
from clusterctl.model import Cluster, Node, NodeResult, Reporter, Role
from clusterctl.state import Store
from clusterctl.transport.pool import Pool
from clusterctl.transport.shell import wrap_command

CONNECT_TIMEOUT = 5.0
SSH_FAILED = 255
"""ssh's own exit code when it gets no connection."""


def find_node(cluster: Cluster, name: str | None) -> Node:
    """The node of that name (the launcher, unless named), or RecordError with the names there
    are."""
    for node in cluster.nodes:
        if node.name == name or (not name and node.role is not Role.WORKER):
            return node
    if not name:
        raise RecordError(
            f"cluster {cluster.name!r} is {cluster.phase.value} and has no launcher",
            hint=f"`{cluster.repair}` continues,"
            f" `clusterctl {cluster.end} {cluster.name}` removes it",
        )
    names = ", ".join(node.name for node in cluster.nodes)
    raise RecordError(f"cluster {cluster.name!r} has no node {name!r}", hint=f"nodes: {names}")


def make_ssh_argv(cluster: Cluster, name: str | None, words: list[str]) -> list[str]:
    """The OpenSSH command line for a node (the launcher, unless named), for the cluster's `ssh`
    folder. `words` reach the program there as they are here, but for a single one, which the
    node's shell reads: `-- 'ls | wc'`."""
    node = find_node(cluster, name)
    if node.here:
        return ["/bin/sh", *(["-c", _start_at_home(words)] if words else [])]
    if words:
        return [*start_ssh(cluster, node), _write_command(node, words)]
    tty = ["-t"] if sys.stdin.isatty() else []
    return [*start_ssh(cluster, node, *tty), f"cd; {_open_shell(node)}"]


def start_ssh(cluster: Cluster, node: Node, *options: str) -> list[str]:
    """OpenSSH's words up to the host, for the cluster's `ssh` folder. A host of the person's own
    has the name that its ssh_config knows: a HostName would not be looked up there again."""
    if not cluster.attached:
        return ["ssh", "-F", "config", *options, node.name]
    place = ["-p", str(node.ssh_port)] if node.ssh_port else []
    key = ["-i", str(cluster.identity)] if cluster.identity else []
    return ["ssh", "-F", "config", *options, *place, *key, "-l", node.user, node.address]


def _write_command(node: Node, words: list[str]) -> str:
    """The line that runs these words on a node, whatever the account's shell is; as jobs do, where
    the node has got the files of `terminal`."""
    if node.role is Role.LOGIN:
        return _start_at_home(words)
    enter = shlex.quote(f"{node.root}/shell/enter")
    line = ["-c", words[0]] if len(words) == 1 else words
    plain = '"${SHELL:-/bin/sh}" ' if len(words) == 1 else ""
    command = shlex.join(line)
    return wrap_command(
        f"cd; [ ! -f {enter} ] || exec /bin/sh {enter} {command}; exec {plain}{command}"
    )


def _open_shell(node: Node) -> str:
    """The shell of `terminal`, where the node has got it, else the account's own."""
    enter = shlex.quote(f"{node.root}/shell/enter")
    return f'[ ! -x {enter} ] || exec {enter}; exec "${{SHELL:-/bin/sh}}" -l'


def _start_at_home(words: list[str]) -> str:
    """A command for a node's shell, in the node's own home: sshd starts it in the one that the
    account has, which local nodes share with this machine."""
    return f"cd; {words[0] if len(words) == 1 else shlex.join(words)}"


def open_shell(
    store: Store, cluster: Cluster, name: str | None, words: list[str], report: Reporter
) -> int:
    """Hands the terminal to ssh; its exit code, which is the remote command's. Raises
    NodeUnreachable where ssh gets no session."""
    argv = make_ssh_argv(cluster, name, words)
    node = find_node(cluster, name)
    _prepare_ssh(store, cluster)
    _prepare_shell(store, cluster, node, words, report)
    code = process.run_in_foreground(argv, cwd=store.locate_folder(cluster.name) / "ssh")
    if code == SSH_FAILED and not node.here:
        _check_sessions(store, cluster, node)
    return code


def _check_sessions(store: Store, cluster: Cluster, node: Node) -> None:
    """ssh says 255 when it gets no session, and programs may say so too. Raises NodeUnreachable
    where we get no connection either, or ssh no session for a program that does nothing: it refuses
    more than we do, such as a key that others can read."""
    with open_pool(store, cluster) as pool:
        pool.find_transport(node.name).connect(CONNECT_TIMEOUT)
    argv = [*start_ssh(cluster, node, "-o", "BatchMode=yes"), "true"]
    folder = store.locate_folder(cluster.name) / "ssh"
    result = process.run(argv, timeout=2 * CONNECT_TIMEOUT, cwd=folder)
    if result.exit_code == SSH_FAILED:
        raise NodeUnreachable(
            f"ssh gets no session on {node.name}: {result.why}",
            hint=f"ssh's own configuration for the node is {folder / 'config'}",
        )


def _prepare_shell(
    store: Store, cluster: Cluster, node: Node, words: list[str], report: Reporter
) -> None:
    """A command waits for no other node that does not answer; a person may go on to any."""
    if node.role is not Role.LOGIN:
        terminal.prepare(store, cluster, report, needed=[node.name] if words else ())


def make_forward_argv(cluster: Cluster, target: str, port: int) -> tuple[list[str], str]:
    """OpenSSH's command line for `NODE:PORT`, as for `make_ssh_argv`, and the address on this
    machine. Raises UsageError for a target that is none, and for a port of this machine that is
    taken."""
    name, _, text = target.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", text) or not 1 <= int(text) <= 65535:
        wrong = f"port {text} is not between 1 and 65535" if text.isdecimal() else ""
        raise UsageError(
            wrong or f"{target!r} is not [NODE:]PORT",
            hint="for example clusterctl forward worker-1:6006",
        )
    node = find_node(cluster, name)
    if node.here:
        raise UsageError(f"{node.name} is this machine", hint=f"its port is localhost:{text}")
    here = f"127.0.0.1:{port or int(text)}"
    _check_free(port or int(text))
    options = ("-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{here}:127.0.0.1:{text}")
    return start_ssh(cluster, node, *options), here


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
            raise UsageError(
                f"port {port} of this machine: {error.strerror}", hint=f"for example --port {free}"
            ) from error


def forward(store: Store, cluster: Cluster, argv: list[str], node: str) -> int:
    """Runs ssh until it is interrupted; raises NodeUnreachable where it gets no session."""
    _prepare_ssh(store, cluster)
    code = process.run_in_foreground(argv, cwd=store.locate_folder(cluster.name) / "ssh")
    if code == SSH_FAILED:
        _check_sessions(store, cluster, cluster.node(node))
    return code


def execute(
    store: Store,
    cluster: Cluster,
    name: str | None,
    words: list[str],
    timeout: float,
    report: Reporter,
) -> NodeResult:
    """The command's result as data, for --json."""
    node = find_node(cluster, name)
    _prepare_ssh(store, cluster)
    _prepare_shell(store, cluster, node, words, report)
    with open_pool(store, cluster) as pool:
        return pool.find_transport(node.name).run(_write_command(node, words), timeout=timeout)


def copy(store: Store, cluster: Cluster, source: str, target: str, timeout: float) -> None:
    """One of the two is `NODE:PATH`, the other a path here. Folders are copied whole."""
    remote_source, remote_target = _split(cluster, source), _split(cluster, target)
    wrong = UsageError(
        "one of SOURCE and TARGET must be NODE:PATH, the other a path on this machine",
        hint="for example worker-1:results.txt",
    )
    if remote_source and remote_target:
        raise wrong
    if remote_target and not Path(source).exists():
        raise UsageError(f"{source}: no such file or folder", hint="check the path")
    if remote_source or remote_target:
        _prepare_ssh(store, cluster)
    with open_pool(store, cluster) as pool:
        for remote in (remote_source, remote_target):
            if remote:
                pool.find_transport(remote[0]).connect(CONNECT_TIMEOUT)
        if remote_target:
            here = Path(source)
            node, path = remote_target
            path = _make_absolute(pool, node, path)
            if path.endswith(("/.", "/")):
                path = f"{path.removesuffix('.').rstrip('/')}/{here.name}"
            result = pool.find_transport(node).put(here, path, timeout=timeout)
        elif remote_source:
            node, path = remote_source
            path = _make_absolute(pool, node, path)
            there = Path(target)
            if there.is_dir():
                there = there / path.rstrip("/").rpartition("/")[2]
            result = pool.find_transport(node).get(path, there, timeout=timeout)
        else:
            raise wrong
    if not result.ok:
        # What the node itself says is about its own path.
        place = source if remote_source else target
        what = f"copying {source} to {target}" if result.exit_code is None else place
        if result.errno in FULL:
            raise make_local_error(f"{what}: {result.error}", result.errno)
        raise UsageError(
            f"{what}: {result.error or result.complaints}",
            hint="check the path, its permissions and the free space",
        )


def _prepare_ssh(store: Store, cluster: Cluster) -> None:
    """Writes the files for ssh again, where they are damaged. Raises NodeUnreachable for a cluster
    that was found again by its tags alone."""
    name = cluster.name
    if not cluster.attached:
        if not (store.locate_folder(name) / "ssh" / "user").exists():
            raise NodeUnreachable(
                f"the SSH keys of cluster {name!r} are lost: its nodes cannot be reached",
                hint=f"`clusterctl status {name}` shows it, `clusterctl down {name}` removes it",
            )
        ssh_config.write_hosts(store, cluster)
    mend_known_hosts(store, cluster)
    ssh_config.write_config(store, cluster)


def _make_absolute(pool: Pool, node: str, path: str) -> str:
    """A relative path on a node counts from the node's own home."""
    if path.startswith("/"):
        return path
    result = pool.find_transport(node).run('printf %s "$HOME"', timeout=CONNECT_TIMEOUT)
    return f"{result.text}/{path}" if result.ok and result.text else path


def _split(cluster: Cluster, text: str) -> tuple[str, str] | None:
    name, colon, path = text.partition(":")
    if not colon or "/" in name:
        return None
    return find_node(cluster, name).name, path or "."

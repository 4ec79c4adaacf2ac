"""`ssh`, `cp` and `forward`: a shell on a node, a file to or from it, a port of it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from shlex import quote

from clusterctl import __version__, process
from clusterctl.actions.common import mend_known_hosts, open_pool
from clusterctl.core import assets
from clusterctl.core.model import (
    Cluster,
    Node,
    NodeResult,
    Reporter,
    Role,
    fold,
    render_hostfile_mark,
)
from clusterctl.errors import (
    FULL,
    NodeUnreachable,
    RecordError,
    UsageError,
    make_local_error,
    make_write_error,
)
from clusterctl.launch import mpirun
from clusterctl.project import tree
from clusterctl.state.files import replace_file, write_atomic
from clusterctl.state.store import Store
from clusterctl.transport.protocol import wrap_command

# -------------------------------------------------------------------------------------------------
# `ssh-config`: plain ssh, rsync and editors reach the nodes as `CLUSTER-NODE`.
#
# Each cluster of ours keeps a file of its nodes, and the user's ssh_config includes all of them by
# one pattern. So new clusters appear there by themselves, and `down` takes them out again.


HOSTS = "hosts"
MARK = "# clusterctl: nodes as CLUSTER-NODE"
SETTINGS = (
    *("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_CA_BUNDLE", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
)
"""Variables that an editor which was not started in this shell would not have."""


def write_config(store: Store, cluster: Cluster) -> None:
    """The cluster's ssh_config, for `ssh -F config` in its folder of keys, and the file of its
    nodes for the user's own, if ssh can read that folder's name. One that is as it has to be stays:
    what only reads works in a state home that cannot be written."""
    folder = store.locate_folder(cluster.name) / "ssh"
    if cluster.attached:  # the user's own, with our names on top
        home = str(Path.home() / ".ssh")
        _replace(
            folder / "config",
            assets.render("client/attached_config.j2", cluster=cluster, home=home),
        )
        return
    given = {"cluster": cluster, "tunnels": _list_tunnels(cluster)}
    _replace(folder / "config", assets.render("client/ssh_config.j2", **given))
    if not _find_special(folder):
        escaped = str(folder).replace("%", "%%")
        _replace(folder / HOSTS, assets.render("client/hosts.j2", folder=escaped, **given))


def _list_tunnels(cluster: Cluster) -> dict[str, str]:
    """The ProxyCommands of the nodes that are reached by one."""
    # A proxy's password is not written down.
    values = {name: os.environ.get(name, "") for name in SETTINGS}
    settings = [f"{name}={value}" for name, value in values.items() if value and "@" not in value]
    return {
        node.name: f"{shlex.join(['env', *settings])} {node.tunnel}".replace("%", "%%")
        for node in cluster.nodes
        if node.tunnel
    }


def _replace(path: Path, text: str) -> None:
    with suppress(OSError):
        if path.read_bytes() == text.encode():
            return
    write_atomic(path, text.encode())


def include(store: Store) -> str:
    """The line of an ssh_config that brings in the nodes of all clusters. Raises UsageError."""
    folder = store.home.clusters
    if odd := _find_special(folder):
        raise UsageError(
            f"ssh cannot include files in {folder}: the name contains {odd!r}",
            hint="set CLUSTERCTL_HOME to another folder, or use `clusterctl ssh`",
        )
    return f'Include "{folder}/*/ssh/{HOSTS}"'


def _find_special(folder: Path) -> str:
    """What ssh would read as something else, in quotes or as a pattern."""
    return next(
        (word for word in ('"', "\n", "${", "*", "?", "[", "\\") if word in str(folder)), ""
    )


def refresh(store: Store) -> tuple[str, ...]:
    """Writes the files of all clusters anew; the names by which ssh knows their nodes. Machines
    that are the user's own are left out: ssh knows them already."""
    found: list[str] = []
    for cluster in store.list_clusters():
        if not cluster.attached and (store.locate_folder(cluster.name) / "ssh").is_dir():
            write_config(store, cluster)
            found += (f"{cluster.name}-{node.name}" for node in cluster.nodes)
    return tuple(found)


def install(store: Store, config: Path) -> bool:
    """Makes `config` include the nodes; whether it did not before. The line comes first: further
    down it would belong to the Host above it."""
    lines, line = _read(config), include(store)
    if line in lines:
        return False
    _write(config, [MARK, line, *_drop_ours(lines)])
    return True


def uninstall(config: Path) -> bool:
    """Takes the line out again; whether there was one."""
    lines = _read(config)
    kept = _drop_ours(lines)
    if kept == lines:
        return False
    _write(config, kept)
    return True


def _drop_ours(lines: list[str]) -> list[str]:
    """Without our two lines, also where they include the clusters of another state home."""
    found = range(len(lines))
    ours = {at + step for at in found if lines[at] == MARK for step in (0, 1)}
    return [lines[at] for at in found if at not in ours]


def _read(config: Path) -> list[str]:
    try:
        return config.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(
            f"{config} cannot be read: {error.strerror}", hint="make it readable"
        ) from error


def _write(config: Path, lines: list[str]) -> None:
    """Whole or not at all, and where a symbolic link leads to."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        config.resolve().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(config, text.encode(errors="surrogateescape"), mode=0o600)
    except OSError as error:
        hint = "`clusterctl ssh-config --print` shows what to add"
        raise make_write_error(str(config), error, hint) from error


# -------------------------------------------------------------------------------------------------
# A shell on a node in which ssh, mpirun and python are those of jobs.
#
# What it needs is written to all nodes when the first shell is opened, since `ssh worker-1` and
# `mpirun` reach all of them, and again when the nodes have changed.


TIMEOUT = 60.0
DIGEST = "shell"
"""A file beside the cluster's keys: which nodes have been prepared, and by which version."""


def forget(store: Store, cluster: Cluster) -> None:
    """The nodes are made ready again: their files may be gone."""
    (store.locate_folder(cluster.name) / "ssh" / DIGEST).unlink(missing_ok=True)


def prepare(
    store: Store, cluster: Cluster, report: Reporter, *, needed: Collection[str] = ()
) -> None:
    """Writes the files of the shells to all nodes, unless those that are needed, all by default,
    have them. Nodes that do not answer are told, and tried again next time."""
    if any(node.role is Role.LOGIN for node in cluster.nodes):
        return
    stamp = store.locate_folder(cluster.name) / "ssh" / DIGEST
    wanted = hashlib.sha256(f"{__version__} {cluster.nodes}".encode()).hexdigest()
    names = [node.name for node in cluster.nodes]
    written, *have = (stamp.read_text().split() if stamp.is_file() else []) or [""]
    if written == wanted and set(needed or names) <= set(have):
        return
    programs = tree.pack_workloads("programs")

    def send(name: str) -> NodeResult:
        node = cluster.node(name)
        texts = mpirun.render_files(cluster, node).items()
        archive = tree.pack_texts((path, text, mode) for path, (text, mode) in texts)
        script = assets.render(
            "terminal/install.sh.j2",
            node=node,
            mark=render_hostfile_mark(cluster.id),
            container=node.contained,
        )
        return pool.find_transport(name).run(
            f"exec /bin/sh -c {quote(script)}",
            stdin=archive + programs + tree.END_OF_ARCHIVE,
            timeout=TIMEOUT,
        )

    with open_pool(store, cluster) as pool:
        failed = [result for result in pool.call_each(send) if not result.ok]
    for line in fold(failed):
        report(f"{line}; `ssh` and `mpirun` may not reach it")
    missed = {result.node for result in failed}
    reached = [name for name in names if name not in missed]
    write_atomic(stamp, " ".join((wanted, *reached)).encode())


# -------------------------------------------------------------------------------------------------

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
    # A command waits for no other node that does not answer; a person may go on to any.
    prepare(store, cluster, report, needed=[node.name] if words else ())
    return run_ssh(store, cluster, argv, node)


def run_ssh(store: Store, cluster: Cluster, argv: list[str], node: Node) -> int:
    """ssh's exit code. It says 255 when it gets no session, and programs may say so too. Raises
    NodeUnreachable where we get no connection either, or ssh no session for a program that does
    nothing: it refuses more than we do, such as a key that others can read."""
    folder = store.locate_folder(cluster.name) / "ssh"
    code = process.run_in_foreground(argv, cwd=folder)
    if code != SSH_FAILED or node.here:
        return code
    with open_pool(store, cluster) as pool:
        pool.find_transport(node.name).connect(CONNECT_TIMEOUT)
    argv = [*start_ssh(cluster, node, "-o", "BatchMode=yes"), "true"]
    result = process.run(argv, timeout=2 * CONNECT_TIMEOUT, cwd=folder)
    if result.exit_code == SSH_FAILED:
        raise NodeUnreachable(
            f"ssh gets no session on {node.name}: {result.why}",
            hint=f"ssh's own configuration for the node is {folder / 'config'}",
        )
    return code


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
    here = ("127.0.0.1", port or int(text))
    try:
        socket.create_server(here).close()
    except OSError as error:
        raise UsageError(
            f"port {here[1]} of this machine: {error.strerror}", hint="choose another with --port"
        ) from error
    place = f"{here[0]}:{here[1]}"
    options = ("-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{place}:127.0.0.1:{text}")
    return start_ssh(cluster, node, *options), place


def forward(store: Store, cluster: Cluster, argv: list[str], node: str) -> int:
    """Runs ssh until it is interrupted; raises NodeUnreachable where it gets no session."""
    _prepare_ssh(store, cluster)
    return run_ssh(store, cluster, argv, cluster.node(node))


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
    prepare(store, cluster, report, needed=[node.name])
    with open_pool(store, cluster) as pool:
        return pool.find_transport(node.name).run(_write_command(node, words), timeout=timeout)


def copy(store: Store, cluster: Cluster, source: str, target: str, timeout: float) -> None:
    """One of the two is `NODE:PATH`, the other a path here. Folders are copied whole."""
    there, back = _split(cluster, target), _split(cluster, source)
    if bool(there) is bool(back):
        raise UsageError(
            "one of SOURCE and TARGET must be NODE:PATH, the other a path on this machine",
            hint="for example worker-1:results.txt",
        )
    node, path = there or back or ("", "")
    here = Path(source if there else target)
    if there and not here.exists():
        raise UsageError(f"{source}: no such file or folder", hint="check the path")
    _prepare_ssh(store, cluster)
    with open_pool(store, cluster) as pool:
        transport = pool.find_transport(node)
        transport.connect(CONNECT_TIMEOUT)
        if not path.startswith("/"):  # a relative path counts from the node's own home
            home = transport.run('printf %s "$HOME"', timeout=CONNECT_TIMEOUT)
            path = f"{home.text}/{path}" if home.ok and home.text else path
        if there:
            if path.endswith(("/.", "/")):
                path = f"{path.removesuffix('.').rstrip('/')}/{here.name}"
            folder = os.path.dirname(path.rstrip("/")) or "/"
            asked = transport.run(f"[ -d {quote(folder)} ]", timeout=CONNECT_TIMEOUT)
            if asked.exit_code == 1:
                make = f"`clusterctl ssh {node} -- mkdir -p {quote(folder)}` makes it"
                raise UsageError(f"{target}: there is no folder {folder}", hint=make)
            result = transport.put(here, path, timeout=timeout)
        else:
            if here.is_dir():
                here = here / path.rstrip("/").rpartition("/")[2]
            if not here.parent.is_dir():
                raise UsageError(f"{target}: there is no folder {here.parent}", hint="make it")
            result = transport.get(path, here, timeout=timeout)
    if not result.ok:
        # What the node itself says is about its own path.
        place = target if there else source
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
    if not cluster.attached and not (store.locate_folder(name) / "ssh" / "user").exists():
        raise NodeUnreachable(
            f"the SSH keys of cluster {name!r} are lost: its nodes cannot be reached",
            hint=f"`clusterctl status {name}` shows it, `clusterctl down {name}` removes it",
        )
    mend_known_hosts(store, cluster)
    write_config(store, cluster)


def _split(cluster: Cluster, text: str) -> tuple[str, str] | None:
    name, colon, path = text.partition(":")
    if not colon or "/" in name:
        return None
    return find_node(cluster, name).name, path or "."

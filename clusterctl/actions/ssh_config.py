"""`ssh-config`: plain ssh, rsync and editors reach the nodes as `CLUSTER-NODE`.

Each cluster of ours keeps a file of its nodes, and the user's ssh_config includes all of them by
one pattern. So new clusters appear there by themselves, and `down` takes them out again.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from clusterctl import assets
from clusterctl.actions import tunnel
from clusterctl.errors import RecordError, UsageError, make_write_error
from clusterctl.model import Cluster
from clusterctl.state import Store
from clusterctl.state.home import replace_file, write_atomic

HOSTS = "hosts"
MARK = "# clusterctl: nodes as CLUSTER-NODE"


def write_config(store: Store, cluster: Cluster) -> None:
    """The cluster's ssh_config, for `ssh -F config` in its folder of keys. One that is as it has
    to be stays: what only reads works in a state home that cannot be written."""
    if cluster.attached:  # the user's own, with our names on top
        home = str(Path.home() / ".ssh")
        text = assets.render("client/attached_config.j2", cluster=cluster, home=home)
    else:
        tunnels = tunnel.list_commands(store, cluster)
        text = assets.render("client/ssh_config.j2", cluster=cluster, tunnels=tunnels)
    _replace(store.locate_folder(cluster.name) / "ssh" / "config", text)


def write_hosts(store: Store, cluster: Cluster) -> None:
    """The cluster's own file, if ssh can read its folder's name."""
    folder = store.locate_folder(cluster.name) / "ssh"
    if not _find_special(folder):
        escaped = str(folder).replace("%", "%%")
        tunnels = tunnel.list_commands(store, cluster)
        text = assets.render("client/hosts.j2", cluster=cluster, folder=escaped, tunnels=tunnels)
        _replace(folder / HOSTS, text)


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
    for name in store.list_names():
        try:
            cluster = store.read_cluster(name)
        except RecordError:
            continue  # `list` says what is wrong with it
        if cluster.identity is None and (store.locate_folder(name) / "ssh").is_dir():
            write_hosts(store, cluster)
            found += (f"{name}-{node.name}" for node in cluster.nodes)
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

"""`data get URL`: downloads to one node, and from there through the others.

The node asks the server itself, so that nothing passes through the user's machine. One that cannot
reach the server is sent what was downloaded here. Tokens and signed URLs reach it over stdin.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from clusterctl import assets, data_sources
from clusterctl.actions import choose, connect_or_report, open_pool, require_ready
from clusterctl.actions.data import (
    CopiedDataSet,
    GetOptions,
    check_data_name,
    locate_copies,
    require_copied,
)
from clusterctl.data_sources import Remote, Source
from clusterctl.data_sources import is_url as is_url
from clusterctl.datasets import Progress
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError
from clusterctl.formats import format_bytes
from clusterctl.jobs.copy_retries import put_folder
from clusterctl.model import Cluster, Node, Reporter
from clusterctl.state import Store
from clusterctl.transport import Channel
from clusterctl.transport.local import LocalChannel
from clusterctl.transport.pool import Pool

SILENCE = 120.0
"""Seconds without a word after which the connection to a node counts as lost: its own limit for
the server is 30 s, and it says each attempt."""
SLOWEST = 2e6
"""Bytes per second that a copy between nodes has to reach, beside an hour."""

Listing = list[tuple[str, int, str]]
"""Path, size in bytes, SHA-256."""


class UnreachableSource(ProviderError):
    """The server does not answer this machine; another one may reach it."""


def get(
    store: Store, url: str, options: GetOptions, progress: Progress, report: Reporter
) -> CopiedDataSet:
    """Downloads what is behind the URL to the workers, or with `push` off to this machine.

    Raises:
        UsageError: There is nothing of that name, or it is no valid one.
        ProviderError: The server refuses, a checksum is wrong, or a disk is too small.
        NodeUnreachable, RecordError: About the cluster.
    """
    target = None
    if options.push and (options.cluster is not None or store.list_names()):
        target = require_ready(choose(store, options.cluster))
    source = _find(url)
    name = check_data_name(options.name or source.name)
    if options.sha256:
        if len(source.files) > 1:
            raise UsageError(f"--sha256 is for one file, and {url} has {len(source.files)}")
        source = replace(source, files=(replace(source.files[0], sha256=options.sha256),))
    if target is None:
        if options.push:
            report(f"no cluster yet: `clusterctl data get {url}` downloads it there later")
        path = _download_here(store, name, source, progress, report)
        return CopiedDataSet(name, str(path), ())
    return _copy_to_nodes(store, target, name, source, progress, report)


def _find(url: str) -> Source:
    def list_remote(bucket: str, prefix: str) -> Sequence[Remote]:
        from clusterctl.s3 import objects

        return objects.list_objects(bucket, prefix)

    return data_sources.find(url, list_remote)


def _copy_to_nodes(
    store: Store, cluster: Cluster, name: str, source: Source, progress: Progress, report: Reporter
) -> CopiedDataSet:
    # The nodes of a batch system see the login node's folders.
    nodes = cluster.workers or (cluster.launcher,)
    first, *others = nodes
    with open_pool(store, cluster) as pool:
        away = connect_or_report(pool, [node.name for node in nodes], report)
        for node, why in away.items():
            raise NodeUnreachable(
                f"{node} does not answer: {why}", hint="check with `status --live`"
            )
        try:
            report(f"{first.name} downloads {_describe_source(source)}")
            channel = pool.find_transport(first.name).open(_render_command(first))
            listing = _follow(channel, f"{first.root}/data", name, source, progress, report)
        except UnreachableSource as error:
            report(
                f"{first.name} cannot download it: {error.message}; downloading on this machine"
                " instead"
            )
            listing = _send(store, first, name, source, progress, pool, report)
        mark = _make_mark(listing)
        _check([first], name, listing, mark, pool, place=name)
        got = _spread(first, others, name, listing, mark, pool, report)
    return CopiedDataSet(name, f"{first.root}/data/{name}", (first.name, *got))


def _describe_source(source: Source) -> str:
    size = f", {format_bytes(source.size)}" if source.size else ""
    files = f"{len(source.files)} files" if len(source.files) > 1 else source.files[0].path
    return files + size


def _download_here(
    store: Store, name: str, source: Source, progress: Progress, report: Reporter
) -> Path:
    root = store.home.make(locate_copies(store))
    channel = LocalChannel(_render_command(None))
    _follow(channel, str(root), name, source, progress, report)
    return root / name


def _render_command(node: Node | None) -> str:
    """Starts templates/node/get.py, which is read from stdin: `-c` would show it to everyone, and a
    file would have to be removed."""
    size = len(_read_program())
    run = f"-I -c 'import sys; exec(sys.stdin.buffer.read({size}))'"
    if node is None:
        return f"exec {shlex.quote(sys.executable)} {run}"
    python = node.facts.python.executable if node.facts.python else "python3"
    missing = json.dumps({"error": "it has no Python", "unreachable": True})
    return (
        f"for python in {shlex.quote(python)} python3; do"
        f' ! command -v "$python" >/dev/null || exec "$python" {run}; done;'
        f" echo {shlex.quote(missing)}"
    )


def _read_program() -> bytes:
    return (assets.find_folder("templates") / "node" / "get.py").read_bytes()


def _follow(
    channel: Channel, root: str, name: str, source: Source, progress: Progress, report: Reporter
) -> Listing:
    """Talks with the program until it has ended; what it has downloaded."""
    order = {"root": root, "name": name, "files": [asdict(file) for file in source.files]}
    ended, buffer = None, b""
    try:
        with suppress(BrokenPipeError):  # it says why
            channel.send(_read_program() + json.dumps(order).encode() + b"\n", SILENCE)
        while data := channel.receive(SILENCE):
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                said = _parse(line)
                if "progress" in said:
                    progress(*said["progress"])
                elif "note" in said:
                    report(said["note"])
                elif said:
                    ended = said
    except (TimeoutError, ConnectionError) as error:
        raise NodeUnreachable(
            f"the connection broke during the download: {error or 'no answer'}",
            hint="repeat the command: it continues where it stopped",
            transient=True,
        ) from error
    finally:
        channel.close()
    if ended and "done" in ended:
        return [(path, size, digest) for path, size, digest in ended["done"]]
    message = str((ended or {}).get("error") or "the download ended without a result")
    hint = "repeat the command: it continues where it stopped"
    kind = UnreachableSource if (ended or {}).get("unreachable") else ProviderError
    raise kind(message, hint=hint)


def _parse(line: bytes) -> dict[str, Any]:
    """{} for what is not the program's: a login shell's greeting."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _send(
    store: Store,
    node: Node,
    name: str,
    source: Source,
    progress: Progress,
    pool: Pool,
    report: Reporter,
) -> Listing:
    """By way of this machine."""
    path = _download_here(store, name, source, progress, report)
    listing = [
        (place, entry["size"], entry["sha256"])
        for place, entry in json.loads((path.parent / f".{name}.files").read_bytes()).items()
    ]
    if _find_holders([node], name, _make_mark(listing), pool):
        return listing
    report(f"copying {name} to {node.name}")
    transport, target = pool.find_transport(node.name), f"{node.root}/data/{name}"
    begun = transport.run(f"rm -rf {shlex.quote(target)}", timeout=60)
    sent = begun
    if begun.ok:
        sent = put_folder(transport, path, target, timeout=_estimate_limit(listing), report=report)
    require_copied([replace(sent, node=node.name)], name)
    return listing


def _estimate_limit(listing: Listing) -> float:
    return 3600 + sum(size for _, size, _ in listing) / SLOWEST


def _make_mark(listing: Listing) -> str:
    """What a complete copy is marked with."""
    return hashlib.sha256(json.dumps(sorted(listing)).encode()).hexdigest()


def _spread(
    first: Node,
    others: Sequence[Node],
    name: str,
    listing: Listing,
    mark: str,
    pool: Pool,
    report: Reporter,
) -> list[str]:
    """From the first node to the others over the network between them: each that has it passes it
    on. The names of those that got it."""
    have = _find_holders(others, name, mark, pool)
    missing = [node for node in others if node.name not in have]
    size = sum(size for _, size, _ in listing)
    holders, got = [first], list[str]()
    while missing:
        pairs = list(zip(holders, missing, strict=False))
        report(f"copying {name} ({format_bytes(size)}) between nodes to {_join_names(pairs)}")
        commands = {s.name: _render_pass(s, t, name, size) for s, t in pairs}
        results = pool.run(commands, timeout=_estimate_limit(listing))
        target = {source.name: node.name for source, node in pairs}
        require_copied([replace(result, node=target[result.node]) for result in results], name)
        reached = [node for _, node in pairs]
        _check(reached, name, listing, mark, pool, place=f".{name}.new/{name}")
        holders += reached
        got += [node.name for node in reached]
        missing = missing[len(pairs) :]
    return got


def _find_holders(nodes: Sequence[Node], name: str, mark: str, pool: Pool) -> set[str]:
    """Those that have a complete copy."""
    asked = {n.name: f"cat {_quote(n, f'.{name}.complete')} 2>&1" for n in nodes}
    found = pool.run(asked, timeout=30) if asked else ()
    return {result.node for result in found if result.text.strip() == mark}


def _join_names(pairs: Sequence[tuple[Node, Node]]) -> str:
    return ", ".join(node.name for _, node in pairs)


def _quote(node: Node, place: str) -> str:
    return shlex.quote(f"{node.root}/data/{place}")


def _render_pass(source: Node, target: Node, name: str, size: int) -> str:
    """What `source` runs to copy the folder to `target`, where it lies unfinished at first."""
    new = _quote(target, f".{name}.new")
    there = (
        f"rm -rf {new}; mkdir -p {new} && free=$(df -Pk {new} | awk 'END {{ print $4 }}') &&"
        f' if [ "$free" -lt {size // 1024} ]; then'
        f' echo "{size // 1_000_000 + 1} MB are needed, $((free / 1000)) MB are free" >&2; exit 73;'
        f" fi && TAR_OPTIONS= tar -xof - -C {new}"
    )
    return (
        f"TAR_OPTIONS= tar -C {shlex.quote(source.root)}/data -cf - {shlex.quote(name)} |"
        f" {shlex.quote(source.root)}/bin/clusterctl-ssh {target.name} {shlex.quote(there)}"
    )


def _check(
    nodes: Sequence[Node], name: str, listing: Listing, mark: str, pool: Pool, place: str
) -> None:
    """Compares all files there with their checksums, then gives the folder its name and mark."""
    sums = "".join(f"{digest}  {path}\n" for path, _, digest in listing)
    commands = {}
    for node in nodes:
        final, done = _quote(node, name), _quote(node, f".{name}.complete")
        move = f"rm -rf {final} && mv {_quote(node, place)} {final} && " if place != name else ""
        commands[node.name] = (
            f"rm -f {done}; (cd {_quote(node, place)} && sha256sum -c --quiet - >&2) &&"
            f" {move}rm -rf {_quote(node, f'.{name}.new')} && echo {mark} >{done}"
        )
    require_copied(pool.run(commands, stdin=sums.encode(), timeout=_estimate_limit(listing)), name)

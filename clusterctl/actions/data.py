"""`data`: public data sets and folders of one's own, brought to every worker's $CLUSTERCTL_DATA."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from secrets import token_hex
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from clusterctl import process
from clusterctl.actions.common import Connected, choose_cluster, connect_all, require_ready
from clusterctl.actions.shared_folder import SLOWEST
from clusterctl.core import assets
from clusterctl.core.model import Cluster, Node, NodeResult, Reporter
from clusterctl.core.text import format_bytes
from clusterctl.data import datasets, sources
from clusterctl.data.datasets import Dataset, Progress, load_datasets
from clusterctl.data.sources import Remote, Source
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError, make_local_error
from clusterctl.jobs import submit
from clusterctl.jobs.fetch import persist, render_paths
from clusterctl.options.verbs import DataGet
from clusterctl.project.contents import read_folder
from clusterctl.state.store import Store
from clusterctl.transport.diagnosis import Failure
from clusterctl.transport.pool import LocalChannel
from clusterctl.transport.protocol import Channel

PUSH_TIMEOUT = 3600.0
"""Seconds in which a data set has to be on a node."""
PATIENCE = 60.0
"""Seconds without progress after which the connection to a node counts as lost."""

_SENT = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Entry(Struct, frozen=True):
    """`here`: a complete copy lies on this machine, in `path`. Size in bytes of the download."""

    name: str
    title: str
    size: int
    here: bool
    path: str


def list_data(store: Store) -> tuple[Entry, ...]:
    """What `data get` knows."""
    root = locate_copies(store)
    return tuple(
        Entry(d.name, d.title, d.size, datasets.is_here(d, root), str(root / d.name))
        for d in load_datasets().values()
    )


def locate_copies(store: Store) -> Path:
    """Where this person's copies lie."""
    return store.home.path / "data"


def find_data(name: str, kinds: str = "data set") -> Dataset:
    """The data set of that name, or UsageError with the names there are; it says that none of these
    `kinds` has the name."""
    known = load_datasets()
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"available: {', '.join(known)}"
    raise UsageError(f"no {kinds} named {name!r}", hint=hint)


class CopiedDataSet(Struct, frozen=True):
    """A data set on this machine, and the workers that it was copied to just now."""

    name: str
    path: str
    pushed: tuple[str, ...]


def get(
    store: Store, name: str, given: DataGet, progress: Progress, report: Reporter
) -> CopiedDataSet:
    """Downloads the data set of that name if it is not here, and copies it to the workers.

    Raises:
        UsageError: There is no such data set.
        ProviderError: The mirror fails, or a worker refuses.
        NodeUnreachable, RecordError: About the cluster.
    """
    dataset, target = find_data(name), _choose_target(store, given)
    root = store.home.make(locate_copies(store))
    if datasets.is_here(dataset, root):
        report(f"{name} is already on this machine")
    else:
        download(dataset, root, given.mirror, progress, report)
    if not (target or given.no_push):
        report(f"no cluster yet: `clusterctl data push {name}` copies it later")
    path = root / name
    got = copy(store, target, path, name, dataset.mark, report) if target else ()
    return CopiedDataSet(name, str(path), got)


def _choose_target(store: Store, given: DataGet) -> Cluster | None:
    """Where the data goes, if anywhere: a wrong name is an error before the download."""
    if given.no_push or (given.cluster is None and not store.list_names()):
        return None
    return require_ready(choose_cluster(store, given.cluster))


def download(
    dataset: Dataset, root: Path, mirror: str, progress: Progress, report: Reporter
) -> None:
    """Downloads a data set to this machine, from its own server or from a folder `mirror`."""
    base = (mirror or dataset.url).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise UsageError(
            f"--mirror {mirror!r} is not a URL",
            hint="give one that begins with http:// or https://",
        )
    files = [Remote(f.path, f"{base}/{f.path}", f.size, f.sha256) for f in dataset.files]
    scratch = root / f".{dataset.name}.download"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        _download_here(scratch, "files", Source("files", tuple(files)), progress, report)
        datasets.complete(dataset, scratch / "files", root)
        shutil.rmtree(scratch)
    except UnreachableSource as error:
        error.hint += "; --mirror chooses another source"
        raise
    except OSError as error:
        raise make_local_error(
            f"{error.filename or root} cannot be written: {error.strerror or error}",
            error.errno,
            hint="check permissions and free space, or set CLUSTERCTL_HOME",
        ) from error


def push(
    store: Store, word: str, name: str | None, cluster: str | None, report: Reporter
) -> CopiedDataSet:
    """Copies a data set that is here, or a folder, to the workers. Raises as `get`."""
    target = require_ready(choose_cluster(store, cluster))
    if "/" in word or Path(word).is_dir():
        path, mark = Path(word).resolve(), ""
    else:
        dataset = find_data(word, "data set or folder")
        path, mark = locate_copies(store) / word, dataset.mark
        if not datasets.is_here(dataset, locate_copies(store)):
            raise UsageError(
                f"{word} is not on this machine", hint=f"`data get {word}` downloads it"
            )
    name = name or path.name
    return CopiedDataSet(name, str(path), copy(store, target, path, name, mark, report))


def check_data_name(name: str) -> str:
    """A name that a folder of data may have, or UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name for a data set",
            hint="name it with letters, digits, dots and dashes, for example --name images",
        )
    return name


def copy(
    store: Store, cluster: Cluster, source: Path, name: str, mark: str, report: Reporter
) -> tuple[str, ...]:
    """Copy a folder to $CLUSTERCTL_DATA/NAME on every worker; the names of those that got it.

    Args:
        mark: Identifies the content: a worker that holds it already is passed over. "" copies
            always.

    Raises:
        NodeUnreachable: A worker does not answer.
        ProviderError: A worker refuses: no space, no rights.
    """
    if not source.is_dir():
        raise UsageError(f"{source} is not a folder", hint="give the data set's folder")
    check_data_name(name)
    with _open_workers(store, cluster, report) as (at, nodes):
        have = _find_holders(at, nodes, name, mark) if mark else []
        missing = [node for node in nodes if node not in have]
        if not missing:
            report(f"all workers already have {name}")
            return ()
        if submit.may_spread(missing):
            return _copy_to_stores(at, source, missing, name, mark)
        got = [] if have else [nodes[0]]
        if got:
            _copy_to_stores(at, source, got, name, mark)
        missing = [node for node in missing if node not in got]
        found = [(path, path.lstat()) for path in sorted(source.rglob("*"))]
        found = [(path, it) for path, it in found if stat.S_IFMT(it.st_mode) in _SENT]
        paths = render_paths([str(path.relative_to(source)) for path, _ in found])
        size = sum(it.st_size for _, it in found if stat.S_ISREG(it.st_mode))
        passed_on = _spread(at, have + got, missing, name, mark, size, paths)
        return (*(node.name for node in got), *passed_on)


def _copy_to_stores(
    at: Connected, source: Path, nodes: Sequence[Node], name: str, mark: str
) -> tuple[str, ...]:
    """What none of the nodes has had before leaves this machine once. The mark goes first and comes
    last: what is half there has none."""
    names = [node.name for node in nodes]
    at.report(f"copying {name} to {', '.join(names)}")
    try:
        content = read_folder(source, at.store.home)
    except Failure as error:
        raise make_local_error(str(error), error.errno, UNREADABLE) from error

    whole: set[str] = set()

    def spread(names: Sequence[str]) -> Sequence[NodeResult]:
        # Those that have it all take part again, and pass it on.
        results = submit.spread(
            at.pool,
            [node for node in nodes if node.name in {*whole, *names}],
            f"data/{name}",
            content,
            prepare=f"rm -f data/.{name}.complete",
            link=True,
            timeout=PUSH_TIMEOUT,
            patience=PATIENCE,
        )
        whole.update(result.node for result in results if result.ok)
        return results

    require_copied(persist(at.pool, spread, names, at.report), name)
    if mark:
        _mark_complete(at, nodes, name, mark)
    return tuple(names)


def _mark_complete(at: Connected, nodes: Sequence[Node], name: str, mark: str) -> None:
    commands = {node.name: f"echo {mark} >{_quote(node, f'.{name}.complete')}" for node in nodes}

    def run(names: Sequence[str]) -> Sequence[NodeResult]:
        return at.pool.run({name: commands[name] for name in names}, timeout=30)

    require_copied(persist(at.pool, run, list(commands), at.report), name)


@contextmanager
def _open_workers(
    store: Store, cluster: Cluster, report: Reporter
) -> Iterator[tuple[Connected, list[Node]]]:
    """The nodes of a batch system see the login node's folders."""
    nodes = list(cluster.workers or (cluster.launcher,))
    with connect_all(store, cluster, report, [node.name for node in nodes]) as at:
        for node, why in at.away.items():
            raise NodeUnreachable(
                f"{node} does not answer: {why}", hint="check with `status --live`"
            )
        yield at, nodes


def _quote(node: Node, place: str) -> str:
    return shlex.quote(f"{node.root}/data/{place}")


def _find_holders(at: Connected, nodes: Sequence[Node], name: str, mark: str) -> list[Node]:
    """Those that have a complete copy."""
    asked = {node.name: f"cat {_quote(node, f'.{name}.complete')} 2>&1" for node in nodes}
    found = at.pool.run(asked, timeout=30) if asked else ()
    have = {result.node for result in found if result.text.strip() == mark}
    return [node for node in nodes if node.name in have]


def _spread(
    at: Connected,
    holders: Sequence[Node],
    missing: Sequence[Node],
    name: str,
    mark: str,
    size: int,
    paths: bytes | None = None,
) -> list[str]:
    """To the others over the network between the nodes: each that has it passes it on. The names of
    those that got it. `paths`: what to copy, beside what programs have written there; None
    replaces the whole folder."""
    holders, missing, got = list(holders), list(missing), list[str]()
    while missing:
        pairs = list(zip(holders, missing, strict=False))
        names = [node.name for _, node in pairs]
        at.report(f"copying {name} ({format_bytes(size)}) between nodes to {', '.join(names)}")
        by_name = {pair[0].name: pair for pair in pairs}

        def run(
            sources: Sequence[str], by_name: Mapping[str, tuple[Node, Node]] = by_name
        ) -> Sequence[NodeResult]:
            replaced = paths is None
            commands = {
                source: _render_pass(*by_name[source], name, mark, size, replaced=replaced)
                for source in sources
            }
            return at.pool.run(commands, stdin=paths or b"", timeout=3600 + size / SLOWEST)

        results = persist(at.pool, run, list(by_name), at.report)
        require_copied([replace(r, node=by_name[r.node][1].name) for r in results], name)
        holders += [node for _, node in pairs]
        got += names
        missing = missing[len(pairs) :]
    return got


def _render_pass(
    source: Node, target: Node, name: str, mark: str, size: int, replaced: bool
) -> str:
    """What `source` runs to copy the folder to `target`. A folder that is `replaced` lies there
    unfinished at first; else the paths on stdin are copied into the one that is there."""
    # What an attempt before this one still does, without its connection to us, goes wrong.
    old, final = _quote(target, f".{name}.new"), _quote(target, name)
    new = f"{old}-{token_hex(4)}"
    done = _quote(target, f".{name}.complete")
    if replaced:
        what = "."
        there = (
            f"rm -rf {old} {old}-* {done}; mkdir -p {new} &&"
            f" free=$(df -Pk {new} | awk 'END {{ print $4 }}') &&"
            f' if [ "$free" -lt {size // 1024} ]; then echo "{size // 1_000_000 + 1} MB are needed,'
            f' $((free / 1000)) MB are free" >&2; exit 73; fi && TAR_OPTIONS= tar -xof - -C {new}'
        )
        finish = f"rm -rf {final} && mv {new} {final}"
    else:
        what = "--no-recursion --null -T -"
        there = f"rm -f {done}; mkdir -p {final} && TAR_OPTIONS= tar -xof - -C {final}"
        finish = ":"
    finish += f" && echo {mark} >{done}" if mark else ""
    archive = f"TAR_OPTIONS= tar -C {_quote(source, name)} -cf - {what}"
    ssh = f"{shlex.quote(source.root)}/bin/clusterctl-ssh {target.name}"
    # A pipeline has the exit code of its last command alone: the archive's goes around it.
    return (
        f"archive=$({{ {{ {archive}; echo $? >&3; }} | {ssh} {shlex.quote(there)} >&2; }} 3>&1) &&"
        f' [ "$archive" = 0 ] && {ssh} {shlex.quote(finish)} </dev/null'
    )


UNREADABLE = "make it readable, and repeat the command when nothing is removed there"


def require_copied(results: Sequence[NodeResult], name: str) -> None:
    """Raises NodeUnreachable for nodes that were lost on the way, ProviderError for nodes that
    refuse a data set, UsageError for files here that changed: what to do is different."""
    failed = [result for result in results if not result.ok]
    if not failed:
        return
    what = f"{name} is not on {', '.join(result.node for result in failed)}: {failed[0].why}"
    if failed[0].errno:
        raise make_local_error(what, failed[0].errno, UNREADABLE)
    if all(result.error for result in failed):
        raise NodeUnreachable(
            what, hint="check with `clusterctl status --live`, and repeat the command"
        )
    full = any(words in failed[0].why for words in ("No space left", "are free", "quota"))
    first = "check the free space there" if full else "correct that there"
    raise ProviderError(what, hint=f"{first}, and repeat the command")


def write_index(words: Sequence[str]) -> int:
    """Runs `make_dataset_yaml.py` of the bundled programs on this machine; its exit code."""
    program = assets.find_folder("workloads") / "make_dataset_yaml.py"
    return process.run_in_foreground([sys.executable, str(program), *words], cwd=Path.cwd())


# -------------------------------------------------------------------------------------------------
# `data get URL`: downloads to one node, and from there through the others.
#
# The node asks the server itself, so that nothing passes through the user's machine. One that
# cannot reach the server is sent what was downloaded here. Tokens and signed URLs reach it over
# stdin.


SILENCE = 120.0
"""Seconds without a word after which the connection to a node counts as lost: its own limit for
the server is 30 s, and it says each attempt."""

CONTINUES = "repeat the command: it continues where it stopped"

Listing = list[tuple[str, int, str]]
"""Path, size in bytes, SHA-256."""


class UnreachableSource(ProviderError):
    """The server does not answer this machine; another one may reach it."""


def download_on_nodes(
    store: Store, url: str, given: DataGet, progress: Progress, report: Reporter
) -> CopiedDataSet:
    """Downloads what is behind the URL to the workers, or with --no-push to this machine.

    Raises:
        UsageError: There is nothing of that name, or it is no valid one.
        ProviderError: The server refuses, a checksum is wrong, or a disk is too small.
        NodeUnreachable, RecordError: About the cluster.
    """
    target = _choose_target(store, given)
    source = sources.find_source(url)
    name = check_data_name(given.name or source.name)
    if given.sha256:
        if len(source.files) > 1:
            raise UsageError(f"--sha256 is for one file, and {url} has {len(source.files)}")
        source = replace(source, files=(replace(source.files[0], sha256=given.sha256),))
    if target:
        return _copy_to_nodes(store, target, name, source, progress, report)
    if not given.no_push:
        report(f"no cluster yet: `clusterctl data get {url}` downloads it there later")
    root = store.home.make(locate_copies(store))
    _download_here(root, name, source, progress, report)
    return CopiedDataSet(name, str(root / name), ())


def _copy_to_nodes(
    store: Store, cluster: Cluster, name: str, source: Source, progress: Progress, report: Reporter
) -> CopiedDataSet:
    with _open_workers(store, cluster, report) as (at, nodes):
        first, *others = nodes
        try:
            report(f"{first.name} downloads {_describe_source(source)}")
            channel = at.pool.find_transport(first.name).open(_render_command(first))
            listing = _follow(channel, f"{first.root}/data", name, source, progress, report)
        except UnreachableSource as error:
            report(
                f"{first.name} cannot download it: {error.message}; downloading on this machine"
                " instead"
            )
            root = store.home.make(locate_copies(store))
            listing = _download_here(root, name, source, progress, report)
            if not _find_holders(at, [first], name, _make_mark(listing)):
                gone = at.pool.run({first.name: f"rm -rf {_quote(first, name)}"}, timeout=60)
                require_copied(gone, name)
                _copy_to_stores(at, root / name, [first], name, "")
        mark, size = _make_mark(listing), sum(size for _, size, _ in listing)
        _mark_complete(at, [first], name, mark)
        have = _find_holders(at, others, name, mark)
        missing = [node for node in others if node not in have]
        got = _spread(at, [first, *have], missing, name, mark, size)
    return CopiedDataSet(name, f"{first.root}/data/{name}", (first.name, *got))


def _describe_source(source: Source) -> str:
    size = f", {format_bytes(source.size)}" if source.size else ""
    files = f"{len(source.files)} files" if len(source.files) > 1 else source.files[0].path
    return files + size


def _download_here(
    root: Path, name: str, source: Source, progress: Progress, report: Reporter
) -> Listing:
    return _follow(LocalChannel(_render_command(None)), str(root), name, source, progress, report)


def _render_command(node: Node | None) -> str:
    """Starts templates/node/get.py, which is read from stdin: `-c` would show it to everyone, and a
    file would have to be removed."""
    python = node.facts.python.executable if node and node.facts.python else ""
    first = shlex.quote(python or (sys.executable if node is None else "python3"))
    run = f"-I -c 'import sys; exec(sys.stdin.buffer.read({len(_read_program())}))'"
    return f'exec "$(command -v {first} || command -v python3)" {run}'


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
            hint=CONTINUES,
            transient=True,
        ) from error
    finally:
        channel.close()
    if ended and "done" in ended:
        return [(path, size, digest) for path, size, digest in ended["done"]]
    ended = ended or {"error": "its Python did not run the download", "unreachable": True}
    kind = UnreachableSource if ended.get("unreachable") else ProviderError
    raise kind(str(ended["error"]), hint=CONTINUES)


def _parse(line: bytes) -> dict[str, Any]:
    """{} for what is not the program's: a login shell's greeting."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _make_mark(listing: Listing) -> str:
    """What a complete copy is marked with."""
    return hashlib.sha256(json.dumps(sorted(listing)).encode()).hexdigest()

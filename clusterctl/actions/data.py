"""`data`: public data sets and folders of one's own, brought to every worker's $CLUSTERCTL_DATA."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from clusterctl import assets, datasets, process
from clusterctl.actions import choose, connect_or_report, open_pool, require_ready
from clusterctl.datasets import DATASETS, Dataset, Progress
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError
from clusterctl.jobs.copy_retries import put_folder
from clusterctl.model import Cluster, NodeResult, Reporter
from clusterctl.state import Store

PUSH_TIMEOUT = 3600.0
"""Seconds in which a data set has to be on a node."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Entry:
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
        for d in DATASETS.values()
    )


def locate_copies(store: Store) -> Path:
    """Where this person's copies lie."""
    return store.home.path / "data"


def find(name: str, kinds: str = "data set") -> Dataset:
    """The data set of that name, or UsageError with the names there are; it says that none of these
    `kinds` has the name."""
    if name in DATASETS:
        return DATASETS[name]
    close = get_close_matches(name, DATASETS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"available: {', '.join(DATASETS)}"
    raise UsageError(f"no {kinds} named {name!r}", hint=hint)


@dataclass(frozen=True, slots=True)
class CopiedDataSet:
    """A data set on this machine, and the workers that it was copied to just now."""

    name: str
    path: str
    pushed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GetOptions:
    """`mirror`: "" for each data set's own. `cluster`: None for the only one, if there is one.
    `name` and `sha256`: of what a URL names, "" for its own name, and for no check."""

    mirror: str = ""
    cluster: str | None = None
    push: bool = True
    name: str = ""
    sha256: str = ""


def get(
    store: Store, name: str, options: GetOptions, progress: Progress, report: Reporter
) -> CopiedDataSet:
    """Downloads the data set of that name if it is not here, and copies it to the workers.

    Raises:
        UsageError: There is no such data set.
        ProviderError: The mirror fails, or a worker refuses.
        NodeUnreachable, RecordError: About the cluster.
    """
    dataset = find(name)
    if options.push and options.cluster is not None:
        require_ready(choose(store, options.cluster))  # a wrong name is said before the download
    root = store.home.make(locate_copies(store))
    if datasets.is_here(dataset, root):
        report(f"{name} is already on this machine")
    path = datasets.get(dataset, root, options.mirror, progress)
    if not options.push or (options.cluster is None and not store.list_names()):
        if options.push:
            report(f"no cluster yet: `clusterctl data push {name}` copies it later")
        return CopiedDataSet(name, str(path), ())
    target = require_ready(choose(store, options.cluster))
    return CopiedDataSet(name, str(path), copy(store, target, path, name, dataset.mark, report))


def push(
    store: Store, word: str, name: str | None, cluster: str | None, report: Reporter
) -> CopiedDataSet:
    """Copies a data set that is here, or a folder, to the workers. Raises as `get`."""
    target = require_ready(choose(store, cluster))
    if "/" in word or Path(word).is_dir():
        path = Path(word).resolve()
        name = name or path.name
        return CopiedDataSet(name, str(path), copy(store, target, path, name, "", report))
    dataset = find(word, "data set or folder")
    if not datasets.is_here(dataset, locate_copies(store)):
        raise UsageError(f"{word} is not on this machine", hint=f"`data get {word}` downloads it")
    path, name = locate_copies(store) / word, name or word
    return CopiedDataSet(name, str(path), copy(store, target, path, name, dataset.mark, report))


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
    # The nodes of a batch system see the login node's folders.
    nodes = cluster.workers or (cluster.launcher,)
    names = [node.name for node in nodes]
    with open_pool(store, cluster) as pool:
        away = connect_or_report(pool, names, report)
        if away:
            node, why = next(iter(away.items()))
            raise NodeUnreachable(
                f"{node} does not answer: {why}", hint="check with `status --live`"
            )
        roots = {node.name: f"{node.root}/data" for node in nodes}
        marks = {node: shlex.quote(f"{root}/.{name}.complete") for node, root in roots.items()}
        if mark:
            found = pool.run({n: f"cat {path} 2>&1" for n, path in marks.items()}, timeout=30)
            names = [result.node for result in found if result.text.strip() != mark]
        if not names:
            report(f"all workers already have {name}")
            return ()
        report(f"copying {name} to {', '.join(names)}")

        def send(node: str) -> NodeResult:
            transport = pool.find_transport(node)
            # The mark goes first and comes last: what is half there has none.
            begun = transport.run(f"rm -f {marks[node]}", timeout=30)
            if not begun.ok:
                return begun
            target = f"{roots[node]}/{name}"
            copied = put_folder(transport, source, target, timeout=PUSH_TIMEOUT, report=report)
            if not copied.ok or not mark:
                return copied
            return transport.run(f"echo {mark} > {marks[node]}", timeout=30)

        require_copied(pool.call_each(send, names), name)
    return tuple(names)


def require_copied(results: Sequence[NodeResult], name: str) -> None:
    """Raises NodeUnreachable for nodes that were lost on the way, ProviderError for nodes that
    refuse a data set: what to do is different."""
    failed = [result for result in results if not result.ok]
    if not failed:
        return
    what = f"{name} is not on {', '.join(result.node for result in failed)}: {failed[0].why}"
    if all(result.error for result in failed):
        raise NodeUnreachable(
            what, hint="check with `clusterctl status --live`, and repeat the command"
        )
    raise ProviderError(what, hint="check the free space there, and repeat the command")


def write_index(words: Sequence[str]) -> int:
    """Runs `make_dataset_yaml.py` of the bundled programs on this machine; its exit code."""
    program = assets.find_folder("workloads") / "make_dataset_yaml.py"
    return process.run_in_foreground([sys.executable, str(program), *words], cwd=Path.cwd())

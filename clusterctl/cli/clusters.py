"""Verbs that make, take over, leave and remove clusters: up, attach, detach, down."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import time
from collections.abc import Sequence
from typing import Any

import typer

from clusterctl.cli import up_view
from clusterctl.cli.console import Console, ago, format_table, make_plain, pick
from clusterctl.core.model import Cluster
from clusterctl.core.progress import NodePhases
from clusterctl.core.text import count, format_time
from clusterctl.errors import UsageError
from clusterctl.options.kinds import DEFAULT_NAME, join_words
from clusterctl.options.verbs import Attach, Detach, Down, Up

MOST_FILES = 300
"""Files of a folder among which `up` looks for a program."""
_PARALLEL = re.compile(
    rb"init_process_group|DistributedDataParallel|mpi4py|MPI_Init|MASTER_ADDR|['\"](?:LOCAL_)?RANK['\"]"
    rb"|horovod|deepspeed|[Aa]ccelerator\(|Trainer\("
)
_NO_PROGRAM = re.compile(r"test_|.*_test$|setup$|conftest$|__")


def up(given: Up, console: Console, *, then: bool = True) -> None:
    """`then`: say how long each phase took, and what to do next."""
    # Also for our modules: on a busy machine they take seconds to load.
    with console.show_waiting(), up_view.watch(console) as nodes:
        _bring_up(given, console, then, nodes)


def _bring_up(given: Up, console: Console, then: bool, nodes: NodePhases) -> None:
    from clusterctl import process
    from clusterctl.actions import common, up_plan
    from clusterctl.actions import up as actions_up

    store, name = common.open_store(), given.choose_name() or DEFAULT_NAME
    given, spec = up_plan.read_options(store, name, given, console.note)
    if given.dry_run:
        plan = up_plan.plan(store, spec, console.report)
        console.result("\n".join((f"mode: {plan.mode}", *plan.lines)))
        shown = pick(plan, "mode", "lines", "charges", "deadline")
        console.document(dry_run=True, cluster=spec.name, **shown)
        return
    console.after_interrupt = (
        f"what was created is kept: `clusterctl up {spec.name}` continues, "
        f"`clusterctl down {spec.name}` removes it"
    )
    consent = (lambda question: True) if given.yes else console.consent
    try:
        with process.handle_signals():
            made = actions_up.bring_up(store, spec, console.report, consent, nodes=nodes)
    except KeyboardInterrupt:
        if spec.name not in store.list_names():  # nothing was created yet
            console.after_interrupt = ""
        raise
    up_cluster = made.cluster
    if then:
        console.note(format_table([(phase, f"{seconds:.2f} s") for phase, seconds in made.phases]))
    workers = count(len(up_cluster.workers), "worker")
    console.note(
        f"cluster {up_cluster.name} is ready: 1 launcher, {workers}"
        f" ({up_cluster.mode}){describe_end(up_cluster)}"
        + (_suggest_next(up_cluster, store.list_names()) if then else "")
    )
    console.document(
        cluster=up_cluster.name,
        **pick(up_cluster, "id", "phase", "mode", "deadline", "shared"),
        seconds=dict(made.phases),
        nodes=[document_node(node) for node in up_cluster.nodes],
    )


def down(given: Down, console: Console) -> None:
    from clusterctl.actions import common

    with console.show_waiting(moved=common.count_copied):
        _take_down(given, console)


def _take_down(given: Down, console: Console) -> None:
    from clusterctl.actions import common

    store = common.open_store()
    before, wanted = store.list_names(), given.choose_name()
    if wanted is None:
        wanted = common.find_only_name(store) if before else DEFAULT_NAME
    console.after_interrupt = f"`clusterctl down {wanted}` continues"
    gone = remove(given, store, wanted, console)
    if gone is None:
        if wanted in before:
            console.note("aborted; nothing was removed")
            raise typer.Exit(2)
        which = f"named {wanted} " if given.choose_name() else ""
        console.note(
            f"no cluster {which}is on record here; nothing to remove"
            " (`clusterctl gc` looks for what EC2 has without one)"
        )
        console.document(cluster=wanted, existed=False)
        return
    least = "at least " * any(line.dollars is None for line in gone.receipt)
    cost = f"{least}${gone.dollars:.2f}" if gone.receipt else f"$0.00 ({gone.provider})"
    lived = f": {count(gone.nodes, 'node')}, {ago(gone.hours * 3600)}, {cost}" if gone.nodes else ""
    if gone.receipt:
        console.note(format_table(_list_receipt(gone.receipt)))
    console.note(f"cluster {gone.name} was removed{lived}")
    console.document(
        **document_removed(gone),
        existed=True,
        **pick(gone, "dollars", "receipt"),
        hours=round(gone.hours, 4),
    )


def remove(given: Down | Detach, store: Any, name: str, console: Console) -> Any:
    """What `down` and `detach` do. Consent to lose outputs needs a terminal, or an option."""
    from clusterctl import process
    from clusterctl.actions.common import Unfetched
    from clusterctl.actions.down import take_down

    if given.fetch and given.force:
        raise UsageError("--force and --fetch cannot be combined", hint="leave one of them out")
    ask = (lambda question: True) if given.yes or given.force else console.confirm
    unfetched = Unfetched(
        fetch=given.fetch,
        discard=given.discard,
        ask=console.confirm if console.interactive and not given.yes else None,
        end=console.interactive or given.yes,
    )
    verb = "detach" if isinstance(given, Detach) else "down"
    with process.handle_signals():
        gone = take_down(store, name, console.report, ask, unfetched, force=given.force, verb=verb)
    for brought in gone.fetched if gone else ():
        for line in brought.describe():
            console.note(line)
    return gone


def document_removed(gone: Any) -> dict[str, Any]:
    from clusterctl.cli.output import document_fetched

    return {
        "cluster": gone.name,
        **pick(gone, "nodes", "jobs_cancelled"),
        "unfetched": [{"job": job, "bytes": size} for job, size in gone.unfetched],
        "fetched": [document_fetched(brought) for brought in gone.fetched],
        "shared": gone.shared and pick(gone.shared, "folder", "files", "left_out"),
    }


def _suggest_next(cluster: Cluster, names: Sequence[str]) -> str:
    """A program of the current folder, else the bundled one that shows what the cluster is for."""
    argument = f" {cluster.name}" * (len(names) > 1)
    option = f"-c {cluster.name} " if argument else ""
    gpu = any(node.accelerator.value != "none" for node in cluster.workers)
    named = any(group.family not in ("", "cpu") for group in cluster.spec.groups)
    bundled = f"multinode_ddp_mpi{'_gpu' if gpu or named else ''}.py 1000 1000"
    own = find_script(".")
    return (
        f". Next:\n  clusterctl run {option}{shlex.quote(own) if own else bundled}\n"
        f"  clusterctl status{argument}\n  clusterctl down{argument}"
    )


def describe_end(cluster: Cluster) -> str:
    """When the cluster ends, as the end of a line; "" if it does not."""
    if not cluster.deadline:
        return ""
    word = "ends" if cluster.deadline > time.time() else "ended"
    return f", {word} {format_time(cluster.deadline)}"


def find_script(folder: str) -> str:
    """The file there that most looks like a program for several ranks; "" for none."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        files = [entry.name for entry in itertools.islice(entries, MOST_FILES) if entry.is_file()]
        ranked = ((_rate_script(os.path.join(folder, name)), name) for name in sorted(files))
        best, name = max(ranked, default=(0, ""), key=lambda pair: pair[0])
        return name if best else ""
    return ""


def _rate_script(path: str) -> int:
    """How much a file looks like a program to be run on a cluster; 0: not at all."""
    stem, suffix = os.path.splitext(os.path.basename(path))
    if suffix not in (".py", ".c", ".cc", ".cpp") or _NO_PROGRAM.match(stem):
        return 0
    with open(path, "rb") as file:
        text = file.read(1 << 18)
    named = 8 * (stem == "train") + 4 * (stem == "main") + 2 * ("train" in stem)
    starts = suffix == ".py" and b"__main__" in text
    return (named if suffix == ".py" else 0) + 3 * bool(_PARALLEL.search(text)) + starts


def _list_receipt(lines: Any) -> list[list[object]]:
    rows: list[list[object]] = [["part", "item", "count", "hours", "$/h", "$"]]
    for line in lines:
        known = line.hourly is not None
        prices = [f"{line.hourly:.4f}", f"{line.dollars:.4f}"] if known else ["?", "?"]
        rows.append([line.part, line.item, line.count, f"{line.hours:.3f}", *prices])
    return rows


def document_node(node: Any) -> dict[str, Any]:
    """A node for --json."""
    where = pick(node, "name", "role", "address", "private_address", "ssh_port", "user", "root")
    return {**where, **pick(node, "slots", "accelerator"), **pick(node.facts, "mpi", "python")}


# -------------------------------------------------------------------------------------------------
# Machines that exist already.


def attach(given: Attach, console: Console) -> None:
    from clusterctl.actions import attach as actions_attach
    from clusterctl.actions import common

    ways = {"--hosts": given.hosts, **given.logins}
    chosen = [option for option, value in ways.items() if value is not None]
    if len(chosen) != 1:
        raise UsageError(
            f"{' and '.join(chosen)} cannot be combined"
            if chosen
            else f"specify {join_words([*ways], 'or')}",
            hint="clusterctl attach NAME "
            + join_words(["--hosts FILE", *(f"{flag} [LOGIN]" for flag in given.logins)], "or"),
        )
    system = chosen[0].removeprefix("--")
    host = given.logins.get(chosen[0]) or ""
    here = given.hosts is None and not host
    given = given.apply_limits({system, *(["here"] if here else [])}, console.note)
    if given.identity and not given.identity.is_file():
        raise UsageError(
            f"--identity {given.identity}: no such file", hint="give a private key file"
        )

    store = common.open_store()
    wanted = given.choose_name() or DEFAULT_NAME
    if given.hosts is not None:
        made = actions_attach.attach_hosts(store, wanted, given.hosts, given, console.report)
        slots = sum(node.slots for node in made.workers)
        ready = f"{count(len(made.nodes), 'host')}, {count(slots, 'slot')}"
    else:
        made = actions_attach.attach_site(store, wanted, system, host, given, console.report)
        ready = f"{made.mode_reason}, jobs in {made.launcher.root}"
    option = "" if made.name == DEFAULT_NAME else f"-c {made.name} "
    console.note(
        f"cluster {made.name} is ready: {ready}. Next:\n"
        f"  clusterctl run {option}{actions_attach.suggest_run(made)}\n"
        f"  clusterctl status --live {made.name}\n"
        f"  clusterctl detach {made.name}"
    )
    console.document(
        cluster=made.name,
        **pick(made, "id", "phase"),
        provider=made.spec.provider,
        site_info=made.site_info,
        nodes=[make_plain(node) for node in made.nodes],
    )


def detach(given: Detach, console: Console) -> None:
    from clusterctl.actions import common

    store = common.open_store()
    wanted = given.choose_name() or common.find_only_name(store)
    with console.show_waiting(moved=common.count_copied):
        gone = remove(given, store, wanted, console)
    if gone is None:
        console.note("aborted; nothing was removed")
        raise typer.Exit(2)
    console.note(f"cluster {gone.name} was detached after {ago(gone.hours * 3600)}")
    for host in gone.left:
        console.warn(
            f"{host['node']} ({host['address']}) keeps {host['folder']}, and any key of"
            f" clusterctl in ~/.ssh/authorized_keys: {host['why']}"
        )
    console.document(**document_removed(gone), left=gone.left)

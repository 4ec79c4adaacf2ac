"""`launch`: a cluster for one program, from nothing to nothing; after any command, the clusters of
detached launches that have ended."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import typer

from clusterctl.actions import common, jobs, up_plan
from clusterctl.actions import launch as actions_launch
from clusterctl.actions import run as actions_run
from clusterctl.cli import clusters
from clusterctl.cli import run as cli_run
from clusterctl.cli.console import Console
from clusterctl.cli.output import document_fetched
from clusterctl.errors import ClusterctlError, RecordError, UsageError, describe_reason
from clusterctl.options import kinds
from clusterctl.options.kinds import Verb
from clusterctl.options.verbs import Down, Launch, Run, Up, find_limit
from clusterctl.process import Terminated
from clusterctl.project.tree import Stdin
from clusterctl.state import store as state_store
from clusterctl.state.store import Store


def launch(given: Launch, console: Console) -> None:
    running = given.pick_options(Run, yes=given.yes)
    if not (running.command or running.python_module):
        raise UsageError("nothing to run", hint="clusterctl launch SCRIPT [ARGS...]")
    for option, wanted in (("--keep", given.keep), ("--sync", running.sync)):
        if given.detach and wanted:
            raise UsageError(f"{option} cannot be combined with --detach", hint=kinds.ONE_OF_TWO)
    store = common.open_store()
    # A name in the environment or in settings is that of a cluster to be used, not of a new one.
    typed = given.cluster if "cluster" in given.typed else None
    there = store.find(typed) if typed else None
    if there and there.attached:
        _run_there(store, there.name, given, console)
        return
    # Mistakes about the program are found before anything is created.
    resolved = actions_run.resolve_run(running)
    stdin = None if given.dry_run else cli_run.read_input(running)
    actions_run.check_packages(resolved, running.requirements)
    _check(running, given.detach)
    name = typed or _choose_name(store.list_names(), resolved.program.target)
    if name in store.list_names():
        raise RecordError(
            f"cluster {name!r} already exists", hint=f"`clusterctl run -c {name}` uses it"
        )
    new = {"name": name, "cluster": None, "dry_run": given.dry_run}
    creation = given.pick_options(Up, **new, **_choose_idle(given, store, name))
    if given.dry_run:
        clusters.up(creation, console)
        return
    try:
        clusters.up(creation, console, then=False)
        if given.detach:
            state_store.mark_launch(store, name, Path.cwd())
        code = _run(running.pick_options(Run, cluster=name, detach=given.detach), console, stdin)
    except KeyboardInterrupt as stopped:
        if name not in store.list_names():
            raise
        if isinstance(stopped, Terminated):  # nobody is there to ask, and machines stay, as always
            console.after_interrupt = _describe_kept(name)
            raise
        keep = False
        with suppress(KeyboardInterrupt):  # who presses Ctrl-C again does not want to answer
            keep = console.interactive and console.confirm(f"Keep cluster {name}?")
        if keep:
            state_store.unmark_launch(store, name)
            console.after_interrupt = _describe_kept(name)
            raise
        console.report("removing the cluster")
        _remove(name, given, console)
        console.after_interrupt = ""
        raise
    except (ClusterctlError, OSError):  # OSError: nobody reads the output any more, or a full disk
        if name in store.list_names() and not given.keep:
            _remove(name, given, console)
        raise
    if given.detach:
        console.note("\n".join(actions_launch.describe_launch(store, name)))
    elif given.keep:
        console.note(_describe_kept(name))
    else:
        _remove(name, given, console)
    raise typer.Exit(code)


def _check(running: Run, detach: bool) -> None:
    """Raises UsageError for options that no new cluster has; of settings, `run` speaks later."""
    circumstances = {"direct", running.launcher, *(["detach", "detach direct"] if detach else [])}
    circumstances |= {"once"} if running.once else set()
    running.apply_limits(circumstances, lambda note: None, "a new cluster has no batch system")


def _run_there(store: Store, name: str, given: Launch, console: Console) -> None:
    """The program on machines of the user's own, where nothing is created and nothing removed."""
    of_up = [option for option in Launch.of_up if option.key in given.typed]
    if of_up:
        raise UsageError(
            f"{of_up[0].flag} works only for a new cluster: {name!r} is attached",
            hint="leave it out",
        )
    before = {job.id for job in store.list_jobs()}
    here = {"detach": given.detach, "dry_run": given.dry_run, "yes": given.yes}
    running = given.pick_options(Run, cluster=name, **here)
    code = _run(running, console, None)
    if given.detach or given.dry_run:
        return
    made = [job.id for job in store.list_jobs() if job.cluster == name and job.id not in before]
    for number in made[-1:]:  # the last one: a job may have been continued as a new one
        with console.show_waiting(moved=common.count_copied):
            got = jobs.fetch(store, number, name, None, console.report)
        if got.brought.outputs:
            console.note(f"output files of job {number} are in {got.folder}")
        for line in got.describe():
            console.note(line)
        console.document(**document_fetched(got))
        console.raise_first(got.failed)
    raise typer.Exit(code)


def _choose_idle(given: Launch, store: Store, name: str) -> dict[str, Any]:
    """Nobody watches a detached launch: its workers end soon after the program, where they cost
    money."""
    wanted = given.pick_options(Up, name=name, cluster=None)
    if not given.detach or wanted.idle is not None:
        return {}
    where = up_plan.find_circumstances(up_plan.resolve_options(store, name, wanted)[1])
    return {} if find_limit("up", "--idle", where) else {"idle": actions_launch.IDLE}


def _run(given: Run, console: Console, stdin: Stdin | None) -> int:
    try:
        cli_run.run(given, console, stdin=stdin)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def _remove(name: str, given: Launch, console: Console) -> None:
    """With the outputs of the program brought here first."""
    clusters.down(given.pick_options(Down, name=name, cluster=None, fetch=True, yes=True), console)


def _describe_kept(name: str) -> str:
    return f"cluster {name} is kept: `clusterctl down {name}` removes it"


def _choose_name(taken: Collection[str], program: str) -> str:
    """That of the program, with a number if there is such a cluster already."""
    stem = re.sub(r"[^a-z0-9]+", "-", PurePath(program).stem.lower()).strip("-")[:20].strip("-")
    stem = stem if stem[:1].isalpha() else f"job-{stem}".rstrip("-")
    numbered = (f"{stem}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (stem, *numbered) if name not in taken)


# -------------------------------------------------------------------------------------------------
# After a command: what earlier launches have made is brought here, and their clusters go.


def collect(store: Store, names: tuple[str, ...], given: Verb, console: Console) -> None:
    """Never raises: what cannot be brought now stays, and is said. `given`: the command that has
    just answered."""
    console.set(json=False, quiet=console.quiet, verbose=console.verbose)  # the document is out
    for name in names:
        console.after_interrupt = "the next command continues"
        try:
            with console.show_waiting(moved=common.count_copied):
                ended = actions_launch.bring(store, name, console.report)
            if ended:
                # What it has is here by now; of one that ended at its deadline nothing was brought.
                cluster = store.find(name)
                over = bool(cluster and cluster.deadline and cluster.deadline <= time.time())
                new = {"name": name, "cluster": None, "yes": True, "discard": not over}
                clusters.down(given.pick_options(Down, **new), console)
        except ClusterctlError as error:
            console.report(f"cluster {name} was not removed: {describe_reason(error)}")
            if error.hint:
                console.note(f"  → {error.hint}")

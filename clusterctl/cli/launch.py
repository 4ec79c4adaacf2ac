"""`launch`: a cluster for one program, from nothing to nothing."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path, PurePath
from typing import Any

import typer

from clusterctl import actions
from clusterctl.actions import Store, detached_launches, jobs, launch_mark, up_plan
from clusterctl.actions import run as action
from clusterctl.actions import spec as specs
from clusterctl.actions.run import Stdin, Terminated
from clusterctl.cli import clusters, run, standard_input
from clusterctl.cli.console import Console
from clusterctl.cli.job_output import document_fetched, note_fetched
from clusterctl.errors import ClusterctlError, RecordError, UsageError
from clusterctl.options import limits, verbs
from clusterctl.options.clusters import Down, Up
from clusterctl.options.run import Launch, Run


def launch(given: Launch, console: Console) -> None:
    running = given.pick_options(Run)
    words, module = list(running.command), running.python_module
    if not (words or module):
        raise UsageError("nothing to run", hint="clusterctl launch SCRIPT [ARGS...]")
    for option, wanted in (("--keep", given.keep), ("--sync", running.sync)):
        if given.detach and wanted:
            raise UsageError(f"{option} cannot be combined with --detach", hint=limits.ONE_OF_TWO)
    # Mistakes about the program are found before anything is created.
    resolved = action.resolve(
        *(words, module or None, running.stage, running.env_file, running.source),
        *(running.max_stage, running.include),
        once=running.once,
    )
    stdin = standard_input.read(piped=running.stdin and not given.dry_run, limit=running.max_stage)
    action.check_packages(resolved, running.requirements)
    store = actions.open_store()
    # A name in the environment or in settings is that of a cluster to be used, not of a new one.
    typed = given.cluster if "cluster" in given.typed else None
    there = store.find(typed) if typed else None
    if there and there.attached:
        _run_there(store, there.name, given, console, stdin)
        return
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
            launch_mark.mark(store, name, Path.cwd())
        code = _run(running.pick_options(Run, cluster=name, detach=given.detach), console, stdin)
    except KeyboardInterrupt as stopped:
        if name not in store.list_names():
            raise
        if isinstance(stopped, Terminated):  # nobody is there to ask, and machines stay, as always
            console.after_interrupt = _describe_kept(name)
            raise
        if console.interactive and _wants_to_keep(name, console):
            launch_mark.unmark(store, name)
            console.after_interrupt = _describe_kept(name)
            raise
        console.report("Ctrl-C: removing the cluster")
        _remove(name, given, console)
        console.after_interrupt = ""
        raise
    except (ClusterctlError, OSError):  # OSError: nobody reads the output any more, or a full disk
        if name in store.list_names() and not given.keep:
            _remove(name, given, console)
        raise
    if given.detach:
        console.note("\n".join(detached_launches.describe(store, name)))
    elif given.keep:
        console.note(_describe_kept(name))
    else:
        _remove(name, given, console)
    raise typer.Exit(code)


def _wants_to_keep(name: str, console: Console) -> bool:
    """Who presses Ctrl-C again does not want to answer: the cluster goes."""
    try:
        return console.confirm(f"Keep cluster {name}?")
    except KeyboardInterrupt:
        return False


def _check(running: Run, detach: bool) -> None:
    """Raises UsageError for options that no new cluster has; of settings, `run` speaks later."""
    circumstances = {"direct", running.launcher, *(["detach", "detach direct"] if detach else [])}
    circumstances |= {"once"} if running.once else set()
    running.apply_limits(circumstances, lambda note: None, "a new cluster has no batch system")


def _run_there(
    store: Store, name: str, given: Launch, console: Console, stdin: Stdin | None
) -> None:
    """The program on machines of the user's own, where nothing is created and nothing removed."""
    of_up = [option for option in Launch.of_up if option.key in given.typed]
    if of_up:
        raise UsageError(
            f"{of_up[0].flag} works only for a new cluster: {name!r} is attached",
            hint="leave it out",
        )
    before = {job.id for job in store.list_jobs()}
    running = given.pick_options(Run, cluster=name, detach=given.detach, dry_run=given.dry_run)
    code = _run(running, console, stdin)
    if given.detach or given.dry_run:
        return
    made = [job.id for job in store.list_jobs() if job.cluster == name and job.id not in before]
    for number in made[-1:]:  # the last one: a job may have been continued as a new one
        with console.show_waiting(moved=actions.count_copied):
            got = jobs.fetch(store, number, name, None, console.report)
        if got.brought.outputs:
            console.note(f"output files of job {number} are in {got.folder}")
        note_fetched(console, got)
        console.document(document_fetched(got))
        console.raise_first(got.failed)
    raise typer.Exit(code)


def _choose_idle(given: Launch, store: Store, name: str) -> dict[str, Any]:
    """Nobody watches a detached launch: its workers end soon after the program, where they cost
    money."""
    wanted = given.pick_options(Up, name=name, cluster=None)
    if not given.detach or wanted.idle is not None:
        return {}
    spec = up_plan.resolve(store, specs.make_spec(name, wanted))
    where = up_plan.find_circumstances(spec)
    return {} if verbs.find_limit("up", "--idle", where) else {"idle": detached_launches.IDLE}


def _run(given: Run, console: Console, stdin: Stdin | None) -> int:
    try:
        run.run(given, console, stdin=stdin)
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

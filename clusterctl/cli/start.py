"""Verbs that start jobs: run, rerun."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from clusterctl import actions, verbs
from clusterctl.actions import jobs
from clusterctl.actions import run as action
from clusterctl.cli.console import Console, plain
from clusterctl.cli.job_output import announce, finish, reporting
from clusterctl.cli.rank_output import Printer
from clusterctl.cli.variables import environment
from clusterctl.errors import UsageError
from clusterctl.model import Job, JobSpec, Program, ProgramKind

QUEUES = ("--queue", "--qos")
"""What qsub and sbatch mean by -q."""


def run(given: verbs.Run, console: Console) -> None:
    words, detach, cluster = list(given.command), given.detach, given.cluster
    if not (given.python_module or words or given.interactive):
        raise UsageError("nothing to run", hint="clusterctl run SCRIPT [ARGS...]")

    store = actions.open_store()
    if cluster is not None and cluster.isdigit():
        raise UsageError(
            f"-c {cluster}: -c takes the name of a cluster",
            hint=f"Slurm's -c is --cpus-per-task {cluster}",
        )
    chosen = actions.choose(store, cluster)
    doing = {
        "interactive": given.interactive,
        "emit": given.emit,
        "terminal": given.interactive and not given.dry_run,
    }
    ways = [word for word, wanted in doing.items() if wanted]
    circumstances = {chosen.system, *ways, *(f"{word} {chosen.system}" for word in ways)}
    place = f"the provider of cluster {chosen.name!r} is {chosen.spec.provider}"
    given = given.within(circumstances, console.note, place)
    program = Program(kind=ProgramKind.BINARY, target="interactive")
    spec = JobSpec(program=program, native=given.native(), **given.into(JobSpec))
    if given.interactive:
        terminal = action.interactive(store, chosen, spec, words)
        if not given.dry_run:
            raise typer.Exit(terminal.open())
        console.result(terminal.text)
        console.document({"dry_run": True, "folder": str(terminal.folder), "argv": terminal.argv})
        return
    files = given.env_file
    try:
        resolved = action.resolve(
            words, given.python_module or None, given.stage, list(files), list(given.source)
        )
    except UsageError as error:
        queues = [name for name in QUEUES if verbs.limit("run", name, circumstances) is None]
        if queues and given.quiet and words and "no script" in error.message:
            error.hint = f"-q is --quiet; did you mean {queues[0]} {shlex.quote(words[0])}?"
        raise
    variables, secrets = environment(given.variables, files)
    spec = replace(
        spec,
        program=resolved.program,
        env=variables,
        secret_names=tuple(sorted(secrets)),
        env_files=tuple(str(path.absolute()) for path in files),
    )
    emit = given.emit
    dry = given.dry_run or emit != ""
    number = action.next_number(store, dry=True)
    prepared = action.prepare(chosen, spec, resolved, secrets, number=number)
    if not dry:
        number = action.next_number(store, dry=False)
        prepared = action.prepare(chosen, spec, resolved, secrets, number=number)
    if emit:
        script = action.emit(prepared, emit)
        console.result(script, raw=True)
        if copying := action.beside(prepared):
            console.note(f"the script expects the program in its folder: {copying}")
        console.document({"emit": emit, "script": script})
        return
    if given.dry_run:
        _print_plan(console, prepared, detach)
        return
    for note in prepared.plan.notes:
        console.note(note)
    if large := resolved.tree.large_files():
        console.report(f"staging {resolved.tree.describe()}; {large}")
    else:
        console.detail(f"staging {resolved.tree.describe()}")
    with reporting(console, lambda: action.recorded(store, number)), Printer(console) as printer:
        job = action.run(
            store,
            prepared,
            on_start=lambda started: announce(console, started, detach),
            on_output=printer,
            tell=console.report,
            detach=detach,
        )
    if not detach:
        raise typer.Exit(finish(console, job))


def rerun(given: verbs.Rerun, console: Console) -> None:
    store = actions.open_store()
    stored = [Path(name) for name in store.job(given.job).spec.env_files]
    files = [*(path for path in stored if path.is_file()), *given.env_file]
    variables, secrets = environment(given.variables, files)
    kept = dict.fromkeys(str(path.absolute()) for path in (*stored, *given.env_file))
    changed = jobs.Variables(variables, secrets, tuple(kept))
    number = 0

    def on_start(started: Job) -> None:
        nonlocal number
        number = started.id
        announce(console, started, given.detach)

    with reporting(console, lambda: action.recorded(store, number)), Printer(console) as printer:
        ended = jobs.rerun(
            store,
            given.job,
            changed,
            resume=given.resume,
            where=given.cluster,
            on_start=on_start,
            on_output=printer,
            tell=console.report,
            detach=given.detach,
        )
    if not given.detach:
        raise typer.Exit(finish(console, ended))


def _conditions(spec: JobSpec, detach: bool) -> list[str]:
    """What a job is subject to that its command does not show."""
    tries = "1 more time" if spec.retries == 1 else f"{spec.retries} more times"
    rows = (
        (spec.now, "does not wait for other jobs"),
        (spec.timeout, f"ends after {spec.timeout:g} s"),
        (spec.retries, f"starts again after a failure, up to {tries}"),
        (detach, "runs detached: clusterctl returns once the job is submitted"),
    )
    return [text for holds, text in rows if holds]


def _print_plan(console: Console, prepared: Any, detach: bool) -> None:
    job, plan = prepared.job, prepared.plan
    secrets = dict.fromkeys(prepared.secrets, "***")
    conditions, stage = _conditions(job.spec, detach), prepared.tree.describe()
    preview = prepared.preview
    placed = {place.node for place in job.placement}
    lines = [f"# {note}" for note in (*plan.notes, *conditions)]
    lines += [f"# stage: {stage}", ""]
    for title, text in preview.sections:
        lines += [f"# {title}", text]
    lines += ["# every rank"]
    for node, argv in plan.programs.items():
        lines.append(f"{node}: {shlex.join(argv)}" if node in placed else shlex.join(argv))
    lines += ["", "# environment"]
    lines += [f"{name}={value}" for name, value in sorted({**plan.env, **secrets}.items())]
    for node in plan.programs:
        values = plan.node_env[node]
        lines += [f"{node}: {name}={value}" for name, value in sorted(values.items())]
    lines += ["", "# why"]
    lines += [f"{reason.item}: {reason.why}" for reason in plan.reasons]
    console.result("\n".join(lines))
    console.document(
        {
            "dry_run": True,
            "cluster": job.cluster,
            "stage": stage,
            "conditions": conditions,
            "env": {**plan.env, **secrets},
            "programs": plan.programs,
            "reasons": [plain(reason) for reason in plan.reasons],
            **preview.document,
        }
    )

"""Verbs about how long a cluster runs: extend, stop, start."""

from __future__ import annotations

import typer

from clusterctl import actions
from clusterctl.actions import extend as extending
from clusterctl.actions import stop as stopping
from clusterctl.cli import clusters
from clusterctl.cli.console import Console
from clusterctl.errors import UsageError
from clusterctl.formats import format_time
from clusterctl.options.clusters import Extend, Start, Stop, Up


def extend(given: Extend, console: Console) -> None:
    if not given.ttl:
        raise UsageError("extend needs --ttl", hint="clusterctl extend --ttl 4h")
    store = actions.open_store()
    chosen = actions.choose(store, given.choose_name())
    consent = (lambda question: True) if given.yes else console.consent
    with console.show_waiting():
        done = extending.extend(store, chosen.name, given.ttl, console.report, consent)
    console.note(
        f"cluster {done.cluster.name} shuts down at {format_time(done.deadline)};"
        f" cost until then: {'' if done.exact else 'at least '}${done.dollars:.2f}"
    )
    console.document(
        {"cluster": done.cluster.name, "deadline": done.deadline, "dollars": done.dollars}
    )


def stop(given: Stop, console: Console) -> None:
    store = actions.open_store()
    chosen = actions.choose(store, given.choose_name())
    ask = (lambda question: True) if given.yes else console.confirm
    with console.show_waiting():
        done = stopping.stop(store, chosen.name, console.report, ask)
    if done is None:
        console.note("aborted; nothing was stopped")
        raise typer.Exit(2)
    rate = f"{'' if done.exact else 'at least '}${done.hourly:.4f}/h"
    end = f" until {format_time(done.cluster.deadline)}" if done.cluster.deadline else ""
    console.note(
        f"cluster {chosen.name} is stopped; its {done.what} cost"
        f" {rate}{end}. Next:\n"
        f"  clusterctl start {chosen.name}\n  clusterctl down {chosen.name}"
    )
    console.document(
        {
            "cluster": chosen.name,
            "phase": done.cluster.phase,
            "dollars_per_hour": done.hourly,
            "deadline": done.cluster.deadline,
            "jobs_cancelled": list(done.jobs),
        }
    )


def start(given: Start, console: Console) -> None:
    chosen = actions.choose(actions.open_store(), given.choose_name())
    stopping.require_pausing(chosen)
    clusters.up(given.pick_options(Up, name=chosen.name, cluster=None), console)

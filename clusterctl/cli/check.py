"""The verb check: is this machine, or an account on AWS, fit for clusters?"""

from __future__ import annotations

from pathlib import Path

import typer

from clusterctl import actions
from clusterctl.actions import check as action
from clusterctl.actions import real_check
from clusterctl.cli.console import Console, format_table, pick
from clusterctl.model import CloudSpec, Runtime
from clusterctl.options.machine import Check


def check(given: Check, console: Console) -> None:
    given = given.apply_limits({"real"} if given.real else (), console.note)
    if given.real:
        _check_real(given, console)
        return
    with console.show_waiting():
        found = action.check(actions.open_store())
    console.result(format_table((item.level, item.subject, item.text) for item in found))
    for item in found:
        if item.hint and item.level != "ok":
            console.note(f"{item.subject}: {item.hint}")
    console.document(
        {"findings": [pick(item, "level", "subject", "text", "hint") for item in found]}
    )
    if any(item.level == "error" for item in found):
        raise typer.Exit(3)


def _check_real(given: Check, console: Console) -> None:
    console.after_interrupt = "`clusterctl list` shows whether the cluster is still there"
    report = real_check.run(
        actions.open_store(),
        runtime=Runtime(given.runtime) if given.runtime else None,
        cloud=CloudSpec(
            region=given.region,
            vpc=given.vpc,
            subnet=given.subnet,
            tag=given.tag,
            ssh_cidr=given.ssh_cidr,
        ),
        folder=Path.cwd(),
        report=console.report,
        consent=(lambda question: True) if given.yes else console.consent,
    )
    console.result(
        format_table((name, f"{seconds:.1f} s") for name, seconds in report.seconds.items())
        + f"\nEC2 works from here; it cost ${report.dollars:.2f}"
    )
    console.document(pick(report, "path", "seconds", "dollars"))

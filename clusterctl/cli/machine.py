"""Verbs about this machine: check, ssh-config."""

from __future__ import annotations

from pathlib import Path

import typer

from clusterctl import actions
from clusterctl.actions import check as action
from clusterctl.actions import real_check
from clusterctl.actions import ssh_config as plain_ssh
from clusterctl.cli.console import Console, pick, table
from clusterctl.model import Runtime
from clusterctl.options.machine import Check, SshConfig


def check(given: Check, console: Console) -> None:
    given = given.within({"real"} if given.real else (), console.note)
    if given.real:
        _check_real(given, console)
        return
    found = action.check(actions.open_store())
    console.result(table((item.level, item.subject, item.text) for item in found))
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
        region=given.region,
        runtime=Runtime(given.runtime) if given.runtime else None,
        ssh_cidr=given.ssh_cidr,
        folder=Path.cwd(),
        tell=console.report,
        consent=(lambda question: True) if given.yes else console.consent,
    )
    console.result(
        table((name, f"{seconds:.1f} s") for name, seconds in report.seconds.items())
        + f"\nEC2 works from here; it cost ${report.dollars:.2f}"
    )
    console.document(pick(report, "path", "seconds", "dollars"))


def ssh_config(given: SshConfig, console: Console) -> None:
    given = given.within({"print"} if given.show else (), console.note)
    store = actions.open_store()
    config = Path.home() / ".ssh" / "config"
    names = () if given.remove else plain_ssh.refresh(store)
    if given.show:
        console.result(plain_ssh.include(store))
    elif given.remove:
        removed = plain_ssh.uninstall(config)
        console.note(f"{config} {'no longer includes' if removed else 'did not include'} the nodes")
    else:
        added = plain_ssh.install(store, config)
        console.note(f"{config} {'now includes' if added else 'already includes'} the nodes")
        console.result("\n".join(names))
        if not names:
            console.note("no nodes yet; `clusterctl up` creates a cluster")
    console.document({"config": str(config), "hosts": names})

"""Verbs about this machine: check, ssh-config."""

from __future__ import annotations

from pathlib import Path

import typer

from clusterctl import actions, verbs
from clusterctl.actions import check as action
from clusterctl.actions import ssh_config as plain_ssh
from clusterctl.cli.console import Console, pick, table


def check(given: verbs.Check, console: Console) -> None:
    given.within((), console.note)
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


def ssh_config(given: verbs.SshConfig, console: Console) -> None:
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

"""Verbs that reach the nodes: ssh, cp, forward, ssh-config, allow."""

from __future__ import annotations

from pathlib import Path

import typer

from clusterctl.cli.console import Console, pick
from clusterctl.errors import UsageError
from clusterctl.options.clusters import Allow
from clusterctl.options.machine import Cp, Forward, Ssh, SshConfig


def allow(given: Allow, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import allow as action

    store = actions.open_store()
    chosen = actions.choose(store, given.cluster)
    with console.show_waiting():
        allowed = action.allow(store, chosen.name, given.networks, console.report)
    console.note(f"cluster {chosen.name} accepts SSH from {', '.join(allowed)}")
    console.document({"cluster": chosen.name, "networks": list(allowed)})


def ssh(given: Ssh, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import access

    given = given.apply_limits({"json"} if given.json else (), console.note)
    store = actions.open_store()
    chosen = actions.choose(store, given.cluster)
    node, words = given.node or None, list(given.command)
    if not given.json:
        raise typer.Exit(access.open_shell(store, chosen, node, words, console.note))
    if not words:
        raise UsageError("--json needs a command", hint="clusterctl ssh --json NODE -- COMMAND")
    result = access.execute(store, chosen, node, words, given.timeout, console.note)
    console.document(
        {
            **pick(result, "node", "exit_code", "error"),
            "stdout": result.text,
            "stderr": result.stderr.decode(errors="replace"),
        }
    )
    raise typer.Exit(4 if result.exit_code is None else result.exit_code)


def forward(given: Forward, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import access

    store = actions.open_store()
    chosen = actions.choose(store, given.cluster)
    argv, here = access.make_forward_argv(chosen, given.target, given.port)
    console.note(
        f"http://{here} leads to {given.target} of cluster {chosen.name}; press Ctrl-C to stop"
    )
    console.document({"address": here, "target": given.target, "cluster": chosen.name})
    code = access.forward(store, chosen, argv, argv[-1])
    raise typer.Exit(130 if code in (-2, 130, 255) else code)


def cp(given: Cp, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import access

    store = actions.open_store()
    chosen = actions.choose(store, given.cluster)
    with console.show_waiting(moved=actions.count_copied):
        access.copy(store, chosen, given.source, given.target, given.timeout)
    console.document({"source": given.source, "target": given.target})


def ssh_config(given: SshConfig, console: Console) -> None:
    from clusterctl import actions
    from clusterctl.actions import ssh_config as plain_ssh

    given = given.apply_limits({"print"} if given.show else (), console.note)
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

"""Verbs that reach the nodes: ssh, cp, forward, ssh-config, allow."""

from __future__ import annotations

from pathlib import Path

import typer

from clusterctl.actions import access, common
from clusterctl.cli.console import Console, format_table, pick
from clusterctl.core.model import CloudSpec, Runtime
from clusterctl.errors import UsageError
from clusterctl.options.verbs import Allow, Check, Cp, Forward, Init, Ssh, SshConfig


def allow(given: Allow, console: Console) -> None:
    from clusterctl.actions import lifetime

    store, chosen = common.open_cluster(given.cluster)
    with console.show_waiting():
        allowed = lifetime.allow(store, chosen.name, given.networks, console.report)
    console.note(f"cluster {chosen.name} accepts SSH from {', '.join(allowed)}")
    console.document(cluster=chosen.name, networks=list(allowed))


def ssh(given: Ssh, console: Console) -> None:
    given = given.apply_limits({"json"} if given.json else (), console.note)
    store, chosen = common.open_cluster(given.cluster)
    node, words = given.node or None, list(given.command)
    if not given.json:
        raise typer.Exit(access.open_shell(store, chosen, node, words, console.note))
    if not words:
        raise UsageError("--json needs a command", hint="clusterctl ssh --json NODE -- COMMAND")
    result = access.execute(store, chosen, node, words, given.timeout, console.note)
    console.document(
        **pick(result, "node", "exit_code", "error"),
        stdout=result.text,
        stderr=result.stderr.decode(errors="replace"),
    )
    raise typer.Exit(4 if result.exit_code is None else result.exit_code)


def forward(given: Forward, console: Console) -> None:
    store, chosen = common.open_cluster(given.cluster)
    argv, here = access.make_forward_argv(chosen, given.target, given.port)
    console.note(
        f"http://{here} leads to {given.target} of cluster {chosen.name}; press Ctrl-C to stop"
    )
    console.document(address=here, target=given.target, cluster=chosen.name)
    code = access.forward(store, chosen, argv, argv[-1])
    raise typer.Exit(130 if code in (-2, 130, 255) else code)


def cp(given: Cp, console: Console) -> None:
    store, chosen = common.open_cluster(given.cluster)
    with console.show_waiting(moved=common.count_copied):
        access.copy(store, chosen, given.source, given.target, given.timeout)
    console.document(source=given.source, target=given.target)


def ssh_config(given: SshConfig, console: Console) -> None:
    given = given.apply_limits({"print"} if given.show else (), console.note)
    store = common.open_store()
    config = Path.home() / ".ssh" / "config"
    names = () if given.remove else access.refresh(store)
    if given.show:
        console.result(access.include(store))
    elif given.remove:
        removed = access.uninstall(config)
        console.note(f"{config} {'no longer includes' if removed else 'did not include'} the nodes")
    else:
        added = access.install(store, config)
        console.note(f"{config} {'now includes' if added else 'already includes'} the nodes")
        console.result("\n".join(names))
        if not names:
            console.note("no nodes yet; `clusterctl up` creates a cluster")
    console.document(config=str(config), hosts=names)


# -------------------------------------------------------------------------------------------------
# The verb init: a settings file for the project at hand.


def init(given: Init, console: Console) -> None:
    from clusterctl.actions import init as actions_init

    given = given.apply_limits((), console.note)
    if given.only_print:
        text = actions_init.make_text(Path.cwd())
        console.result(text.rstrip(), raw=True)
        console.document(path=None, text=text)
        return
    path = actions_init.write(Path.cwd())
    console.note(f"wrote {path}; remove the # in front of a line to set it")
    console.document(path=path, text=path.read_text(encoding="utf-8"))


# -------------------------------------------------------------------------------------------------
# The verb check: is this machine, or an account on AWS, fit for clusters?


def check(given: Check, console: Console) -> None:
    from clusterctl.actions import check as actions_check

    given = given.apply_limits({"real"} if given.real else (), console.note)
    if given.real:
        console.after_interrupt = "`clusterctl list` shows whether the cluster is still there"
        seconds, dollars = actions_check.run_real_check(
            common.open_store(),
            runtime=Runtime(runtime) if (runtime := given.values["runtime"]) else None,
            cloud=CloudSpec(**given.pick_fields(CloudSpec)),
            report=console.report,
            consent=(lambda question: True) if given.yes else console.consent,
        )
        table = format_table((name, f"{took:.1f} s") for name, took in seconds.items())
        console.result(f"{table}\nEC2 works from here; it cost ${dollars:.2f}")
        console.document(seconds=seconds, dollars=dollars)
        return
    with console.show_waiting():
        found = actions_check.check(common.open_store())
    console.result(format_table((item.level, item.subject, item.text) for item in found))
    for item in found:
        if item.hint and item.level != "ok":
            console.note(f"{item.subject}: {item.hint}")
    console.document(findings=[pick(item, "level", "subject", "text", "hint") for item in found])
    if any(item.level == "error" for item in found):
        raise typer.Exit(3)

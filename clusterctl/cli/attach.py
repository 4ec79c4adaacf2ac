"""Verbs about clusters that exist already: attach, detach."""

from __future__ import annotations

import typer

from clusterctl.actions import attach as actions_attach
from clusterctl.actions import common
from clusterctl.cli.clusters import document_removed, remove
from clusterctl.cli.console import Console, ago, make_plain, pick
from clusterctl.core.text import count
from clusterctl.errors import UsageError
from clusterctl.options.kinds import DEFAULT_NAME
from clusterctl.options.verbs import Attach, Detach


def attach(given: Attach, console: Console) -> None:
    ways = {"--hosts": given.hosts, **given.logins}
    chosen = [option for option, value in ways.items() if value is not None]
    if len(chosen) != 1:
        raise UsageError(
            f"{' and '.join(chosen)} cannot be combined"
            if chosen
            else f"specify {_join_with_or(list(ways))}",
            hint="clusterctl attach NAME "
            + _join_with_or(["--hosts FILE", *(f"{flag} [LOGIN]" for flag in given.logins)]),
        )
    system = chosen[0].removeprefix("--")
    host = given.logins.get(chosen[0]) or ""
    here = given.hosts is None and not host
    given = given.apply_limits({system, *(["here"] if here else [])}, console.note)
    identity, user, workdir = given.identity, given.user, given.workdir
    if identity is not None and not identity.is_file():
        raise UsageError(f"--identity {identity}: no such file", hint="give a private key file")

    store = common.open_store()
    key = str(identity.absolute()) if identity else ""
    wanted = given.choose_name() or DEFAULT_NAME
    login = actions_attach.Login(user=user, identity=key, workdir=workdir)
    if given.hosts is not None:
        made = actions_attach.attach_hosts(
            *(store, wanted, given.hosts, login, given.bootstrap, console.report)
        )
        ready = (
            f"{count(len(made.nodes), 'host')}, {count(sum(n.slots for n in made.workers), 'slot')}"
        )
        size = ""
    else:
        made = actions_attach.attach_site(store, wanted, system, host, login, console.report)
        ready = f"{made.mode_reason}, jobs in {made.launcher.root}"
        size = f"{actions_attach.suggest_size(made)} "
    option = "" if made.name == DEFAULT_NAME else f"-c {made.name} "
    console.note(
        f"cluster {made.name} is ready: {ready}. Next:\n"
        f"  clusterctl run {option}{size}reduce_all.py\n"
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


def _join_with_or(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def detach(given: Detach, console: Console) -> None:
    store = common.open_store()
    wanted = given.choose_name() or common.find_only_name(store)
    with console.show_waiting(moved=common.count_copied):
        gone = remove(given, store, wanted, console)
    if gone is None:
        console.note("aborted; nothing was removed")
        raise typer.Exit(2)
    console.note(f"cluster {gone.name} was detached after {ago(gone.hours * 3600)}")
    console.document(**document_removed(gone))

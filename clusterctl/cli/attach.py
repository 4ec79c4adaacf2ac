"""Verbs about clusters that exist already: attach, detach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from clusterctl.cli.console import Console, ago, plain
from clusterctl.cli.options import (
    DEFAULT_NAME,
    ClusterOption,
    Json,
    NameArgument,
    NewNameArgument,
    Quiet,
    Verbose,
    Yes,
    applicable,
    either,
)
from clusterctl.errors import UsageError


class AttachCommand(TyperCommand):
    """`--slurm` and `--sge` may stand alone: then this machine is the login node."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        for index, word in enumerate(args):
            words.append(word)
            alone = index + 1 == len(args) or args[index + 1].startswith("-")
            if word in ("--slurm", "--sge") and alone:
                words.append("")
        return super().parse_args(ctx, words)


def register(app: typer.Typer) -> None:
    app.command(cls=AttachCommand)(attach)
    app.command()(detach)


def attach(
    context: typer.Context,
    name: NewNameArgument = None,
    cluster: ClusterOption = None,
    hosts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="SSH hosts: HOST [slots=N] ... per line.")
    ] = None,
    slurm: Annotated[
        str | None, typer.Option(metavar="[LOGIN]", help="A site with Slurm (default: here).")
    ] = None,
    sge: Annotated[
        str | None, typer.Option(metavar="[LOGIN]", help="A site with Grid Engine (default: here).")
    ] = None,
    user: Annotated[str, typer.Option(help="Log in under this name.")] = "",
    identity: Annotated[
        Path | None, typer.Option(help="Show this key (default: ssh_config and agent).")
    ] = None,
    workdir: Annotated[
        str,
        typer.Option(help="Our folder there; shared by a site's nodes (default: ~/.clusterctl)."),
    ] = "",
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="With --hosts: install what is missing, by sudo.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Use machines that exist: SSH hosts, or a site with a batch system."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    given = {"--hosts": hosts, "--slurm": slurm, "--sge": sge}
    chosen = [option for option, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise UsageError(
            "attach what?" if not chosen else f"{' and '.join(chosen)} are different clusters",
            hint="clusterctl attach NAME --hosts FILE, --slurm [LOGIN] or --sge [LOGIN]",
        )
    here = hosts is None and not (slurm or sge)
    applicable(context, {chosen[0].removeprefix("--"), *(["here"] if here else [])})
    if identity is not None and not identity.is_file():
        raise UsageError(f"--identity {identity}: there is no such file", hint="name a private key")

    from clusterctl import actions
    from clusterctl.actions import attach as action

    store = actions.open_store()
    key = str(identity.absolute()) if identity else ""
    wanted = either(context, name, cluster) or DEFAULT_NAME
    if hosts is not None:
        machines = action.Machines(
            file=hosts, user=user, identity=key, workdir=workdir, sudo=bootstrap
        )
        made = action.attach_hosts(store, wanted, machines, console.tell)
        ready = f"{len(made.nodes)} hosts, {sum(n.slots for n in made.workers)} slots"
        size = ""
    else:
        system = chosen[0].removeprefix("--")
        host = (slurm if system == "slurm" else sge) or ""
        login = action.Login(system=system, host=host, user=user, identity=key, workdir=workdir)
        made = action.attach_site(store, wanted, login, console.tell)
        ready = f"{made.mode_reason}, jobs in {made.launcher.root}"
        size = {"slurm": "--nodes 2 ", "sge": "-pe NAME 2 "}[system]
    option = "" if made.name == DEFAULT_NAME else f"-c {made.name} "
    console.note(
        f"cluster {made.name} is ready: {ready}. Next:\n"
        f"  clusterctl run {option}{size}reduce_all.py\n"
        f"  clusterctl status --live {made.name}\n"
        f"  clusterctl detach {made.name}"
    )
    console.document(
        {
            "cluster": made.name,
            "id": made.id,
            "phase": made.phase,
            "provider": made.spec.provider,
            "traits": made.traits,
            "nodes": [plain(node) for node in made.nodes],
        }
    )


def detach(
    context: typer.Context,
    name: NameArgument = None,
    cluster: ClusterOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Do not save or ask; leave hosts that do not answer.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Let attached machines go: removes our files and keys, nothing else."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    from clusterctl import actions
    from clusterctl.actions import down as action
    from clusterctl.actions.salvage import Unfetched

    store = actions.open_store()
    wanted = either(context, name, cluster) or actions.only_name(store)
    ask = (lambda question: True) if yes or force else console.confirm
    unfetched = Unfetched(ask=ask)
    gone = action.down(store, wanted, console.tell, ask, unfetched, force=force, verb="detach")
    if gone is None:
        console.note(f"cluster {wanted} stays as it is")
        raise typer.Exit(2)
    console.note(f"cluster {gone.name} is detached after {ago(gone.hours * 3600)}")
    console.document(
        {
            "cluster": gone.name,
            "nodes": gone.nodes,
            "jobs_cancelled": gone.jobs_cancelled,
            "unfetched": [{"job": job, "bytes": size} for job, size in gone.unfetched],
        }
    )

"""Verbs about images: image build."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli.console import Console
from clusterctl.cli.options import ClusterOption, Json, Quiet, Verbose
from clusterctl.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command()(image)


def image(
    what: Annotated[str, typer.Argument(metavar="build", help="What to do.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="launcher, cpu, nvidia or amd.")],
    push: Annotated[
        str, typer.Option("--push", metavar="REPO", help="Push it there, as REPO/NAME.")
    ] = "",
    base: Annotated[
        str, typer.Option("--base", metavar="IMAGE", help="Build on this Debian image.")
    ] = "",
    cluster: ClusterOption = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Build a node image from its recipe, on this machine's engine."""
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    if what != "build":
        raise UsageError(f"image {what!r} is not a thing to do", hint="clusterctl image build NAME")
    from clusterctl.actions import images

    built = images.build(name, push=push, base=base, on_line=console.detail)
    console.result(built.reference)
    done = "built and pushed" if built.pushed else "built"
    console.note(f"{done}: {built.size / 1e6:.0f} MB; use it with --image {built.reference}")
    console.document(
        {
            "reference": built.reference,
            "id": built.id,
            "size": built.size,
            "pushed": built.pushed,
        }
    )

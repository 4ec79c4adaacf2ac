"""Verbs about images: image build, image lock."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli.console import Console
from clusterctl.cli.options import ClusterOption, Json, Quiet, Verbose, applicable
from clusterctl.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command()(image)


def image(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="build|lock", help="What to do.")],
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
    """Build a node image from its recipe, on this machine's engine.

    `lock` fetches what docker/downloads.json has no checksum for, and writes it there.
    """
    console = Console.current().set(json=json, quiet=quiet, verbose=verbose)
    if what not in ("build", "lock"):
        raise UsageError(
            f"image {what!r} is not a thing to do",
            hint="clusterctl image build NAME, or clusterctl image lock NAME",
        )
    applicable(context, {what})
    from clusterctl.actions import images

    if what == "lock":
        found = images.lock(name, on_line=console.detail)
        for wheel, digest in found.items():
            console.result(f"{digest}  {wheel}")
        console.note(
            f"{len(found)} checksums written: what this machine was given, so compare them with a"
            " second source before you trust them"
            if found
            else f"the image {name!r} lacks no checksum"
        )
        console.document({"checksums": found})
        return
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

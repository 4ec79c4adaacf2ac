"""Verbs about images: image build, image lock."""

from __future__ import annotations

import sys

from clusterctl import actions
from clusterctl.actions import images
from clusterctl.cli.console import Console, pick
from clusterctl.formats import format_bytes
from clusterctl.options.data import ImageBuild, ImageLock


def image_build(given: ImageBuild, console: Console) -> None:
    given.apply_limits((), console.note)
    with console.show_waiting(moved=actions.count_moved if sys.stderr.isatty() else None):
        built = images.build(given.name, push=given.push, base=given.base, on_line=console.step)
    console.result(built.reference)
    done = "built and pushed" if built.pushed else "built"
    use = f"--image {built.kind}={built.reference}"
    console.note(f"{done}: {format_bytes(built.size)}; use it with {use}")
    console.document(pick(built, "reference", "id", "size", "pushed"))


def image_lock(given: ImageLock, console: Console) -> None:
    given.apply_limits((), console.note)
    with console.show_waiting(moved=actions.count_moved if sys.stderr.isatty() else None):
        found = images.lock(given.name, on_line=console.step)
    for wheel, digest in found.items():
        console.result(f"{digest}  {wheel}")
    console.note(
        f"{len(found)} checksums written. They are those of the files that this machine received:"
        " compare them with a second source before you trust them"
        if found
        else f"the image {given.name!r} lacks no checksums"
    )
    console.document({"checksums": found})

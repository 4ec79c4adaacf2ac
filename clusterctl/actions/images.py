"""`image build`: a node image from `docker/`, on this machine's engine.

Whatever comes over the network besides the distribution's own packages is fetched here and not in
the build: a mirror, a certificate authority or a wheel of this machine then serves, and none of
them ends up in the image. `docker/downloads.json` lists all of it with checksums.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct

from clusterctl import process
from clusterctl.core import catalog
from clusterctl.core.model import Reporter
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import registry
from clusterctl.machines.docker import containers

_PATIENCE = 3600.0
_INDEX = "--extra-index-url"
_REPOSITORY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*")


class Built(Struct, frozen=True):
    """`--image KIND=REFERENCE` uses it: `kind` is that of the nodes that it is for; "": all."""

    kind: str
    reference: str
    id: str
    size: int
    pushed: bool


def build(name: str, *, push: str = "", base: str = "", on_line: Reporter) -> Built:
    """Builds the image `name`, or the one of the user's own Dockerfile of that path, and pushes it
    to the repository `push`, if given.

    `base`: an image to build on instead of the pinned one. Raises ProviderError where the engine,
    a download or a step fails.
    """
    own: Path | None = Path(name, "Dockerfile") if os.path.isdir(name) else Path(name)
    if name in catalog.RECIPES or not (own and own.is_file()):
        own = None
        _check_known(name)
    elif base:
        raise UsageError(
            "--base works only with a recipe of clusterctl", hint=f"change FROM in {own}"
        )
    if push and not _REPOSITORY.fullmatch(push):
        raise UsageError(
            f"--push {push!r} is not a repository", hint="such as registry.example.com/team"
        )
    kind = "" if own else name
    reference = catalog.name_local_image(_name_own(own) if own else name)
    if push:
        reference = f"{push}/{reference.rpartition('/')[2]}"
    with tempfile.TemporaryDirectory(prefix="clusterctl-image-") as scratch:
        argv = ["docker", "build", "--network=host", "--tag", reference]
        if own:
            containers.require()
            argv += ["--file", str(own.absolute()), str(own.absolute().parent)]
        else:
            argv += _lay_out(name, base, Path(scratch, "context"), on_line)
        _run_watched(argv, Path(scratch), on_line, f"the image {name!r} could not be built")
        if push:
            argv = ["docker", "push", reference]
            _run_watched(argv, Path(scratch), on_line, f"{reference} could not be pushed")
    form = "{{.Id}} {{.Size}}"
    found = process.run(["docker", "image", "inspect", "--format", form, reference], timeout=60)
    if not found.ok:
        raise ProviderError(f"the engine has no image {reference}: {found.why}")
    id, size = found.text.split()
    return Built(kind, reference, id, int(size), bool(push))


def _lay_out(name: str, base: str, context: Path, on_line: Reporter) -> list[str]:
    """The rest of the command line of `docker build` for a recipe, whose files are there then."""
    downloads = registry.read_downloads()
    containers.require()
    given = registry.list_arguments(downloads, base)
    _pull(name, given, on_line)
    prepare(name, downloads, context, on_line)
    words = [word for key, value in given.items() for word in ("--build-arg", f"{key}={value}")]
    return [*words, str(context)]


def _name_own(file: Path) -> str:
    """From `lab/Dockerfile`, `Dockerfile.lab` or `lab.Dockerfile`: `lab`."""
    parts = [part for part in file.name.split(".") if part.lower() != "dockerfile"]
    name = "-".join(parts) or file.absolute().parent.name
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "own"
    return f"own-{name}" if name in catalog.RECIPES else name


def _check_known(name: str) -> None:
    known = catalog.RECIPES
    if name == "amd":
        raise UsageError(
            "there is no recipe for AMD's GPUs: it would need ROCm's libraries and PyTorch compiled"
            f" for {catalog.FAMILIES['g4ad'].arch}, more than 8 hours on a g4ad.xlarge",
            hint=f"`up --gpu g4ad` takes {catalog.CONTAINER_IMAGES['amd'].public}, which has them;"
            " an --image of your own works, too",
        )
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(known)}"
        if "/" in name or "Dockerfile" in name:
            raise UsageError(f"no file {name}", hint="give the path of a Dockerfile, or a recipe")
        raise UsageError(
            f"no recipe for an image named {name!r}", hint=f"{hint}; or the path of a Dockerfile"
        )


def _pull(name: str, given: dict[str, str], on_line: Reporter) -> None:
    """The image that it is built on, before gigabytes of wheels are fetched for nothing.

    Where the pinned one cannot be had, one of the same tag that was put on this engine will do; the
    argument then says so.
    """
    reference = given["BASE"]
    if containers.has_image(reference):
        return
    on_line(f"pulling {reference}")
    what = f"the image {name!r} is built on {reference}, which could not be pulled"
    hint = f"`clusterctl image build {name} --base IMAGE` builds it on another Debian 12"
    try:
        containers.need("pull", "--quiet", reference, what=what, timeout=_PATIENCE, hint=hint)
    except ProviderError:
        here, _, digest = reference.partition("@")
        if not digest or not containers.has_image(here):
            raise
        on_line(f"it could not be pulled; using {here} from this engine")
        given["BASE"] = here


def prepare(name: str, downloads: dict[str, Any], context: Path, on_line: Reporter) -> None:
    """Lays out all that the recipe takes: its files, and the wheels with their checksums. Raises
    ProviderError."""
    for path, text in registry.render_files(name, downloads, here=True).items():
        (context / path).parent.mkdir(parents=True, exist_ok=True)
        (context / path).write_text(text)
    on_line("downloading the wheels")
    argv = make_pip_argv(context / "requirements.txt", context / "wheels", downloads)
    result = process.run(argv, timeout=_PATIENCE)
    if not result.ok:
        # Only PyTorch's own index has builds for processors alone. It is asked where it has to be.
        more = [word for row in [downloads["index"].get(name)] if row for word in (_INDEX, row)]
        result = process.run([*argv, *more], timeout=_PATIENCE)
    if not result.ok:
        raise ProviderError(
            f"the wheels for the image {name!r} could not be fetched: {result.why}",
            hint="check PIP_INDEX_URL and PIP_FIND_LINKS; docker/downloads.json lists the wheels"
            " that have to be there, with their checksums",
        )


def make_pip_argv(requirements: Path, wheels: Path, downloads: dict[str, Any]) -> list[str]:
    """pip's command line: for the Python of the image, whatever runs here."""
    python = downloads["base"]["python"]
    abi = "cp" + python.replace(".", "")
    words = [*("--python-version", python), *("--implementation", "cp")]
    words += [word for name in (abi, "abi3", "none") for word in ("--abi", name)]
    words += [word for name in _list_platforms(downloads) for word in ("--platform", name)]
    return [
        # Isolated: what lies in the current folder would be imported before pip, also as root.
        *(sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input"),
        *("download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"),
        *words,
        *("--dest", str(wheels), "--requirement", str(requirements)),
    ]


def _list_platforms(downloads: dict[str, Any]) -> list[str]:
    """Whatever the C library of the base image runs, newest first: pip takes these names literally,
    and does not know that a younger one includes the older."""
    newest = int(downloads["base"]["glibc"].rpartition(".")[2])
    modern = [f"manylinux_2_{minor}_x86_64" for minor in range(newest, 4, -1)]
    return [*modern, *(f"manylinux{year}_x86_64" for year in ("2014", "2010", "1")), "any"]


def _run_watched(argv: Sequence[str], scratch: Path, on_line: Reporter, failure: str) -> None:
    last: list[str] = []

    def pass_on(data: bytes) -> None:
        text = data.decode(errors="replace").strip()
        if text:
            last.append(text)
            del last[:-3]
            on_line(text)

    result = process.watch(
        argv,
        log=scratch / "log",
        on_line=pass_on,
        on_start=lambda pid: None,
        on_interrupt=lambda: on_line("stopping the engine's work"),
        timeout=_PATIENCE,
        grace=30,
        cwd=scratch,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    if result.exit_code or result.error:
        raise ProviderError(f"{failure}: {result.error or ' · '.join(last)}")

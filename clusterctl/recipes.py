"""The recipes of node images in `docker/`: what each is built from. Texts only.

`downloads.json` there lists all that comes over the network beside the distribution's own signed
packages, with checksums. An image is built on this machine (`image build`) or on the nodes (`up`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterctl import assets, catalog
from clusterctl.errors import ProviderError

Downloads = Mapping[str, Any]
"""What downloads.json holds."""

WHEELS = "python"
"""The stage of every recipe in which the wheels are installed."""


def find_path() -> Path:
    """The file of the list."""
    return assets.find_folder("docker") / "downloads.json"


def read_downloads() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(find_path().read_text())
    return found


def list_names() -> tuple[str, ...]:
    """The images that there is a recipe for."""
    return tuple(catalog.RECIPES)


def list_arguments(name: str, listed: Downloads, base: str = "") -> dict[str, str]:
    """The recipe's build arguments. Device code is built for every family that gets this image."""
    found = {"BASE": base or listed["base"]["image"]}
    if name in listed["toolkit"]:
        found["TOOLKIT"] = listed["toolkit"][name]
    if name in catalog.COMPILED_FOR:
        kind = catalog.COMPILED_FOR[name]
        arches = [
            row.arch.removeprefix("sm_") for row in catalog.FAMILIES.values() if row.image == kind
        ]
        arches += [arch for arch in catalog.MORE_ARCHES.get(kind, ()) if arch not in arches]
        found["ARCHES"] = " ".join(arches)
    return found


def list_bases(name: str, listed: Downloads) -> tuple[str, ...]:
    """The public images that it is built on."""
    given = list_arguments(name, listed)
    return tuple(given[key] for key in ("BASE", "TOOLKIT") if key in given)


def list_requirements(name: str, listed: Downloads) -> str:
    """What pip installs, and nothing else: exact versions with checksums."""
    rows = [row for row in listed["wheels"] if name in row["images"]]
    lines = [f"{row['name']}=={row['version']} --hash=sha256:{row['sha256']}" for row in rows]
    return "\n".join([*lines, ""])


def list_sources(name: str, listed: Downloads) -> dict[str, dict[str, Any]]:
    """The archives to compile, by the names of their files in the context."""
    return {
        f"{row['name']}-{row['version']}.tar.{row['url'].rpartition('.')[2]}": row
        for row in listed["sources"]
        if name in row["images"]
    }


def find_cuda(name: str, listed: Downloads) -> str:
    """The CUDA release of the wheels; "" where there is none."""
    rows = [row for row in listed["wheels"] if name in row["images"]]
    return next((row["version"] for row in rows if row["name"] == "cuda-toolkit"), "")


def check_complete(name: str, listed: Downloads) -> None:
    """Raises ProviderError for what the image takes and has no checksum: it could be anything."""
    rows = [row for kind in ("wheels", "sources") for row in listed[kind]]
    unknown = [
        f"{row['name']} {row['version']}"
        for row in rows
        if name in row["images"] and not row["sha256"]
    ]
    if unknown:
        where = listed["index"].get(name, "PyPI")
        raise ProviderError(
            f"the image {name!r} is not built: docker/downloads.json has no checksum for"
            f" {', '.join(unknown)}",
            hint=f"`clusterctl image lock {name}` downloads the files from {where} and adds"
            " their checksums (docs/images.md); `up` also takes another image: --image"
            f" {name}=IMAGE",
        )


def render_files(name: str, listed: Downloads) -> dict[str, str]:
    """The context of the build, by path, without the wheels and archives themselves. Where it has
    no wheels, the build takes them from the package index: `wheels/index` is one beside PyPI."""
    folder = assets.find_folder("docker")
    paths = [path for path in sorted((folder / "common").iterdir()) if path.is_file()]
    found = {f"common/{path.name}": path.read_text() for path in paths}
    found["Dockerfile"] = (folder / catalog.RECIPES[name] / "Dockerfile").read_text()
    found["requirements.txt"] = list_requirements(name, listed)
    found["wheels/index"] = f"{listed['index'].get(name, '')}\n"
    if archives := list_sources(name, listed):
        lines = [f"{row['sha256']}  {file}\n" for file, row in archives.items()]
        found["sources/SHA256SUMS"] = "".join(lines)
    return found


def make_tag(name: str, listed: Downloads) -> str:
    """What the image is called on the nodes that have built it: another recipe, another name."""
    parts = [*render_files(name, listed).items(), *list_arguments(name, listed).items()]
    digest = hashlib.sha256(json.dumps(sorted(parts)).encode()).hexdigest()[:12]
    return f"clusterctl/{name}:{digest}"

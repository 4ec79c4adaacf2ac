"""Python packages made by tests, and uv that sees no others."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile


def settings(folder: Path) -> dict[str, str]:
    """What uv has to be told to find the wheels in `folder` and nothing else."""
    config = folder / "uv.toml"
    config.write_text(f'no-index = true\nfind-links = ["{folder}"]\n')
    return {"UV_CONFIG_FILE": str(config), "UV_CACHE_DIR": str(folder / "cache")}


def make(
    folder: Path,
    name: str,
    version: str,
    *requires: str,
    script: bool = False,
    files: Mapping[str, str] = {},
) -> None:
    """A package with VERSION in it, other `files`, and a command of its name with `script`."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    main = "" if not script else "def main():\n    print(VERSION)\n"
    files = {
        **files,
        f"{name}/__init__.py": f"VERSION = {version!r}\n{main}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name}-version = {name}:main\n"
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


BACKEND = """\
def build_wheel(out, config_settings=None, metadata_directory=None):
    from wheels import Path, make

    make(Path(out), {name!r}, {version!r})
    return {wheel!r}
"""


def make_sources(folder: Path, name: str, version: str) -> None:
    """A package that has to be built, by what `make` does."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n',
        "backend.py": BACKEND.format(
            name=name, version=version, wheel=f"{name}-{version}-py3-none-any.whl"
        ),
        "wheels.py": Path(__file__).read_text(encoding="utf-8"),
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
    }
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for path, text in texts.items():
            info = tarfile.TarInfo(f"{name}-{version}/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))

"""Python packages made by tests, and uv that sees no others."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile


def settings(folder: Path) -> dict[str, str]:
    """What uv has to be told to find the wheels in `folder` and nothing else."""
    config = folder / "uv.toml"
    config.write_text(f'no-index = true\nfind-links = ["{folder}"]\n')
    return {"UV_CONFIG_FILE": str(config), "UV_CACHE_DIR": str(folder / "cache")}


def make(folder: Path, name: str, version: str, *requires: str, script: bool = False) -> None:
    """A package with VERSION in it, and a command of its name with `script`."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    main = "" if not script else "def main():\n    print(VERSION)\n"
    files = {
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

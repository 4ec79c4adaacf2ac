"""The wheel is all that a person needs: it is built, installed elsewhere, and used from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import clusterctl

pytestmark = [pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ("templates", "workloads", "infra", "docker")


def run(*argv: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, argv)),
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def files(folder: Path) -> set[str]:
    """What git would keep of a folder of the checkout."""
    return {
        str(path.relative_to(folder.parent))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, which is so proven to be complete."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    [path] = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel in it.

    It sees the libraries that are installed here, but through a plain path entry: the .pth file of
    an editable install is read only in site folders, so the checkout is out of its sight.
    """
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    libraries = sysconfig.get_path("purelib")
    python = folder / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    (Path(site.strip()) / "libraries.pth").write_text(libraries + "\n")
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--ignore-installed", wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_holds_the_package_and_its_assets(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = files(ROOT / "clusterctl")
    assets = {f"clusterctl/_assets/{name}" for asset in ASSETS for name in files(ROOT / asset)}
    assert "clusterctl/py.typed" in package
    assert {name for name in names if ".dist-info/" not in name} == package | assets


def test_it_runs_from_any_folder_and_finds_its_assets(installed: Path, tmp_path: Path) -> None:
    assert clusterctl.__version__ in run(installed / "clusterctl", "--version", cwd=tmp_path)
    code = (
        "import json, clusterctl, clusterctl.core.assets as a\n"
        "names = ('templates', 'workloads')\n"
        "print(json.dumps([clusterctl.__file__, *(str(a.find_folder(name)) for name in names)]))"
    )
    paths = json.loads(run(installed / "python", "-c", code, cwd=tmp_path))
    assert all(Path(path).is_relative_to(installed.parent) for path in paths)
    assert all(any(Path(path).rglob("*.*")) for path in paths[1:])

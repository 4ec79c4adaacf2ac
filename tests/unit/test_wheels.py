"""What pip is asked for when the wheels of an image are downloaded."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clusterctl.actions import images
from clusterctl.machines import registry


def test_pip_is_our_own_whatever_lies_in_the_current_folder(tmp_path: Path) -> None:
    """`up --provider docker` downloads as root, in whatever folder it is typed."""
    foreign = tmp_path / "pip"
    foreign.mkdir()
    for name in ("__init__.py", "__main__.py"):
        (foreign / name).write_text("open('ran', 'w')\n")
    argv = images.make_pip_argv(tmp_path / "wanted", tmp_path / "wheels", registry.read_downloads())
    pip = [*argv[: argv.index("download")], "--version"]
    done = subprocess.run(pip, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("pip "), done
    assert not (tmp_path / "ran").exists()

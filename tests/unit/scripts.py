"""What tests of the scripts share that run on nodes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl import assets

WEIRD = ["plain", "two words", "it's", 'a "b" $HOME `id` \\', "-dash", "line\nbreak", "ü; exit 3"]
"""Arguments and names that a shell would read otherwise."""


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def sweep(folder: Path, tag: str, *arguments: str) -> list[str]:
    text = assets.render("job/sweep.sh.j2", id=7, node="worker-1", tag=tag, folder=folder)
    done = subprocess.run(
        ["/bin/sh", "-s", *arguments], input=text, capture_output=True, text=True, timeout=30
    )
    assert done.stderr == ""
    return done.stdout.splitlines()

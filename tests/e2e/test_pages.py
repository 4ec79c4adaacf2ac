"""Pages whose scripts are run as they stand there, and print what stands below them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.cli import ROOT, Cli

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

PROGRAM = """
import os, sys
open("made.txt", "w").write(os.environ["RANK"])
print("epochs", sys.argv[2])
"""


@pytest.mark.parametrize("name", ["local.md", "scripting.md"])
def test_the_page_is_true(name: str, own: Cli) -> None:
    """Each example of a document has keys that are there, and values of the same type."""
    page = (ROOT / "docs" / name).read_text()
    (own.folder / "train.py").write_text(PROGRAM)
    blocks = re.findall(r"```sh\n(.*?)```(?:\n```json\n(.*?)```)?", page, flags=re.S)
    assert blocks
    script = "".join(
        f"{{ {code}\n}} >printed-{number}\n" for number, (code, _) in enumerate(blocks)
    )
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=own.folder,
        env=own.environment({"PATH": f"{Path(own.python).parent}:/usr/sbin:/usr/bin:/sbin:/bin"}),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    for number, (_, example) in enumerate(blocks):
        if example:
            lines = (own.folder / f"printed-{number}").read_text().splitlines()
            compare(json.loads(example), json.loads(lines[-1]))
    suggested = "Next:\n  clusterctl run train.py\n"
    assert suggested in done.stderr or "clusterctl up --quiet" in page, "a program of this folder"
    assert [path.name for path in own.folder.glob("job-1/*/*")] != []
    assert own.clusters() == []


def compare(shown: object, found: object) -> None:
    assert type(shown) is type(found) or {type(shown), type(found)} == {int, float}, (shown, found)
    if isinstance(shown, dict) and isinstance(found, dict):
        for key, value in shown.items():
            assert key in found
            compare(value, found[key])
    elif isinstance(shown, bool) or (isinstance(shown, str) and shown):
        assert shown == found

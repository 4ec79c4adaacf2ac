"""The script that looks at waiting ranks once more, on a node of its own: real processes, and a
py-spy that says whom it was asked about."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.core import assets
from clusterctl.insight import node_views

SPY = '#!/bin/sh\nfor word; do pid=$word; done\necho "looked at $pid"\n'


@pytest.mark.parametrize(
    ("kinds", "looked"),
    [
        (("late",), (0,)),  # a straggler alone on its node: nobody else tells that time passes
        (("sleeps",), ()),  # it hangs: a look would wake it, and count as progress
        (("sleeps", "late"), ()),
    ],
)
def test_which_ranks_are_looked_at_again(
    tmp_path: Path, kinds: tuple[str, ...], looked: tuple[int, ...]
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(SPY)
    spy.chmod(0o700)
    sleepers = [subprocess.Popen(["sleep", "300"]) for _ in kinds]
    try:
        script = assets.render(
            "insight/moves.sh.j2",
            node="worker-1",
            root=str(tmp_path),
            spy=str(spy),
            sudo="",
            ranks=[(p.pid, kind) for p, kind in zip(sleepers, kinds, strict=True)],
            native=False,
            seconds=1,
            limit=60,
        )
        done = subprocess.run(
            ["/bin/sh", "-s"], input=script, capture_output=True, text=True, timeout=120, check=True
        )
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
    found = node_views.read_moves(done.stdout)
    looks = [len(found[p.pid].looks) if p.pid in found else 0 for p in sleepers]
    assert looks == [2 if number in looked else 0 for number in range(len(kinds))]

"""The agent's own files on a node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from clusterctl.core import assets


def test_an_older_agent_stays_as_long_as_a_job_was_started_with_it(tmp_path: Path) -> None:
    digest = assets.pack_agent()[0]
    for name in ("used", "unused", "fresh"):
        (tmp_path / "agent" / name).mkdir(parents=True)
        if name != "fresh":
            os.utime(tmp_path / "agent" / name, (1_000_000_000, 1_000_000_000))
    (tmp_path / "jobs" / "7").mkdir(parents=True)
    (tmp_path / "jobs" / "7" / "agent.sh").write_text(f"exec /bin/sh {tmp_path}/agent/used/run\n")
    subprocess.run(
        ["/bin/sh", "-es"], cwd=tmp_path, input=assets.render_agent().encode(), check=True
    )
    assert {path.name for path in (tmp_path / "agent").iterdir()} == {"used", "fresh", digest}

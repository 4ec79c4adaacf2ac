"""`doctor` finds a planted cause by itself: each of these jobs is broken in its own way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import Cli, wait_for

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

SKIPS = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
print("on", flush=True)
def skips_it():
    time.sleep(300)
if dist.get_rank() == 1:
    skips_it()
dist.all_reduce(tensor)
"""


EATS = """
import os, pathlib, sys
group = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "1":
    (group / "cgroup.procs").write_text("0")
    eaten = bytearray(400_000_000)
import time
time.sleep(20)
"""


def diagnosed(cli: Cli, number: int, kind: str) -> dict[str, Any]:
    """The first finding, as soon as it is of this kind: a job needs its time to hang or fail."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = cli.json("doctor", number)["findings"]
        return bool(found) and found[0]["kind"] == kind

    wait_for(there, 30, lambda: f"doctor to find {kind}: {found}")
    return found[0]


def output_of(cli: Cli, number: int) -> str:
    return cli("logs", number).out


def test_a_rank_that_skips_an_all_reduce(cli: Cli) -> None:
    """It is named with its node and its line, and so are those that wait; nothing stays there."""
    script = cli.script("skips.py", SKIPS)
    line = 1 + script.read_text().splitlines().index("    time.sleep(300)")
    number = cli.detach("skips.py")
    wait_for(lambda: output_of(cli, number).count("on") == 2, 60, "the first all-reduce")
    found = diagnosed(cli, number, "missing")
    assert (found["ranks"], found["nodes"]) == ([1], ["worker-2"])
    assert f"skips_it, skips.py:{line}" in found["text"]
    assert f"all_reduce at skips.py:{line + 3}" in found["text"]
    said = cli("doctor", number).out
    assert f"cause: {found['text']}" in said
    assert "rank 0: all_reduce at skips.py" in said
    roots = [Path(node["root"]) for node in cli.status()["nodes"]]
    assert [str(left) for root in roots for left in root.glob(".doctor*")] == []


@pytest.mark.netns
def test_a_rank_that_the_kernel_has_killed(cli: Cli, need: Any) -> None:
    need("dmesg")
    version_1 = Path("/sys/fs/cgroup/memory")
    tree = version_1 if version_1.is_dir() else version_1.parent
    group = tree / f"doctor-{os.getpid()}"
    group.mkdir()
    try:
        limit = "memory.limit_in_bytes" if version_1.is_dir() else "memory.max"
        (group / limit).write_text("100000000")
        cli.script("eats.py", EATS)
        done = cli("run", "eats.py", group, code=137)
        assert "worker-2 ran out of memory" in done.err
        found = diagnosed(cli, done.job, "memory")
    finally:
        group.rmdir()
    assert found["ranks"] == [1]
    assert "the kernel killed rank 1 on worker-2: out of memory" in found["text"]

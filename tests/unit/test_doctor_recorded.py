"""PyTorch's flight recorder: what a real one writes, as the script on nodes reads it, and what
`doctor` makes of it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core import assets
from clusterctl.core.job import JobState
from clusterctl.insight import node_views
from clusterctl.insight.doctor import causes, findings
from clusterctl.insight.doctor.findings import Finding
from clusterctl.insight.node_views import NodeView
from tests.unit.making import cluster, job, spec

RECORDS = """
import os, sys
os.environ["TORCH_FR_BUFFER_SIZE"] = "200"
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(4))
dist.broadcast(torch.ones(2, 3), 0)
dump = torch._C._distributed_c10d._dump_fr_trace(True, False, False)
open(f"{sys.argv[1]}/trace-0", "wb").write(dump)
dist.destroy_process_group()
"""


def look(root: Path, **words: str) -> NodeView:
    """What the node shows of a job whose folder is there."""
    script = assets.render(
        "insight/look.sh.j2",
        **{"id": 7, "node": "worker-1", "root": str(root), "tag": "lab/7;", "spot": False},
        **{"python_folder": "/nowhere", "kernel": "none", "tail": 100, "peers": []},
        **{"python": sys.executable, "working": "", "recorder": "", **words},
    )
    done = subprocess.run(
        ["/bin/sh", "-s"], input=script, capture_output=True, text=True, timeout=60, check=True
    )
    return node_views.read_look("worker-1", done.stdout)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node's folder with job 7, whose rank 0 began a second ago."""
    out = tmp_path / "jobs/7/out"
    out.mkdir(parents=True)
    (out / "rank-0.pid").write_text("1\n")
    began = (out / "rank-0.pid").stat().st_mtime - 1
    os.utime(out / "rank-0.pid", (began, began))
    return tmp_path


def test_what_pytorch_writes_is_read(root: Path) -> None:
    torch = [sys.executable, "-c", RECORDS, str(root)]
    subprocess.run(torch, check=True, timeout=120, capture_output=True)
    [group] = look(root, recorder=f"{root}/trace-").ranks[0].recorded.values()
    assert group.title == "default_pg"
    told = [(call.number, call.describe()) for call in group.calls]
    assert told == [(n, "all_reduce of [4]") for n in (1, 2, 3)] + [(4, "broadcast of [2, 3]")]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)

    path = ""


def test_a_file_that_is_none_is_left_out(root: Path) -> None:
    """Also one that would run a command when it is read, and one of an earlier job."""
    trace = root / "trace-0"
    Evil.path = str(root / "made")
    for data in (pickle.dumps(Evil()), b"", b"half", pickle.dumps({"entries": 7})):
        trace.write_bytes(data)
        assert look(root, recorder=f"{root}/trace-").ranks[0].recorded == {}
    assert not (root / "made").exists()
    trace.write_bytes(pickle.dumps({"entries": [entry(1)]}))
    assert look(root, recorder=f"{root}/trace-").ranks[0].recorded
    os.utime(trace, (1e9, 1e9))
    assert look(root, recorder=f"{root}/trace-").ranks[0].recorded == {}


def entry(number: int) -> dict[str, Any]:
    call = {
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4]],
        "state": "completed",
        "retired": True,
    }
    return {"process_group": ("0", "default_pg"), "collective_seq_id": number, **call}


Call = tuple[int, str, list[list[int]], bool]


def reduce(number: int, size: int = 4, done: bool = True) -> Call:
    return number, "all_reduce", [[size]], done


def judge(*calls: Sequence[Call], ranks: Sequence[int] = ()) -> list[Finding]:
    """Of one process group, whose ranks have made these calls; all have ended."""
    ended = job(cluster(), spec(ranks=len(calls)), state=JobState.FAILED)
    lines: dict[str, list[str]] = {}
    for rank, made in enumerate(calls):
        members = list(ranks or range(len(calls)))
        group = {"title": "default_pg", "ranks": members, "calls": made}
        told = b64encode(json.dumps({"0": group}).encode()).decode()
        lines.setdefault(ended.find_node(rank), []).extend(
            (f"rank {rank}", f"flight {rank} {told}")
        )
    views = {name: node_views.read_look(name, "\n".join([*lines[name], "done"])) for name in lines}
    found = causes.judge(findings.assemble(ended, views))
    return [finding for finding in found if finding.kind == "recorded"]


def test_the_rank_that_did_not_make_a_call_is_named() -> None:
    waits = reduce(3, done=False)
    [found] = judge([reduce(1), reduce(2), waits], [reduce(1), reduce(2)])
    assert found.text == (
        "rank 1 on worker-2 did not make call 3 of process group default_pg, all_reduce of [4],"
        " in which rank 0 waited"
    )
    assert (found.serious, found.ranks, found.nodes) == (True, (1,), ("worker-2",))
    assert "the last call of rank 1 was all_reduce of [4]" in found.lines[0]


def test_a_rank_that_has_made_no_call_is_named() -> None:
    [found] = judge([reduce(1, done=False)], [])
    assert found.text.startswith("rank 1 on worker-2 did not make call 1")
    assert "it made none" in found.lines[0]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ((2, "broadcast", [[4]], False), "rank 1 made broadcast of [4]"),
        (reduce(2, 5, False), "rank 1 made all_reduce of [5]"),
    ],
)
def test_calls_that_differ_are_told(other: Call, said: str) -> None:
    same = [reduce(1), reduce(2, done=False)]
    [found] = judge(same, [reduce(1), other], same)
    assert "different calls as call 2 of process group default_pg" in found.text
    assert "ranks 0, 2 made all_reduce of [4]" in found.text
    assert said in found.text
    assert found.ranks == (1,)


@pytest.mark.parametrize(
    "calls",
    [
        ([reduce(1), reduce(2)], [reduce(1), reduce(2)]),
        ([reduce(1), reduce(2)], [reduce(1)]),  # nobody waited: written at another moment
        ([(1, "gather", [[4]], False)], [(1, "gather", [[9]], False)]),
        ([reduce(1, done=False)],),
    ],
    ids=["even", "a moment apart", "of any size", "one record"],
)
def test_what_is_no_finding(calls: tuple[list[Call], ...]) -> None:
    assert judge(*calls) == []


def test_ranks_of_other_groups_owe_no_call() -> None:
    assert judge([reduce(1, done=False)], [], ranks=[0]) == []


def test_words_of_the_launcher_that_are_not_text(root: Path) -> None:
    """Open MPI writes a NUL there, and grep takes the file for a binary one."""
    (root / "jobs/7/mpirun.out").write_text("")
    (root / "jobs/7/mpirun.err").write_bytes(b"\xff\0*** MPI_ERR_RANK: invalid rank\n")
    assert "MPI_ERR_RANK" in look(root).launcher_said

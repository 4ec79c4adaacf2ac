"""Views of nodes and stacks of ranks, as `doctor` judges them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence

from msgspec.structs import replace

from clusterctl.core import stacks
from clusterctl.core.job import Job, JobState
from clusterctl.insight import node_views
from clusterctl.insight.doctor import findings as doctor_findings
from clusterctl.insight.doctor.findings import Evidence, Finding
from clusterctl.insight.node_views import NodeView
from tests.unit.making import cluster, job, spec

START = 1_000_000.0
WORK = "/home/ubuntu/.clusterctl/lab-1a2b/jobs/7/work"
C10D = "/opt/py/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def encoded(text: str) -> str:
    return encoded_bytes(text.encode())


def encoded_bytes(data: bytes) -> str:
    return b64encode(data).decode()


def process(rank: int, pid: int, state: str = "S", name: str = "python", parent: int = 1) -> str:
    return f"process {rank} {pid} {parent} {state} {pid} {name}"


def running(number: int = 7, **changes: object) -> Job:
    made = job(cluster(), spec(ranks=2), state=JobState.RUNNING, started=START)
    return replace(made, id=number, **changes)  # type: ignore[arg-type]


def view(name: str, *lines: str, uptime: float = 5000.0, now: float = START + 60) -> NodeView:
    """A node that shows these lines, below what a login shell may print."""
    usual = ("Welcome to lab!", f"uptime {uptime} {now}", "disk 9000000 10000000 /")
    return node_views.read_look(name, "\n".join([*usual, *lines, "processes", "done"]))


def stack(*frames: tuple[str, str, int], folder: str = WORK) -> stacks.Stack:
    thread = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
    dump = [{"pid": 9, "os_thread_id": 9, "frames": thread}]
    found = stacks.parse_stacks(json.dumps(dump), folder)
    assert found
    return found


def reduces(line: int = 12, name: str = "all_reduce") -> stacks.Stack:
    return stack(
        ("pthread_cond_wait", "/usr/lib/libc.so.6", 0),
        ("c10d::Work::wait", "/opt/py/lib/libtorch_cpu.so", 0),
        (name, C10D, 3252),
        ("wrapper", C10D.replace("distributed_c10d", "c10d_logger"), 83),
        ("<module>", f"{WORK}/train.py", line),
    )


def sleeps(line: int = 9) -> stacks.Stack:
    return stack(
        ("clock_nanosleep", "/usr/lib/libc.so.6", 0),
        ("skip", f"{WORK}/train.py", line),
        ("<module>", f"{WORK}/train.py", 11),
    )


def seen(*views: NodeView, made: Job | None = None) -> Evidence:
    return doctor_findings.assemble(made or running(), {item.name: item for item in views})


def two_ranks(first: stacks.Stack, second: stacks.Stack) -> Evidence:
    found = seen(
        view("worker-1", "rank 0", process(0, 100)),
        view("worker-2", "rank 1", process(1, 200), "waits 200 hrtimer_nanosleep"),
    )
    found.ranks[0].stack, found.ranks[1].stack = first, second
    found.ranks[0].usage = found.ranks[1].usage = 0.0
    return found


def kinds(findings: Sequence[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def receives(line: int, name: str = "PMPI_Recv") -> stacks.Stack:
    return stack((name, "/opt/libmpi.so", 0), ("exchange", f"{WORK}/train.py", line))


def meets(*native: str) -> stacks.Stack:
    return stack(
        *((name, "/opt/py/lib/libtorch_cpu.so", 0) for name in native),
        ("c10d::TCPStore::TCPStore", "/opt/py/lib/libtorch_cpu.so", 0),
        ("_create_c10d_store", "/opt/py/site-packages/torch/distributed/rendezvous.py", 199),
        ("init_process_group", C10D, 1892),
        ("<module>", f"{WORK}/train.py", 4),
    )


def failed(code: int, when: float, err: str = "") -> list[str]:
    return [f"exit 1 {code} {when} 1", f"err 1 {encoded(err)}"]

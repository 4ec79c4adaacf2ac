"""`status`: what a person sees of the nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions import status
from clusterctl.actions.common import open_store
from clusterctl.core.job import JobState
from clusterctl.insight import top
from tests.unit.calling import Call
from tests.unit.making import cluster, job
from tests.unit.provided import provide
from tests.unit.scripts import place_agent
from tests.unit.staged import lab
from tests.unit.test_deadlines import Running


def test_gpus_and_jobs_stand_beside_their_nodes(call: Call) -> None:
    plain = cluster()
    first, *others = plain.workers
    gpus = replace(first, facts=replace(first.facts, gpus=("Tesla T4", "Tesla T4")))
    where = replace(plain, nodes=(plain.launcher, gpus, *others))
    open_store().save(where)
    assert "job" not in call("status").out.splitlines()[1].split()
    running = job(where, state=JobState.RUNNING, started=1.0)
    open_store().save_job(running)
    open_store().save_job(replace(running, id=running.id + 1, state=JobState.QUEUED))
    said = call("status")
    head, *rows = said.out.splitlines()[1:]
    assert head.split()[-2:] == ["gpus", "job"]
    of = {row.split()[0]: row for row in rows}
    assert "2 x Tesla T4" in of[first.name]
    assert of[running.placement[0].node].split()[-1] == str(running.id)
    assert of["launcher"].split()[-2:] == ["-", "-"]
    documents = call("status", "--json").document["nodes"]
    assert [node["gpus"] for node in documents][:2] == [[], ["Tesla T4", "Tesla T4"]]


def test_the_shared_folder_is_shown_with_what_ends_it(call: Call) -> None:
    plain = cluster()
    open_store().save(plain)
    assert "shared folder" not in call("status").out
    assert call("status", "--json").document["shared"] == ""
    open_store().save(replace(plain, shared="/shared"))
    assert "shared folder: /shared on all nodes; `down` deletes it" in call("status").out
    assert call("status", "--json").document["shared"] == "/shared"


SMI = """#!/bin/sh
case $1 in
    --query-gpu=*) printf '0, 97, 8192, 16384, GPU-a\\n1, 0, 0, 16384, GPU-b\\n' ;;
    *) printf 'GPU-a, {mine}\\nGPU-b, {other}\\nGPU-b, 1\\n' ;;
esac
"""


def test_what_gpus_do_and_for_which_job(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the tools of the driver on the node, and the environment of the processes it names."""
    made = lab(tmp_path / "nodes")
    launcher, first, second = made.where.nodes
    first = replace(first, facts=replace(first.facts, gpus=("Tesla T4", "Tesla T4")))
    open_store().save(replace(made.where, nodes=(launcher, first, second)))
    provide(monkeypatch, "local", Running())
    place_agent(Path(first.root))
    # On a machine that stands still for seconds.
    monkeypatch.setattr(status, "GPU_ANSWER", 100)
    monkeypatch.setattr(status, "ANSWER", 250.0)
    waits = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with (
        subprocess.Popen(
            *(waits, 0),
            env={"CLUSTERCTL_JOB": f"{made.where.id}/7;"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as mine,
        subprocess.Popen(
            *(waits, 0),
            env={"CLUSTERCTL_JOB": "another-9f9f/3;"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other,
    ):
        for process in (mine, other):
            assert process.stdout
            process.stdout.readline()  # its environment is there
        smi = tmp_path / "bin" / "nvidia-smi"
        smi.write_text(SMI.format(mine=mine.pid, other=other.pid))
        smi.chmod(0o755)
        said = call("status", "--live")
        document = call("status", "--live", "--json").document
    rows = [line.split() for line in said.out.splitlines() if "Tesla" in line and "%" in line]
    assert rows == [
        ["worker-1", "0", "Tesla", "T4", "97%", "8.6", "of", "17.2", "GB", "7"],
        ["worker-1", "1", "Tesla", "T4", "0%", "0.0", "of", "17.2", "GB", "-"],
    ]
    used = {node["name"]: node["gpu_use"] for node in document["nodes"]}
    assert [gpu["jobs"] for gpu in used["worker-1"]] == [[7], []]
    assert used["launcher"] == []


def test_a_gpu_that_does_not_answer_hides_no_other() -> None:
    text = "gpu 0, [N/A], 1, 2, GPU-a\ngpu Unable to determine\napp GPU-z lab/7;\napp GPU-a lab/x;"
    assert top.read_gpus(text, "lab") == (top.GpuLook(0, None, 1 << 20, 2 << 20),)

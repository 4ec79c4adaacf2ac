"""`status`: what a person sees of the nodes."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.actions import open_store
from clusterctl.job_model import JobState
from tests.unit.calling import Call
from tests.unit.making import cluster, job


def test_gpus_and_jobs_stand_beside_their_nodes(call: Call) -> None:
    plain = cluster()
    first, *others = plain.workers
    gpus = replace(first, facts=replace(first.facts, gpus=("Tesla T4", "Tesla T4")))
    where = replace(plain, nodes=(plain.launcher, gpus, *others))
    open_store().save(where)
    assert "job" not in call("status").out.splitlines()[1].split()
    running = job(where, state=JobState.RUNNING, started=1.0)
    open_store().save_job(running)
    said = call("status")
    head, *rows = said.out.splitlines()[1:]
    assert head.split()[-2:] == ["gpus", "job"]
    of = {row.split()[0]: row for row in rows}
    assert "2 x Tesla T4" in of[first.name]
    assert of[running.placement[0].node].split()[-1] == str(running.id)
    assert of["launcher"].split()[-2:] == ["-", "-"]
    documents = call("status", "--json").document["nodes"]
    assert [node["gpus"] for node in documents][:2] == [[], ["Tesla T4", "Tesla T4"]]

"""The script of a batch job, run here: the queue has given it this machine, and an mpirun of ours
says how its ranks ended."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl import assets, launch, schedulers
from clusterctl.model import Job, JobState, RankFailure
from tests.unit.making import job, node, request, spec
from tests.unit.test_batch import batch_job, site

MPIRUN = """\
#!/bin/sh
[ "$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
mkdir -p out
set -- $ENDINGS
for code; do
    : >"out/rank-$((rank)).pid"
    printf '%s %s.5 1\\n' "$code" "$((100 + rank))" >"out/rank-$((rank)).exit"
    rank=$((rank + 1))
done
exit "$CODE"
"""


@pytest.fixture
def ended(tmp_path: Path) -> object:
    """Runs a job whose launcher ends with `code` and its ranks with `endings`; the job then."""

    def run(code: int, *endings: int) -> Job:
        login = node("login", "10.0.0.9", root=str(tmp_path), mpi_prefix=str(tmp_path))
        where = replace(site("sge"), nodes=(replace(site("sge").nodes[0], root=login.root),))
        made = batch_job("sge", native={"pe": f"mpi {len(endings)}"})
        plan = launch.load("batch").plan(
            replace(request(), spec=made.spec, cluster=where, placement=made.placement)
        )
        plan = replace(plan, path=str(tmp_path / "bin"))
        folder = tmp_path / "jobs" / "7"
        folder.mkdir(parents=True)
        for name, text in schedulers.load("sge").script(made, where, plan).items():
            (folder / name).write_text(text)
        values = {"id": 7, "node": "login", "tag": f"{tmp_path}/7;", "folder": folder}
        (folder / "sweep.sh").write_text(assets.render("job/sweep.sh.j2", **values))
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "free-port").write_text("echo 29000\n")
        (tmp_path / "bin" / "mpirun").write_text(MPIRUN)
        (tmp_path / "bin" / "mpirun").chmod(0o755)
        (tmp_path / "hosts").write_text(f"{os.uname().nodename} {len(endings)} all.q x\n")
        subprocess.run(
            ["/bin/sh", folder / "job.sh"],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "PE_HOSTFILE": str(tmp_path / "hosts"),
                "ENDINGS": " ".join(map(str, endings)),
                "CODE": str(code),
            },
            timeout=60,
            check=False,
            capture_output=True,
        )
        text = f"@@job 7 99\n{(folder / 'state').read_text()}"
        return schedulers.load("sge").parse_status(replace(job(what=spec()), scheduler="sge"), text)

    return run


def test_the_rank_that_failed_is_named_and_not_those_that_were_ended(ended: object) -> None:
    assert callable(ended)
    found = ended(1, 143, 3, 143)
    here = os.uname().nodename
    assert found.state is JobState.FAILED
    assert found.failure == RankFailure(rank=1, node=here, exit_code=3)


def test_ranks_that_were_told_to_end_are_not_blamed(ended: object) -> None:
    """As when mpirun loses a node: it ends the ranks that are left, and none of them has failed."""
    assert callable(ended)
    found = ended(205, 143, 143)
    assert (found.state, found.failure) == (JobState.FAILED, None)
    assert found.program_exit_code == 205


def test_a_program_that_ended_itself_by_sigterm_is_named(ended: object) -> None:
    assert callable(ended)
    found = ended(143, 0, 143)
    assert found.failure is not None
    assert found.failure.rank == 1

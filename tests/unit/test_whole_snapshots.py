"""--resume-args: what a supervisor makes of the choice of a snapshot (test_agent_snapshots.py)."""

from __future__ import annotations

import pytest

from clusterctl.core.job import Job, JobState
from tests.unit.supervised import BOTH, Site, site

__all__ = ["site"]

pytestmark = pytest.mark.timeout(60)


def run(
    site: Site, files: str, resume_args: str, *, launcher: str = BOTH, **changes: object
) -> Job:
    """A job whose ranks make `files` in their first attempt, and fail; in the second one each
    prints what it was given."""
    script = f'echo "$1"; [ $CLUSTERCTL_ATTEMPT = 2 ] || {{ {files}; exit 5; }}'
    return site.ended(
        site.submit(1, script, launcher, retries=1, resume_args=resume_args, **changes)
    )


def given(site: Site, worker: str, rank: int) -> str:
    """Its path from the working directory."""
    folder = site.folder(worker, 1)
    last = (folder / f"out/rank-{rank}.out").read_text().splitlines()[-1]
    return last.removeprefix(f"{folder / 'work'}/") if last.startswith("/") else ""


def told(site: Site) -> str:
    return (site.folder("worker-1", 1) / "out/rank-0.err").read_text()


def test_a_snapshot_that_was_cut_short_is_passed_over(site: Site) -> None:
    """As by a kill while it was written: every attempt that begins with it would fail, or worse."""
    job = run(site, "echo it >1.pt; sleep 0.02; printf PK >2.pt", "--resume {snapshot}")
    assert job.state is JobState.SUCCEEDED, site.story(job)
    assert given(site, "worker-1", 0) == given(site, "worker-2", 1) == "1.pt"
    assert "clusterctl: passed over 2.pt: it was cut short" in told(site)


EACH = "mkdir -p ck; save() { echo $1 >ck/step-$1_rank$RANK.pt; sleep 0.02; }; "


def test_ranks_that_write_snapshots_of_their_own_get_them(site: Site) -> None:
    """The newest of which all have one: a rank may have been a step further than the other."""
    files = f"{EACH} save 3; save 6; [ $RANK = 1 ] || save 9"
    job = run(site, files, "--resume {snapshot}")
    assert job.state is JobState.SUCCEEDED, site.story(job)
    assert given(site, "worker-1", 0) == "ck/step-6_rank0.pt"
    assert given(site, "worker-2", 1) == "ck/step-6_rank1.pt"
    assert "passed over ck/step-9_rank0.pt: rank 1 has none like it" in told(site)
    assert not (site.folder("worker-2", 1) / "work/ck/step-6_rank0.pt").exists()


def test_no_rank_starts_with_the_snapshot_of_another(site: Site) -> None:
    """Each continues from its own, or none does."""
    files = f"{EACH} if [ $RANK = 0 ]; then save 6; else save 3; fi"
    job = run(site, files, "--resume {snapshot}")
    assert job.state is JobState.FAILED
    assert "each rank has snapshots of its own, such as ck/step-6_rank0.pt" in site.story(job)
    out = site.folder("worker-2", 1) / "out/rank-1.out"
    assert len(out.read_text().splitlines()) == 1

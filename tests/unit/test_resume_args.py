"""--resume-args: a program that needs an option to go on gets it, on every node with the same
snapshot, and only if there is one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.core.job import JobState
from clusterctl.errors import UsageError
from clusterctl.options.values import are_given, check_resume_args, quote_words
from tests.unit.supervised import BOTH, Site, site
from tests.unit.tables import rows
from tests.unit.test_batch_scripts import Batch, made, slurm, staged, start

__all__ = ["site", "slurm", "start"]

pytestmark = pytest.mark.timeout(60)


def tries(script: str) -> str:
    """What a rank does: it says what it was given, which `sh -c` calls $0, $1 and so on; in its
    first attempt it runs `script`, and fails."""
    shows = 'echo "$0:$*"; [ -z "$1" ] || cat "$1"'
    return f"{shows}; [ $CLUSTERCTL_ATTEMPT = 2 ] || {{ {script}; exit 5; }}"


def said(site: Site, worker: str, rank: int) -> list[str]:
    return (site.folder(worker, 1) / f"out/rank-{rank}.out").read_text().splitlines()


def test_every_rank_is_given_the_newest_snapshot_of_rank_0(site: Site) -> None:
    script = tries(
        "if [ $RANK = 0 ]; then mkdir -p 'my runs'; echo old >'my runs/a.ckpt'; sleep 0.02;"
        " echo new >'my runs/it'\"'\"'s.ckpt'; echo newer >log; fi"
    )
    asked = {"retries": 1, "resume_args": "--resume {snapshot}"}
    job = site.ended(site.submit(1, script, BOTH, **asked))
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2), site.story(job)
    for rank, worker in enumerate(("worker-1", "worker-2")):
        path = site.folder(worker, 1) / "work/my runs/it's.ckpt"
        assert said(site, worker, rank) == ["/bin/sh:", f"--resume:{path}", "new"]
    assert "continuing from" in (site.folder("worker-1", 1) / "out/rank-0.err").read_text()
    assert not (site.folder("worker-2", 1) / "work/my runs/a.ckpt").exists()


def test_without_a_snapshot_nothing_is_added(site: Site) -> None:
    script = tries("echo it >log; : >empty.pt")
    job = site.ended(site.submit(1, script, BOTH, retries=1, resume_args="--resume {snapshot}"))
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2), site.story(job)
    assert said(site, "worker-1", 0) == ["/bin/sh:", "/bin/sh:"]
    told = (site.folder("worker-1", 1) / "out/rank-0.err").read_text()
    why = "there is no whole snapshot among the outputs (*.pt, *.pth, *.ckpt, *.safetensors;"
    assert f"clusterctl: starting without --resume {{snapshot}}: {why} --keep-files" in told


def test_a_folder_comes_with_all_that_is_in_it(site: Site) -> None:
    """What a rank has written there itself stays."""
    script = (
        'cat "$1/all" "$1/own" 2>/dev/null;'
        " [ $CLUSTERCTL_ATTEMPT = 2 ] || { mkdir -p runs/step-2; echo $RANK >runs/step-2/own;"
        " if [ $RANK = 0 ]; then echo all >runs/step-2/all;"
        " printf '\\2\\0\\0\\0\\0\\0\\0\\0{}' >runs/step-2/model.safetensors;"
        " echo it >elsewhere; fi; exit 5; }"
    )
    job = site.ended(
        site.submit(1, script, BOTH, retries=1, keep_files=("runs/*",), resume_args="-c {folder}")
    )
    assert job.state is JobState.SUCCEEDED, site.story(job)
    assert said(site, "worker-1", 0) == ["all", "0"]
    assert said(site, "worker-2", 1) == ["all", "1"]
    assert not (site.folder("worker-2", 1) / "work/elsewhere").exists()


def test_the_third_attempt_begins_with_what_the_second_has_written(site: Site) -> None:
    """Also where the node of another rank has the copy that it got for the second."""
    script = (
        'cat "$1"; [ $RANK = 1 ] || echo $CLUSTERCTL_ATTEMPT >last.ckpt;'
        " [ $CLUSTERCTL_ATTEMPT = 3 ] || exit 5"
    )
    job = site.ended(site.submit(1, script, BOTH, retries=2, resume_args="--resume {snapshot}"))
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 3), site.story(job)
    assert said(site, "worker-2", 1) == ["1", "2"]


def test_ranks_do_not_start_where_one_cannot_get_the_snapshot(site: Site) -> None:
    """They would begin with different ones."""
    full = "import sys; sys.argv[1] != 'receive' or sys.exit('no space left on device')"
    site.alter(full, "worker-2")
    job = site.ended(
        site.submit(1, tries("echo it >a.pt"), BOTH, retries=1, resume_args="--resume {snapshot}")
    )
    assert job.state is JobState.FAILED
    assert len(said(site, "worker-1", 0)) == 1
    assert "the snapshot could not be copied to worker-2" in site.story(job)


def test_a_batch_job_goes_on_from_the_snapshot(start: Callable[..., Batch]) -> None:
    script = tries("[ $RANK = 1 ] || echo it >a.pt; sleep 0.2")
    batch = start(script, retries=1, resume_args="--resume={snapshot} --lr 1")
    found = batch.end()
    assert (found.state, found.attempt) == (JobState.SUCCEEDED, 2)
    for rank in (0, 1):
        lines = (batch.folder / f"out/rank-{rank}.out").read_text().splitlines()
        assert lines[1].partition(":")[0] == f"--resume={batch.folder / 'work/a.pt'}"


def test_a_batch_job_that_resumes_another_has_it_from_its_first_attempt(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    show = ("/bin/sh", "-c", 'echo "$0"')
    where, one, plan = made(tmp_path, show, resume_args="{snapshot}")
    folder = staged(tmp_path, where, replace(one, resumes=True), plan)
    (folder / "work" / "a.pt").write_text("carried over")
    subprocess.run(["sh", folder / "job.sh"], env=slurm, check=True, timeout=60)
    assert (folder / "out" / "rank-1.out").read_text() == f"{folder / 'work' / 'a.pt'}\n"


@rows("text, words", "resume_args.words")
def test_words(text: str, words: list[str]) -> None:
    assert check_resume_args(text, "--resume-args") == text
    script = f'cctl_snapshot="/a b/x.pt"; printf "%s\\n" {quote_words(text)}'
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:-1] == words


@pytest.mark.parametrize("text", ["", "'--resume", "--resume {checkpoint}"])
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--resume-args"):
        check_resume_args(text, "--resume-args")


@rows("given, found", "resume_args.arguments_that_are_given_by_hand_win")
def test_arguments_that_are_given_by_hand_win(given: list[str], found: bool) -> None:
    assert are_given("--resume {snapshot}", given) is found

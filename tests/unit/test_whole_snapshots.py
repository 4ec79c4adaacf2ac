"""--resume-args: which snapshot a program continues from where a kill has cut the newest one short,
and where each rank writes one of its own."""

from __future__ import annotations

import io
import json
import pickle
import shlex
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from clusterctl.core.job import Job, JobState
from tests.unit.supervised import BOTH, Site, site

__all__ = ["site"]

pytestmark = pytest.mark.timeout(60)

DATA = bytes(range(256)) * 400


def make_zip() -> bytes:
    """As torch.save and numpy.savez do."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("data.pkl", DATA)
    return made.getvalue()


def make_safetensors() -> bytes:
    tensors = {
        "__metadata__": {"note": 'not this: "data_offsets":[0,9]'},
        "b": {"dtype": "U8", "shape": [400], "data_offsets": [len(DATA) - 400, len(DATA)]},
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, len(DATA) - 400]},
    }
    header = json.dumps(tensors, separators=(",", ":")).encode()
    return struct.pack("<Q", len(header)) + header + DATA


def make_hdf5(version: int) -> bytes:
    place = {0: 40, 1: 44, 2: 28, 3: 28}[version]
    head = (b"\x89HDF\r\n\x1a\n" + bytes([version])).ljust(place, b"\0")
    return head + struct.pack("<Q", place + 8 + len(DATA)) + DATA


def make_old_torch() -> bytes:
    """With torch's magic number; the tensors follow, as they are in memory."""
    return pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + DATA


FORMATS: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "zip": ("pt", make_zip),
    "npz": ("npz", make_zip),
    "safetensors": ("safetensors", make_safetensors),
    "pickle": ("pkl", lambda: pickle.dumps(DATA)),
    "torch's old format": ("pth", make_old_torch),
    "hdf5 0": ("h5", lambda: make_hdf5(0)),
    "hdf5 1": ("h5", lambda: make_hdf5(1)),
    "hdf5 3": ("h5", lambda: make_hdf5(3)),
    "raw": ("bin", lambda: DATA),
}


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


@pytest.mark.parametrize(("ending", "make"), FORMATS.values(), ids=FORMATS)
def test_a_snapshot_that_was_cut_short_is_passed_over(
    site: Site, tmp_path: Path, ending: str, make: Callable[[], bytes]
) -> None:
    """As by a kill while it was written: every attempt that begins with it would fail, or worse."""
    content = make()
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    whole.write_bytes(content)
    torn.write_bytes(content[: len(content) * 7 // 10])
    copies = "; sleep 0.02; ".join(
        f"cp {shlex.quote(str(source))} {number}.{ending}"
        for number, source in enumerate((whole, whole, torn))
    )
    files = {"keep_files": (f"*.{ending}",)}
    job = run(site, copies, "--resume {snapshot}", **files)
    assert job.state is JobState.SUCCEEDED, site.story(job)
    assert given(site, "worker-1", 0) == given(site, "worker-2", 1) == f"1.{ending}"
    assert f"clusterctl: passed over 2.{ending}: it " in told(site)
    assert "cut short" in told(site)
    assert f"passed over 1.{ending}" not in told(site)


def test_one_that_is_smaller_for_a_reason_of_its_own_is_used(site: Site) -> None:
    """Small texts differ in their lengths, and the parts of one snapshot in their sizes."""
    files = (
        "echo a longer one >1.pt; sleep 0.02; echo short >2.pt; sleep 0.02;"
        " head -c 200000 /dev/zero >m-00001-of-00002.pt; sleep 0.02;"
        " head -c 100000 /dev/zero >m-00002-of-00002.pt"
    )
    assert run(site, files, "--resume {snapshot}").state is JobState.SUCCEEDED
    assert given(site, "worker-1", 0) == "m-00002-of-00002.pt"
    assert "passed over" not in told(site)


def test_without_any_whole_one_the_reason_is_said(site: Site) -> None:
    job = run(site, "printf PK-and-no-more >model.pt", "--resume {snapshot}")
    assert job.state is JobState.SUCCEEDED
    assert given(site, "worker-1", 0) == ""
    assert "clusterctl: passed over model.pt: it was cut short" in told(site)


SAVE = (  # STEP NAMES: a folder with these files
    "save() { mkdir -p out/checkpoint-$1; for f in $2; do echo it >out/checkpoint-$1/$f;"
    " sleep 0.02; done; }; "
)
WHOLE = "model.pt optimizer.pt rng_state_0.pth trainer_state.json"


@pytest.mark.parametrize(
    ("saved", "used", "why"),
    [
        (f"save 3 '{WHOLE}'; save 60 '{WHOLE}'", 60, ""),
        (f"save 3 '{WHOLE}'; save 60 'model.pt optimizer.pt'", 3, "no rng_state_0.pth, unlike"),
        (
            f"save 3 '{WHOLE}'; save 60 '{WHOLE}'; printf PK >out/checkpoint-60/optimizer.pt",
            3,
            "optimizer.pt in it was cut short",
        ),
        (
            "save 3 '__0_0.distcp .metadata'; save 6 '__0_0.distcp __0_1.distcp'",
            3,
            "it has no .metadata",
        ),
        (
            "save 3 'a_0.pt a_1.pt'; save 5 'a_0.pt'; save 6 'a_0.pt'",
            3,
            "it has 1 of the 2 files that ranks have written to out/checkpoint-3",
        ),
        ("save 6 '__0_0.distcp __0_1.distcp'", 0, "it has no .metadata"),
        ("save 6 'training_args.bin model.pt'", 0, "it has no trainer_state.json"),
    ],
    ids=[
        "whole",
        "names",
        "cut",
        "distcp",
        "part of a lost node",
        "first distcp",
        "first of a trainer",
    ],
)
def test_a_folder_that_is_not_complete_is_passed_over(
    site: Site, saved: str, used: int, why: str
) -> None:
    """A program would continue without the state of its optimizer, or not at all."""
    job = run(site, SAVE + saved, "-c {folder}", keep_files=("out/*",))
    assert job.state is JobState.SUCCEEDED, site.story(job)
    wanted = f"out/checkpoint-{used}" if used else ""
    assert given(site, "worker-1", 0) == given(site, "worker-2", 1) == wanted
    assert (f"passed over out/checkpoint-6{'0' if '60' in saved else ''}: " in told(site)) is bool(
        why
    )
    assert why in told(site)


def test_folders_of_fewer_ranks_are_used(site: Site) -> None:
    """Where a job continued with fewer, the folders before that have more files."""
    saved = "save 3 'a_0.pt a_1.pt a_2.pt'; save 5 'a_0.pt a_1.pt'; save 6 'a_0.pt a_1.pt'"
    assert run(site, SAVE + saved, "-c {folder}").state is JobState.SUCCEEDED
    assert given(site, "worker-1", 0) == "out/checkpoint-6"


def test_a_folder_of_many_snapshots_is_used_without_the_last_one(site: Site) -> None:
    files = "mkdir -p run-1 runs; for d in run-1 runs; do echo it >$d/step-1.pt; done; sleep 0.02"
    last = "printf PK >run-1/step-2.pt; echo it >run-1/step-1.pt; printf PK >runs/step-2.pt"
    job = run(site, f"{files}; {last}", "-c {folder}")
    assert job.state is JobState.SUCCEEDED, site.story(job)
    assert given(site, "worker-1", 0) == "run-1"


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


def test_a_torn_snapshot_of_another_rank_counts_as_none(site: Site) -> None:
    files = f"{EACH} save 3; save 6; [ $RANK = 0 ] || printf PK >ck/step-6_rank1.pt"
    assert run(site, files, "--resume {snapshot}").state is JobState.SUCCEEDED
    assert given(site, "worker-1", 0) == "ck/step-3_rank0.pt"
    assert given(site, "worker-2", 1) == "ck/step-3_rank1.pt"


def test_digits_of_ranks_may_be_padded_and_name_folders(site: Site) -> None:
    files = 'mkdir -p "Rank_0$RANK"; echo it >"Rank_0$RANK/last_rank_0$RANK.ckpt"'
    assert run(site, files, "--resume {snapshot}").state is JobState.SUCCEEDED
    assert given(site, "worker-1", 0) == "Rank_00/last_rank_00.ckpt"
    assert given(site, "worker-2", 1) == "Rank_01/last_rank_01.ckpt"


def test_no_rank_starts_with_the_snapshot_of_another(site: Site) -> None:
    """Each continues from its own, or none does."""
    files = f"{EACH} if [ $RANK = 0 ]; then save 6; else save 3; fi"
    job = run(site, files, "--resume {snapshot}")
    assert job.state is JobState.FAILED
    assert "each rank has snapshots of its own, such as ck/step-6_rank0.pt" in site.story(job)
    out = site.folder("worker-2", 1) / "out/rank-1.out"
    assert len(out.read_text().splitlines()) == 1


def test_what_one_rank_writes_for_all_may_bear_its_number(site: Site) -> None:
    files = f"{EACH} [ $RANK = 1 ] || save 3"
    assert run(site, files, "--resume {snapshot}").state is JobState.SUCCEEDED
    assert given(site, "worker-2", 1) == "ck/step-3_rank0.pt"
    assert "only one rank has a snapshot like ck/step-3_rank0.pt" in told(site)

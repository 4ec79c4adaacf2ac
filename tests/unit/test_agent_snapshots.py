"""Which snapshot a job goes on from: what was cut short is passed over."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from clusterctl.agent import resume
from clusterctl.agent.messages import ResumePlan, SnapshotWish
from clusterctl.agent.snapshots import (
    CUT,
    TORCH_OLD,
    UNKNOWN,
    Chooser,
    Snapshot,
    SnapshotChoice,
    judge,
    mark,
    shape,
    sort_snapshots,
)
from tests.unit.tables import rows

DATA = bytes(range(256)) * 400


def make_zip() -> bytes:
    """As torch.save and numpy.savez do."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("data.pkl", DATA)
    return made.getvalue()


WHOLE = "model.pt optimizer.pt rng_state_0.pth trainer_state.json"


def choose(
    work: Path,
    saved: str,
    files: Mapping[str, bytes] | None = None,
    *,
    ranks: int = 2,
    here: int = 1,
    others: Sequence[str] = (),
    folders: bool = False,
    told: bool = True,
) -> SnapshotChoice:
    """`saved`: paths in the order in which they were written, with `it` in each unless `files` has
    more. A path that ends with `!` was cut short."""
    found = []
    for when, word in enumerate(saved.split()):
        path = word.rstrip("!")
        content = (files or {}).get(path, b"PK" if word.endswith("!") else b"it\n")
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(content)
        found = [item for item in found if item[0] != path]
        found.append((path, len(content), when))
    texts = "there is no {whole}snapshot", "no step of all, such as {path}"
    wish = SnapshotWish((), ranks, here, others, ResumePlan(True, told, folders, *texts))
    return Chooser(str(work), sort_snapshots(found), wish).choose()


def save(step: int, names: str) -> str:
    return " ".join(f"out/checkpoint-{step}/{name}" for name in names.split())


def test_one_that_is_smaller_for_a_reason_of_its_own_is_used(tmp_path: Path) -> None:
    """Small texts differ in their lengths, and the parts of one snapshot in their sizes."""
    files = {"1.pt": b"a longer one", "2.pt": b"short"}
    parts = {"m-00001-of-00002.pt": bytes(200000), "m-00002-of-00002.pt": bytes(100000)}
    assert choose(tmp_path, " ".join(files), files) == SnapshotChoice("2.pt")
    assert choose(tmp_path, " ".join(parts), parts) == SnapshotChoice("m-00002-of-00002.pt")


def test_without_any_whole_one_the_reason_is_said(tmp_path: Path) -> None:
    choice = choose(tmp_path, "model.pt!")
    assert (choice.path, choice.refused) == ("", "")
    assert "model.pt" in choice.passed[0]
    assert choice.passed[1] == "there is no whole snapshot"
    assert choose(tmp_path / "other", "").passed == ("there is no snapshot",)


@rows("saved, used, why", "agent_snapshots.a_folder_that_is_not_complete_is_passed_over")
def test_a_folder_that_is_not_complete_is_passed_over(
    tmp_path: Path, saved: list[tuple[int, str]], used: int, why: str
) -> None:
    """A program would continue without the state of its optimizer, or not at all. Where a job went
    on with fewer ranks, the folders before that have more files."""
    choice = choose(tmp_path, " ".join(save(*one) for one in saved), files=None, folders=True)
    assert Path(choice.path or "none").parent == Path(f"out/checkpoint-{used}" if used else ".")
    passed = [line for line in choice.passed if "out/checkpoint-60: " in line]
    assert bool(passed) is bool(why)
    assert why in "".join(passed)


def test_a_folder_counts_as_one_snapshot_where_a_program_is_told_folders(tmp_path: Path) -> None:
    saved = f"{save(3, WHOLE)} {save(60, 'optimizer.pt model.pt')}"
    assert choose(tmp_path, saved).path == "out/checkpoint-60/model.pt"
    assert choose(tmp_path, saved, folders=True).path.startswith("out/checkpoint-3/")
    alone = choose(tmp_path / "one", save(60, WHOLE), folders=True, ranks=1)
    assert alone.path.startswith("out/checkpoint-60/")


def test_a_folder_of_many_snapshots_is_used_without_the_last_one(tmp_path: Path) -> None:
    saved = "run-1/step-1.pt runs/step-1.pt run-1/step-2.pt! run-1/step-1.pt runs/step-2.pt!"
    assert choose(tmp_path, saved, folders=True).path == "run-1/step-1.pt"


def steps(rank: int, *numbers: int) -> str:
    return " ".join(f"ck/step-{number}_rank{rank}.pt" for number in numbers)


@pytest.mark.parametrize(
    ("here", "there", "used", "refused"),
    [
        (steps(0, 3, 6, 9), steps(1, 3, 6), 6, False),
        (f"{steps(0, 3, 6)}", steps(1, 3), 3, False),
        (steps(0, 6), steps(1, 3), 0, True),
    ],
)
def test_ranks_that_write_snapshots_of_their_own_get_the_newest_that_all_have(
    tmp_path: Path, here: str, there: str, used: int, refused: bool
) -> None:
    choice = choose(tmp_path, here, others=there.split())
    assert bool(choice.refused) is refused
    assert choice.locate(0) == (f"ck/step-{used}_rank0.pt" if used else "")
    assert choice.locate(1) == (f"ck/step-{used}_rank1.pt" if used else "")


def test_digits_of_ranks_may_be_padded_and_name_folders(tmp_path: Path) -> None:
    choice = choose(tmp_path, "Rank_00/last_rank_00.ckpt", others=["Rank_01/last_rank_01.ckpt"])
    assert choice.locate(1) == "Rank_01/last_rank_01.ckpt"
    assert mark("rank0/rank1.pt") is None


def test_each_node_tells_which_its_ranks_have(tmp_path: Path) -> None:
    (tmp_path / ".staged").touch()
    names = f"{steps(2, 3)} {steps(3, 3)} {steps(3, 6)}! {steps(4, 3)} other.pt"
    choose(tmp_path / "work", names)
    assert sorted(resume.list_own(str(tmp_path), ["*.pt"], 2, 2)) == [
        (steps(2, 3),),
        (steps(3, 3),),
    ]


HDF5 = b"\x89HDF\r\n\x1a\n"


def write_hdf5(version: int, place: int, end: int, size: int) -> bytes:
    """One that says at that place that it ends there."""
    head = (HDF5 + bytes([version])).ljust(place, b"\xff") + end.to_bytes(8, "little")
    return head.ljust(64, b"\0").ljust(size, b"x")[:size]


def write_tensors(header: object, data: int = 0) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


TENSORS = {"__metadata__": {}, "a": {"data_offsets": [0, 4]}, "b": {"data_offsets": [4, 9]}}


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("x", b"", CUT),
        ("x", b"any", UNKNOWN),
        pytest.param("x", make_zip(), "whole", id="zip"),
        pytest.param("x", make_zip()[:70000], CUT, id="zip that was cut"),
        ("x", b"\x80\x04 text .", UNKNOWN),
        ("x", b"\x80\x02 text", CUT),
        ("x", b"\x80\x05 text", CUT),
        ("x", b"\x80. text", UNKNOWN),
        ("x", b"\x81\x02 text", UNKNOWN),
        ("x", b"\x02\x02 text", UNKNOWN),
        ("x", b"\x80\x02\x8a\x0a" + TORCH_OLD + b" text", UNKNOWN),
        ("x", b"\x80\x02 " + bytes(60) + TORCH_OLD + b" text", CUT),
        ("x", write_hdf5(0, 40, 100, 100), UNKNOWN),
        ("x", write_hdf5(0, 40, 100, 99), CUT),
        ("x", write_hdf5(1, 44, 100, 100), UNKNOWN),
        ("x", write_hdf5(1, 44, 100, 99), CUT),
        ("x", write_hdf5(2, 28, 100, 100), UNKNOWN),
        ("x", write_hdf5(3, 28, 100, 99), CUT),
        ("x", HDF5, CUT),
        ("x", HDF5 + b"\0", CUT),
        ("x", write_hdf5(2, 28, 10, 35), CUT),
        ("x.safetensors", write_tensors(TENSORS, 9), "whole"),
        ("x.safetensors", write_tensors(TENSORS, 8), CUT),
        ("x.safetensors", write_tensors(TENSORS, 10), CUT),
        ("x.safetensors", write_tensors({}), "whole"),
        ("x.safetensors", b"\1", CUT),
        ("x.safetensors", b"\5", CUT),
        ("x.safetensors", write_tensors([1]), CUT),
        ("x.bin", write_tensors(TENSORS, 8), UNKNOWN),
    ],
)
def test_a_format_shows_whether_it_was_written_to_its_end(
    tmp_path: Path, name: str, content: bytes, kind: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert judge(str(tmp_path / name)) == kind


@rows("path, blank", "agent_snapshots.numbers_of_ranks_and_parts_belong_to_a_name")
def test_numbers_of_ranks_and_parts_belong_to_a_name(path: str, blank: str) -> None:
    assert shape(path) == blank


@rows("path, third", "agent_snapshots.a_rank_finds_its_own_by_the_name_of_another_one")
def test_a_rank_finds_its_own_by_the_name_of_another_one(path: str, third: str) -> None:
    found = mark(path)
    assert found
    assert found.name(3) == third
    assert found.name(found.rank) == path


def test_snapshots_are_sorted_by_their_time() -> None:
    """One whose name has two lines would break the note; usual names come before all others."""
    found = [("b\n.pt", 1, 1), ("1.pt", 5, 2), ("2.pt", 6, 3), ("log.bin", 7, 9)]
    assert sort_snapshots(found) == [
        Snapshot("2.pt", 6, 5),
        Snapshot("1.pt", 5, 0),
        Snapshot("log.bin", 7, 0),
    ]


def test_what_is_said_of_snapshots_that_ranks_have_of_their_own(tmp_path: Path) -> None:
    choice = choose(tmp_path, steps(0, 6), others=steps(1, 3).split())
    assert choice == SnapshotChoice(
        passed=("passed over ck/step-6_rank0.pt: rank 1 has none like it",),
        refused="no step of all, such as ck/step-6_rank0.pt",
    )
    alone = choose(tmp_path, steps(0, 3), others=())
    note = "only one rank has a snapshot like ck/step-3_rank0.pt, so all of them get it"
    assert alone == SnapshotChoice("ck/step-3_rank0.pt", passed=(note,))
    assert alone.locate(1) == "ck/step-3_rank0.pt", "what one writes for all may bear its number"
    assert choose(tmp_path, steps(0, 3), ranks=1) == SnapshotChoice("ck/step-3_rank0.pt")
    untold = choose(tmp_path, steps(0, 6), others=["ck/step-3_rank1.pt"], told=False)
    assert untold == SnapshotChoice("ck/step-6_rank0.pt")
    own = choose(tmp_path, steps(0, 3), others=steps(1, 3).split())
    assert own.path == "ck/step-3_rank0.pt"
    last = choose(tmp_path, f"{steps(0, 3)} {steps(0, 6)}!", others=steps(1, 3, 6).split())
    assert last.passed == ("passed over ck/step-6_rank0.pt: it was cut short",)
    torn = choose(tmp_path, f"{steps(0, 3)} {steps(0, 6)}", others=steps(1, 3, 6).split(), here=2)
    assert torn.passed[0] == "passed over ck/step-6_rank0.pt: rank 1 has none like it"


@rows(
    "earlier, size, used", "agent_snapshots.one_that_is_much_smaller_than_the_one_before_it_was_cut"
)
def test_one_that_is_much_smaller_than_the_one_before_it_was_cut(
    tmp_path: Path, earlier: int, size: int, used: str
) -> None:
    files = {"1.pt": b"x" * earlier, "2.pt": b"x" * size}
    choice = choose(tmp_path, " ".join(files), files)
    assert choice.path == used
    said = f"passed over 2.pt: it has {size} bytes, and the one before it {earlier}, so it was"
    assert choice.passed == (() if used == "2.pt" else (f"{said} probably cut short",))


def test_a_folder_is_judged_by_what_is_in_it(tmp_path: Path) -> None:
    """Some of its files are empty for good, and such as have no number are no snapshots alone."""
    files = {
        **{f"out/c-{step}/{name}": b"it" for step in (3, 60) for name in ("a.pt", "in/b.bin")},
        "out/c-60/empty.bin": b"",
    }
    (tmp_path / "out" / "c-60" / "in").mkdir(parents=True)
    (tmp_path / "out" / "c-60" / "in" / "odd\nname").write_bytes(b"PK")
    given = {name: content for name, content in files.items() if name.endswith(".pt")}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert choose(tmp_path, " ".join(given), given, folders=True).path == "out/c-60/a.pt"
    (tmp_path / "out/c-60/in/b.bin").unlink()
    choice = choose(tmp_path, " ".join(given), given, folders=True)
    assert choice.path == "out/c-3/a.pt"
    assert choice.passed == ("passed over out/c-60: it has no in/b.bin, unlike out/c-3",)
    (tmp_path / "out/c-60/in/b.bin").write_bytes(b"PK")
    choice = choose(tmp_path, " ".join(given), given, folders=True)
    assert choice.passed == ("passed over out/c-60: in/b.bin in it was cut short",)


def test_the_newest_folder_before_it_says_what_is_missing(tmp_path: Path) -> None:
    saved = " ".join([save(1, "a.pt z.pt"), save(2, "a.pt"), save(3, "a.pt")])
    assert choose(tmp_path, saved, folders=True).path == "out/checkpoint-3/a.pt"
    saved = " ".join([save(1, "a.pt"), save(2, "a.pt b.pt"), save(3, "a.pt b.pt!")])
    choice = choose(tmp_path / "cut", saved, folders=True)
    assert choice.path.startswith("out/checkpoint-2/")
    assert choice.passed == ("passed over out/checkpoint-3: b.pt in it was cut short",)

"""Data, shards and snapshots as files and tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workloads.running import WORKLOADS
from trainlib import data, snapshots
from trainlib.errors import UsageError, WorkloadError
from trainlib.rows import Split
from trainlib.snapshots import Snapshot

DIGITS = WORKLOADS / "data" / "digits.csv.gz"


def test_digits_are_split_once_and_for_all() -> None:
    digits = data.load("digits", seed=0)
    assert (len(digits.train), len(digits.test)) == (1438, 359)
    assert digits.train.inputs.shape[1] == 64
    assert sorted(set(digits.test.targets.tolist())) == list(range(10))
    again = data.load("digits", seed=1)
    assert torch.equal(digits.test.inputs, again.test.inputs), "the seed moved the test rows"
    train = {tuple(row) for row in digits.train.inputs.tolist()}
    assert not any(tuple(row) in train for row in digits.test.inputs.tolist())
    # The first five rows of the file are the digits 0 to 4; the fifth is for testing.
    assert digits.train.targets[:4].tolist() == [0, 1, 2, 3]
    assert digits.test.targets[0].item() == 4


def test_digits_must_be_the_shipped_file(tmp_path: Path) -> None:
    damaged = tmp_path / "digits.csv.gz"
    damaged.write_bytes(DIGITS.read_bytes()[:-1])
    with pytest.raises(UsageError, match="checksum"):
        data.load_digits(damaged)
    with pytest.raises(UsageError, match="cannot be read"):
        data.load_digits(tmp_path / "missing.gz")


def test_synthetic_data_follow_the_seed() -> None:
    one, same, other = (data.load("synthetic", seed) for seed in (3, 3, 4))
    assert torch.equal(one.train.inputs, same.train.inputs)
    assert torch.equal(one.train.targets, same.train.targets)
    assert not torch.equal(one.train.targets, other.train.targets)
    assert one.train.targets.var() > 0.1, "nothing to learn"


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shards_are_disjoint_and_equal(world: int) -> None:
    rows = 1438
    shards = [data.shard(rows, rank, world, seed=5, epoch=2) for rank in range(world)]
    assert {len(shard) for shard in shards} == {rows // world}
    together = torch.cat(shards).tolist()
    assert len(set(together)) == len(together) == rows - rows % world
    assert set(together) <= set(range(rows))


def test_shards_change_with_epoch_and_seed_and_nothing_else() -> None:
    first = data.shard(100, 0, 2, seed=0, epoch=0)
    assert torch.equal(first, data.shard(100, 0, 2, seed=0, epoch=0))
    assert not torch.equal(first, data.shard(100, 0, 2, seed=0, epoch=1))
    # A sum of seed and epoch would make the next seed repeat this one, an epoch later.
    assert not torch.equal(data.shard(100, 0, 2, 0, 1), data.shard(100, 0, 2, 1, 0))
    # torch's generator looks at 32 bits of its seed.
    orders = {tuple(data.shard(100, 0, 1, seed, 0).tolist()) for seed in (0, 1, 2, 3, 4, 1 << 30)}
    assert len(orders) == 6
    with pytest.raises(UsageError, match="3 rows"):
        data.shard(3, 0, 4, seed=0, epoch=0)


def test_an_epoch_is_the_whole_shard_with_a_short_last_batch() -> None:
    split = Split(torch.arange(21.0).reshape(21, 1), torch.arange(21))
    batches = list(data.iterate_batches(split, 4, rank=1, world=2, seed=0, epoch=0))
    assert [len(inputs) for inputs, _ in batches] == [4, 4, 2]
    targets = torch.cat([targets for _, targets in batches])
    assert torch.equal(targets, data.shard(21, 1, 2, 0, 0))
    assert all(torch.equal(inputs.view(-1), targets.float()) for inputs, targets in batches)


IDENTITY = {"model": "m", "data set": "digits"}


def snapshot(value: float) -> Snapshot:
    return Snapshot(3, {"w": torch.full((1000,), value)}, {"state": {}}, IDENTITY, {"seed": "0"})


def test_snapshots_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a snapshot; with 'quotes'.pt"
    snapshots.save(path, snapshot(1.5))
    found = snapshots.parse(snapshots.read(path), path, IDENTITY)
    assert (found.epochs, found.setting) == (3, {"seed": "0"})
    assert torch.equal(found.model["w"], torch.full((1000,), 1.5))
    assert os.listdir(tmp_path) == [path.name]
    assert snapshots.read(tmp_path / "missing.pt") == b""


def test_a_failed_save_leaves_the_old_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "snapshot.pt"
    snapshots.save(path, snapshot(1.0))
    before = path.read_bytes()

    def half(content: Any, stream: Any) -> None:
        stream.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(WorkloadError, match="No space left"):
        snapshots.save(path, snapshot(2.0))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["snapshot.pt"]


def test_a_snapshot_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def recorded(name: str) -> Any:
        original = getattr(os, name)

        def call(*arguments: Any) -> Any:
            calls.append(name)
            return original(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, recorded(name))
    snapshots.save(tmp_path / "snapshot.pt", snapshot(1.0))
    assert calls == ["fsync", "replace", "fsync"]


def test_foreign_and_damaged_snapshots_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pt"
    snapshots.save(path, snapshot(1.0))
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"garbage", content[:10]):
        with pytest.raises(UsageError, match="damaged"):
            snapshots.parse(damaged, path, IDENTITY)
    with pytest.raises(UsageError, match="its data set is digits, here it is synthetic"):
        snapshots.parse(content, path, {**IDENTITY, "data set": "synthetic"})
    torch.save(torch.nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(UsageError, match="not a snapshot of this program"):
        snapshots.parse(path.read_bytes(), path, IDENTITY)
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="empty"):
        snapshots.read(path)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("executed",))


def test_a_snapshot_with_a_turned_bit_is_refused(tmp_path: Path) -> None:
    """torch would load other weights without a word."""
    path = tmp_path / "a.pt"
    snapshots.save(path, Snapshot(1, {"w": torch.ones(1000)}, {}, {"model": "m"}, {}))
    content = bytearray(path.read_bytes())
    content[content.index(torch.ones(4).numpy().tobytes()) + 2000] ^= 1
    with pytest.raises(UsageError, match="damaged"):
        snapshots.parse(bytes(content), path, {"model": "m"})


def test_a_snapshot_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pt"
    torch.save({"format": 1, "model": Harmful()}, path)
    with pytest.raises(UsageError, match="damaged"):
        snapshots.parse(path.read_bytes(), path, IDENTITY)
    assert not (tmp_path / "executed").exists()


def test_the_place_of_a_snapshot_is_checked_before_training(tmp_path: Path) -> None:
    snapshots.check_place(tmp_path / "snapshot.pt")
    with pytest.raises(UsageError, match="is a folder"):
        snapshots.check_place(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        snapshots.check_place(tmp_path / "missing" / "snapshot.pt")

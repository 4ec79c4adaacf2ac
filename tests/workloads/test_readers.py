"""Data sets in their real formats: what is read, and what is said about damaged files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tests.unit.tables import read_rows, rows
from tests.workloads import making
from tests.workloads.running import Programs
from trainlib import augment, data, folders, images, models, readers
from trainlib.errors import UsageError, WorkloadError


@pytest.mark.parametrize("packed", [True, False])
def test_mnist(tmp_path: Path, packed: bool) -> None:
    making.mnist(tmp_path, 30, 20, packed=packed)
    expected, labels = making.pictures(30, 28, 28)
    found, found_labels = readers.read_mnist(tmp_path, "train")
    assert found.shape == (30, 1, 28, 28)
    assert torch.equal(found[:, 0], torch.from_numpy(expected))
    assert torch.equal(found_labels, torch.from_numpy(labels))
    dataset = data.load("mnist", 0, folder=tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.image) == (30, 20, (1, 28, 28))
    inputs, targets = next(dataset.train.select(torch.tensor([3, 1]), 2))
    assert targets.tolist() == [3, 1]
    scaled = (torch.from_numpy(expected[[3, 1]]).float() / 255 - 0.1307) / 0.3081
    assert torch.allclose(inputs[:, 0], scaled, atol=1e-5)


IMAGES = "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        pytest.param(lambda b: b[: len(b) // 2], "damaged or cut off", id="half of the gz"),
        pytest.param(
            lambda b: gzip.compress(gzip.decompress(b)[:-7]), "cut off: 30 x 28 x 28", id="short"
        ),
        pytest.param(
            lambda b: gzip.compress(b"\0\0\x0d\3" + gzip.decompress(b)[4:]),
            "begins with 00 00 0d 03",
            id="floats",
        ),
        pytest.param(lambda b: b"<html>not found</html>", "begins with 3c 68 74 6d", id="a page"),
        pytest.param(lambda b: b"", "begins with nothing", id="empty"),
        pytest.param(
            lambda b: gzip.compress(making.idx(making.pictures(29, 28, 28)[0])),
            "29 train images and 30 labels",
            id="too few",
        ),
        pytest.param(
            lambda b: gzip.compress(making.idx(making.pictures(0, 28, 28)[0])),
            "0 train images and 30 labels",
            id="none",
        ),
        pytest.param(None, "is missing", id="missing"),
    ],
)
def test_a_damaged_mnist_file_gives_one_clear_line(tmp_path: Path, damage, says: str) -> None:  # type: ignore[no-untyped-def]
    path = making.mnist(tmp_path, 30, 20) / IMAGES
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UsageError, match=says) as caught:
        data.load("mnist", 0, folder=tmp_path)
    assert "clusterctl data get mnist" in caught.value.line
    assert "\n" not in caught.value.line


@pytest.mark.parametrize(
    ("labels", "says"), [(np.full(30, 26), "holds the label 26"), (np.zeros(0), "has no train")]
)
def test_letters_under_mnists_names_are_refused(tmp_path: Path, labels: Any, says: str) -> None:
    making.mnist(tmp_path, len(labels), 20)
    content = gzip.compress(making.idx(labels.astype(np.uint8)))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(UsageError, match=says):
        data.load("mnist", 0, folder=tmp_path)


def test_cifar10(tmp_path: Path) -> None:
    making.cifar10(tmp_path)
    dataset = data.load("cifar10", 0, folder=tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.image) == (50, 10, (3, 32, 32))
    expected, labels = making.pictures(10, 3, 32, 32, seed=1)
    found, found_labels = readers.read_cifar10(tmp_path, "train")
    assert torch.equal(found[10:20], torch.from_numpy(expected)), "the second file is out of order"
    assert torch.equal(found_labels[10:20], torch.from_numpy(labels))
    path = tmp_path / "data_batch_2.bin"
    content = path.read_bytes()
    for damaged, says in (
        (content[:-1], "cut off"),
        (b"", "cut off"),
        (b"\x0a" + content[1:], "label 10"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=says):
            readers.read_cifar10(tmp_path, "train")
    path.unlink()
    with pytest.raises(UsageError, match=r"data_batch_2\.bin is missing.*data get cifar10"):
        readers.read_cifar10(tmp_path, "train")


def test_programs_look_in_the_nodes_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(readers.VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"CLUSTERCTL_DATA is not set.*data get mnist"):
        data.load("mnist", 0)
    monkeypatch.setenv(readers.VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match=r"mnist is missing.*data get mnist"):
        data.load("mnist", 0)
    making.mnist(tmp_path / "mnist")
    assert len(data.load("mnist", 0).train) == 200
    assert len(data.load("mnist", 0, folder=Path("mnist")).train) == 200, "as `data push` names it"
    with pytest.raises(UsageError, match="--data is not for digits"):
        data.load("digits", 0, folder=tmp_path)


def test_image_folders(tmp_path: Path) -> None:
    making.image_folders(tmp_path)
    dataset = data.load("imagefolder", 0, folder=tmp_path, image_size=16)
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (24, 9, 3)
    rows = torch.tensor([0, 23, 8])
    first, *_ = batches = list(dataset.train.select(rows, 2))
    assert [tuple(inputs.shape) for inputs, _ in batches] == [(2, 3, 16, 16), (1, 3, 16, 16)]
    assert torch.cat([targets for _, targets in batches]).tolist() == [0, 2, 1]
    assert first[0][0, 0].mean() > first[0][0, 1].mean(), "the first class is red"
    with pytest.raises(UsageError, match="cannot be read"):
        images.read_folder(tmp_path / "train", 16)
    (tmp_path / "val" / "zebra").rename(tmp_path / "val" / "zebr")
    with pytest.raises(UsageError, match="different classes: zebr, zebra"):
        images.read_folder(tmp_path, 16)
    path = tmp_path / "train" / "no" / "00.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(WorkloadError, match=r"00\.png cannot be read"):
        list(dataset.train.select(rows, 4))


def test_an_image_is_cut_to_its_middle(tmp_path: Path) -> None:
    making.image_folders(tmp_path, size=24)  # 24 x 31 pixels
    path = tmp_path / "train" / "no" / "00.png"
    whole = images.read(path, 24)
    assert whole.shape == (3, 24, 24)
    pixels = torch.from_numpy(making.np.array(making.Image.open(path))).permute(2, 0, 1)
    assert torch.equal(whole, pixels[:, :, 4:28]) or torch.equal(whole, pixels[:, :, 3:27])


def test_augmentation_follows_its_seeds_and_keeps_the_range(tmp_path: Path) -> None:
    batch = torch.rand(3, 3, 16, 16)

    def changed(seed: int) -> torch.Tensor:
        drawn = [torch.Generator().manual_seed(seed + n) for n in range(3)]
        return torch.stack(
            [augment.augment_image(*pair) for pair in zip(batch, drawn, strict=True)]
        )

    one = changed(0)
    assert one.shape == batch.shape
    assert torch.equal(one, changed(0))
    assert not torch.equal(one, changed(5))
    assert 0 <= one.min() <= one.max() <= 1.001
    making.image_folders(tmp_path)
    train, _, _ = images.read_folder(tmp_path, 16)
    rows = torch.arange(4)

    def drawn(*seeds: int) -> torch.Tensor:
        return torch.cat([inputs for inputs, _ in train.augment(*seeds).select(rows, 3)])

    assert torch.equal(drawn(0, 1), drawn(0, 1)), "threads change the result"
    assert not torch.equal(drawn(0, 1), drawn(0, 2))
    moved = augment.crop_and_mirror(batch, torch.Generator().manual_seed(1))
    assert moved.shape == batch.shape
    assert not torch.equal(moved, batch)
    assert torch.isin(moved[moved != 0], batch).all(), "pixels were made up"


@pytest.mark.parametrize("mean", [0.0, 0.3, 10.0])
def test_the_noise_has_the_probabilities_of_poisson(mean: float) -> None:
    shape = torch.Size([1_000_000])
    drawn = augment.draw_poisson(mean, shape, torch.Generator().manual_seed(0))
    part = drawn.bincount(minlength=30)[:30] / len(drawn)
    counts = torch.arange(30.0)
    expected = torch.exp(torch.distributions.Poisson(mean).log_prob(counts))
    # Five deviations of a count, and of the mean, which hold for every seed but one in a million.
    assert ((part - expected).abs() <= 5 * (expected / len(drawn)).sqrt() + 1e-9).all()
    assert abs(drawn.double().mean() - mean) <= 5 * (mean / len(drawn)) ** 0.5


def test_a_rotation_by_a_quarter_turns_the_image() -> None:
    image = torch.rand(3, 8, 8)
    turned = augment.rotate(image, torch.pi / 2)
    assert torch.allclose(turned, image.rot90(1, (1, 2)), atol=1e-4) or torch.allclose(
        turned, image.rot90(-1, (1, 2)), atol=1e-4
    )


def test_the_index_counts_names_and_splits_right(tmp_path: Path, programs: Programs) -> None:
    making.image_folders(tmp_path / "pets")
    made = programs.alone(
        "make_dataset_yaml.py",
        *("pets/train", "pets/val", "--test_dir", "pets/val"),
        *("--out_filename", "pets.yaml", "--desc", "three: kinds"),
    )
    assert (made.code, made.out) == (
        0,
        "pets.yaml: 3 classes, 24 training, 9 validation, 9 test images\n",
    ), made.err
    content = yaml.safe_load((tmp_path / "pets.yaml").read_text())
    assert content["name"] == "pets"
    assert content["description"] == "three: kinds"
    assert content["classes"] == list(making.CLASSES), "`no` has to stay text"
    assert content["split"] == {
        "training": list(range(24)),
        "validation": list(range(24, 33)),
        "test": list(range(33, 42)),
    }
    found = folders.read_index(tmp_path / "pets.yaml")
    rows = images.from_index(tmp_path / "pets.yaml", found, "validation", 16)
    assert [path.parent.name for path in rows.paths[::3]] == list(making.CLASSES)
    assert rows.labels == (0, 0, 0, 1, 1, 1, 2, 2, 2)
    inputs, _ = next(rows.select(torch.tensor([0]), 1))
    assert inputs.shape == (1, 3, 16, 16)


def test_a_wrong_index_or_folder_is_one_line(tmp_path: Path, programs: Programs) -> None:
    making.image_folders(tmp_path / "pets")
    (tmp_path / "pets" / "val" / "other").mkdir()
    ended = programs.alone("make_dataset_yaml.py", "pets/train", "pets/val")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert "other" in ended.err
    path = tmp_path / "index.yaml"
    for text, says in read_rows("readers", "a_wrong_index_or_folder_is_one_line"):
        path.write_text(text)
        with pytest.raises(UsageError, match=says):
            folders.read_index(path)
    with pytest.raises(UsageError, match=r"missing\.yaml cannot be read.*data index.*data push"):
        folders.read_index(tmp_path / "missing.yaml")


def test_images_that_an_index_names_and_nobody_brought_are_told_at_the_start(
    tmp_path: Path,
) -> None:
    making.image_folders(tmp_path / "pets")
    parts = {"training": tmp_path / "pets" / "train", "validation": tmp_path / "pets" / "val"}
    found = folders.index("pets", "", parts, tmp_path)
    gone = sorted((tmp_path / "pets" / "train" / making.CLASSES[1]).iterdir())
    gone[0].unlink()
    gone[2].unlink()
    path = tmp_path / "pets.yaml"
    assert len(images.from_index(path, found, "validation", 16)) == 9
    with pytest.raises(UsageError, match=rf"2 of 24 images for training .*{gone[0].name}.* push"):
        images.from_index(path, found, "training", 16)


@rows("name, image, parameters", "readers.networks_have_the_published_numbers_of_parameters")
def test_networks_have_the_published_numbers_of_parameters(
    name: str, image: tuple[int, int, int], parameters: int | None
) -> None:
    with torch.device("meta"):
        count = sum(p.numel() for p in models.build(name, image, image, 1000).parameters())
        expected = parameters or 320 + 18_496 + 9216 * 128 + 128 + 128 * 1000 + 1000
    assert count == expected


def test_image_networks_refuse_rows_that_are_no_images() -> None:
    with pytest.raises(UsageError, match="needs images"):
        models.build("cnn", (20,), None, 1)
    with pytest.raises(UsageError, match=r"images of 5x9 are too small .* --image-size of 6"):
        models.build("cnn", (3, 5, 9), (3, 5, 9), 10)
    assert models.build("cnn", (3, 6, 6), (3, 6, 6), 10)(torch.zeros(2, 3, 6, 6)).shape == (2, 10)
    assert models.build("cnn", (64,), (1, 8, 8), 10)(torch.zeros(2, 64)).shape == (2, 10)
    assert models.build("mlp", (3, 4, 4), (3, 4, 4), 10)(torch.zeros(2, 3, 4, 4)).shape == (2, 10)

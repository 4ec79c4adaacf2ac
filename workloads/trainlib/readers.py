"""Data sets in the files that their authors publish: MNIST's IDX, CIFAR-10's binary records.

Nothing is downloaded here: `clusterctl data get NAME` brings the files to every node.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
import torch

from trainlib.errors import UsageError

#: Where the programs look for data sets: one folder per data set.
VARIABLE = "CLUSTERCTL_DATA"

# Bytes of one CIFAR-10 record: the label, then 3 x 32 x 32 pixels.
_RECORD = 1 + 3 * 32 * 32


def find_folder(name: str, given: Path | None) -> Path:
    """The folder of a data set: the one that was given, else $CLUSTERCTL_DATA/NAME.

    Raises:
        UsageError: Neither is there.
    """
    if given is not None:
        given = find_pushed(given)
        if not given.is_dir():
            raise UsageError(f"the data folder {given} does not exist", "give another --data")
        return given
    root = os.environ.get(VARIABLE, "")
    todo = f"run `clusterctl data get {name}` once, or give the folder with --data"
    if not root:
        raise UsageError(
            f"{VARIABLE} is not set: {name} cannot be found",
            f"start it by `clusterctl run` after `clusterctl data get {name}`, or give the folder "
            "with --data",
        )
    path = Path(root) / name
    if not path.is_dir():
        raise UsageError(f"the data set {name} is missing: there is no {path}", todo)
    return path


def find_pushed(path: Path) -> Path:
    """`path`, or, where there is nothing, the place below $CLUSTERCTL_DATA of that name.

    A file beside a data set comes to the nodes with `clusterctl data push`.
    """
    root = os.environ.get(VARIABLE, "")
    below = Path(root) / path
    return below if root and not path.exists() and below.exists() else path


def read_mnist(path: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 1, 28, 28) and labels (N,), both uint8, of `part`: `train` or `t10k`.

    Raises:
        UsageError: See `idx`; or the numbers of images and labels differ, there are none, or the
            labels are others than 0 to 9.
    """
    images = read_idx(path / f"{part}-images-idx3-ubyte", 3)
    labels = read_idx(path / f"{part}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise UsageError(
            f"{path} has {len(images)} {part} images and {len(labels)} labels",
            _suggest_download("mnist"),
        )
    if not len(labels):
        raise UsageError(f"{path} has no {part} images", _suggest_download("mnist"))
    if labels.max() > 9:
        raise UsageError(
            f"{path} holds the label {labels.max()}: it is not MNIST", _suggest_download("mnist")
        )
    return images.unsqueeze(1), labels


def read_idx(path: Path, dimensions: int) -> torch.Tensor:
    """The unsigned bytes of an IDX file, which may be compressed and end in `.gz`.

    The format, big-endian: two zero bytes, the type (8 is unsigned byte), the number of dimensions,
    each dimension as 4 bytes, the data (Y. LeCun, C. Cortes, C. Burges: the MNIST database).

    Raises:
        UsageError: The file is missing, is none of that kind, or is cut off.
    """
    found = next((file for file in (path, Path(f"{path}.gz")) if file.exists()), None)
    if found is None:
        raise UsageError(f"{path}(.gz) is missing", _suggest_download("mnist"))
    content = _read(found, "mnist")
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(
                f"{found} is damaged or cut off ({error})", _suggest_download("mnist")
            ) from error
    if content[:4] != bytes((0, 0, 8, dimensions)):
        raise UsageError(
            f"{found} is not an IDX file of unsigned bytes with {dimensions} dimensions: it begins "
            f"with {content[:4].hex(' ') or 'nothing'}",
            _suggest_download("mnist"),
        )
    head = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, head, 4)]
    if len(content) != head + math.prod(shape):
        raise UsageError(
            f"{found} is cut off: {' x '.join(map(str, shape))} takes {head + math.prod(shape):,} "
            f"bytes, it has {len(content):,}",
            _suggest_download("mnist"),
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy())


def read_cifar10(path: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 3, 32, 32) and labels (N,), both uint8, of `part`: `train` or `test`.

    Reads the binary version: records of a label and 3,072 pixels, red, green and blue planes
    (A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009).

    Raises:
        UsageError: A file is missing, cut off, or holds other labels than 0 to 9.
    """
    names = ["test_batch.bin"]
    if part == "train":
        names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    parts = []
    for name in names:
        content = _read(path / name, "cifar10")
        if not content or len(content) % _RECORD:
            raise UsageError(
                f"{path / name} is cut off: {len(content):,} bytes are no whole number of records "
                f"of {_RECORD:,}",
                _suggest_download("cifar10"),
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
        if records[:, 0].max() > 9:
            raise UsageError(
                f"{path / name} holds the label {records[:, 0].max()}: it is not a CIFAR-10 file",
                _suggest_download("cifar10"),
            )
        parts.append(records)
    records = np.concatenate(parts)
    images = records[:, 1:].reshape(-1, 3, 32, 32).copy()
    return torch.from_numpy(images), torch.from_numpy(records[:, 0].copy())


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{path} is missing", _suggest_download(name)) from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror})", _suggest_download(name)
        ) from error


def _suggest_download(name: str) -> str:
    return f"run `clusterctl data get {name}`, or give another --data"

"""Image files as rows: decoded by threads, cut to a square, enlarged by random changes.

Threads and not processes: Pillow decodes without the interpreter lock, and threads end with the
program whatever ends it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainlib import augment
from trainlib.data import IMAGENET_SCALE, Batch
from trainlib.errors import StartError, UsageError, WorkloadError

#: What counts as an image in a class folder, by the end of its name.
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm")

#: Batches that are decoded ahead of the one in use.
_AHEAD = 2

#: Names of the folder of test images, the first that is there.
_TEST_FOLDERS = ("val", "validation", "test")


@dataclass(frozen=True)
class ImageFiles:
    """Images in files; a batch is (B, 3, size, size) float32, normalised as for ImageNet."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    size: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seeds: tuple[int, ...] = ()
    """Of the random changes, () for none. Each row has changes of its own."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, ...]:
        return (3, self.size, self.size)

    def to(self, device: torch.device) -> ImageFiles:
        return replace(self, device=device)

    def augmented(self, *seeds: int) -> ImageFiles:
        """The same files with random changes, which follow from `seeds` (run and epoch, say)."""
        return replace(self, seeds=seeds)

    def select(self, rows: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        numbers = [chunk.tolist() for chunk in rows.split(batch_size)]
        workers = max(1, len(os.sched_getaffinity(0)) // 2)
        with ThreadPoolExecutor(workers) as pool:
            waiting: deque[tuple[list[Any], list[int]]] = deque()
            try:
                for index in range(len(numbers) + _AHEAD):
                    if index < len(numbers):
                        chunk = numbers[index]
                        waiting.append(([pool.submit(self._image, row) for row in chunk], chunk))
                    if index >= _AHEAD:
                        futures, chunk = waiting.popleft()
                        yield self._batch([future.result() for future in futures], chunk)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _image(self, row: int) -> torch.Tensor:
        return read(self.paths[row], self.size)

    def _batch(self, images: list[torch.Tensor], rows: list[int]) -> Batch:
        batch = torch.stack(images).to(self.device, non_blocking=True).float() / 255
        if self.seeds:
            batch = augment.images(batch, [self._generator(row) for row in rows])
        mean, deviation = (
            torch.tensor(values, device=self.device).view(-1, 1, 1) for values in IMAGENET_SCALE
        )
        targets = torch.tensor([self.labels[row] for row in rows], device=self.device)
        return (batch - mean) / deviation, targets

    def _generator(self, row: int) -> torch.Generator:
        state = np.random.SeedSequence((*self.seeds, row)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def read(path: Path, size: int) -> torch.Tensor:
    """The middle of an image, (3, size, size) uint8: its shorter side is scaled to `size`.

    Raises:
        WorkloadError: The file is missing or no image that Pillow reads.
    """
    pillow = _pillow()
    try:
        with pillow.open(path) as image:
            image.draft("RGB", (size, size))  # lets JPEG decode at a fraction of its size
            image = image.convert("RGB")
            scale = size / min(image.size)
            wide, high = (max(size, round(side * scale)) for side in image.size)
            image = image.resize((wide, high), pillow.Resampling.BILINEAR)
            left, top = (wide - size) // 2, (high - size) // 2
            image = image.crop((left, top, left + size, top + size))
            return torch.from_numpy(np.array(image)).permute(2, 0, 1)
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise WorkloadError(
            f"the image {path} cannot be read ({reason})", "restore it, or take it out of the index"
        ) from error


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise StartError(
            "image files need Pillow, which is not installed", "pip install pillow"
        ) from error
    return PIL.Image


def class_folders(path: Path) -> dict[str, list[Path]]:
    """The images in each class folder, both in the order of their names.

    Raises:
        UsageError: There is no class folder, or one of them holds no image.
    """
    try:
        folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
        found = {
            folder.name: sorted(
                file
                for file in folder.iterdir()
                if file.suffix.lower() in SUFFIXES and file.is_file()
            )
            for folder in folders
        }
    except OSError as error:
        raise UsageError(
            f"the image folder {path} cannot be read ({error.strerror})", "give another one"
        ) from error
    if not found:
        raise UsageError(
            f"{path} has no class folders", "it takes one folder of images for each class"
        )
    for name, files in found.items():
        if not files:
            raise UsageError(f"the class folder {path / name} holds no image", "fill or remove it")
    return found


def folder(path: Path, size: int) -> tuple[ImageFiles, ImageFiles, list[str]]:
    """Training and test images and the classes' names, of `train/CLASS/` and `val/CLASS/`.

    Raises:
        UsageError: The folders are missing, empty, or have other classes than each other.
    """
    test = next((path / name for name in _TEST_FOLDERS if (path / name).is_dir()), path / "val")
    parts = [class_folders(path / "train"), class_folders(test)]
    if list(parts[0]) != list(parts[1]):
        differ = sorted(set(parts[0]) ^ set(parts[1]))
        raise UsageError(
            f"train and {test.name} in {path} have different classes: {', '.join(differ)}",
            "make them the same",
        )
    splits = []
    for part in parts:
        files = tuple(file for group in part.values() for file in group)
        labels = tuple(label for label, group in enumerate(part.values()) for _ in group)
        splits.append(ImageFiles(files, labels, size))
    return splits[0], splits[1], list(parts[0])


@dataclass(frozen=True)
class Index:
    """A data set's YAML: what is where, and what for. Keys as in EDDL's and ECVL's."""

    name: str
    description: str
    classes: tuple[str, ...]
    images: tuple[tuple[str, str], ...]
    """Location (relative to the YAML's folder, or absolute) and label."""
    split: dict[str, tuple[int, ...]]
    """Numbers of images for `training`, `validation` and `test`."""


def index(
    name: str, description: str, parts: dict[str, Path], relative_to: Path | None = None
) -> Index:
    """The index of class folders (after `create_yaml_dataset.py` of deephealthproject).

    Args:
        parts: The folder of class folders for each of `training`, `validation`, `test`.
        relative_to: Locations are relative to this folder, absolute if None.

    Raises:
        UsageError: A folder is missing or empty, or a class is not in the training folder.
    """
    images: list[tuple[str, str]] = []
    split: dict[str, tuple[int, ...]] = {}
    classes: tuple[str, ...] = ()
    for part, path in parts.items():
        found = class_folders(path)
        classes = classes or tuple(found)
        unknown = sorted(set(found) - set(classes))
        if unknown:
            raise UsageError(
                f"{path} has classes that are not for training: {', '.join(unknown)}",
                "rename or remove them",
            )
        first = len(images)
        for label, files in found.items():
            images += [(_location(file, relative_to), label) for file in files]
        split[part] = tuple(range(first, len(images)))
    return Index(name, description, classes, tuple(images), split)


def _location(path: Path, relative_to: Path | None) -> str:
    path = path.resolve()
    return str(path) if relative_to is None else os.path.relpath(path, relative_to.resolve())


def write_index(path: Path, found: Index) -> None:
    """Write the index as YAML, whole or not at all.

    Text is quoted as in JSON, which YAML understands: names such as `no` or `1e3` stay text.

    Raises:
        WorkloadError: The file system refused.
    """
    lines = [f"name: {json.dumps(found.name)}", f"description: {json.dumps(found.description)}"]
    lines += ["classes:", *(f"  - {json.dumps(label)}" for label in found.classes), "images:"]
    for location, label in found.images:
        lines += [f"  - location: {json.dumps(location)}", f"    label: {json.dumps(label)}"]
    lines.append("split:")
    for part, numbers in found.split.items():
        lines += [f"  {part}:", *(f"    - {number}" for number in numbers)]
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise WorkloadError(
            f"{path} cannot be written ({error.strerror})", "give another place"
        ) from error


def read_index(path: Path) -> Index:
    """The index in a YAML file, of ours or of EDDL's tools.

    Raises:
        UsageError: The file is missing, no YAML, or no index of images.
        StartError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise StartError(
            "the index needs PyYAML, which is missing", "pip install pyyaml"
        ) from error
    try:
        content = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise UsageError(
            f"the index {path} cannot be read ({error.strerror})",
            "make one with make_dataset_yaml.py",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is no YAML ({reason})", "make it anew") from error
    try:
        classes = tuple(str(label) for label in content["classes"])
        images = tuple((str(row["location"]), str(row["label"])) for row in content["images"])
        split = {part: tuple(numbers) for part, numbers in content["split"].items()}
        for _, label in images:
            classes.index(label)
        for numbers in split.values():
            for number in numbers:
                images[number]
        name, description = (str(content.get(key) or "") for key in ("name", "description"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(
            f"{path} is no index of images (name, classes, images, split): {error!r}",
            "make one with make_dataset_yaml.py",
        ) from error
    return Index(name, description, classes, images, split)


def from_index(path: Path, found: Index, part: str, size: int) -> ImageFiles:
    """The images of one part of an index, which lies at `path`.

    Raises:
        UsageError: The index has no such part.
    """
    numbers: Sequence[int] = found.split.get(part, ())
    if not numbers:
        raise UsageError(f"{path} has no images for {part}", "make it anew with such a folder")
    codes = {label: code for code, label in enumerate(found.classes)}
    chosen = [found.images[number] for number in numbers]
    files = tuple(path.parent / location for location, _ in chosen)
    return ImageFiles(files, tuple(codes[label] for _, label in chosen), size)

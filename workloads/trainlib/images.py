"""Image files as rows: decoded by threads, cut to a square, enlarged by random changes.

Threads and not processes: Pillow decodes without the interpreter lock, and threads end with the
program whatever ends it.
"""

from __future__ import annotations

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
from trainlib.errors import StartError, UsageError, WorkloadError
from trainlib.folders import Index, list_class_folders
from trainlib.ranks import discover
from trainlib.rows import IMAGENET_SCALE, Batch

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

    def augment(self, *seeds: int) -> ImageFiles:
        """The same files with random changes, which follow from `seeds` (run and epoch, say)."""
        return replace(self, seeds=seeds)

    def select(self, rows: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        numbers = [chunk.tolist() for chunk in rows.split(batch_size)]
        scale = [torch.tensor(one, device=self.device).view(-1, 1, 1) for one in IMAGENET_SCALE]
        with ThreadPoolExecutor(self._count_threads()) as pool:
            waiting: deque[tuple[list[Any], list[int]]] = deque()
            try:
                for index in range(len(numbers) + _AHEAD):
                    if index < len(numbers):
                        chunk = numbers[index]
                        waiting.append(
                            ([pool.submit(self._read_image, row) for row in chunk], chunk)
                        )
                    if index >= _AHEAD:
                        futures, chunk = waiting.popleft()
                        yield self._make_batch(
                            [future.result() for future in futures], chunk, *scale
                        )
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _count_threads(self) -> int:
        """Half of this rank's cores; all of them where a GPU does the rest."""
        cores = (os.cpu_count() or 1) // discover().local_world
        cores = min(cores, len(os.sched_getaffinity(0)))
        return max(1, cores if self.device.type == "cuda" else cores // 2)

    def _read_image(self, row: int) -> torch.Tensor:
        """Bytes; changed at random, numbers from 0 to 1."""
        image = read(self.paths[row], self.size)
        return (
            augment.augment_image(image / 255, self._make_generator(row)) if self.seeds else image
        )

    def _make_batch(
        self,
        images: list[torch.Tensor],
        rows: list[int],
        mean: torch.Tensor,
        deviation: torch.Tensor,
    ) -> Batch:
        pixels = torch.stack(images)
        targets = torch.tensor([self.labels[row] for row in rows])
        if self.device.type == "cuda":
            # From elsewhere a copy would wait until the GPU has nothing else to do.
            pixels, targets = pixels.pin_memory(), targets.pin_memory()
        pixels = pixels.to(self.device, non_blocking=True)
        inputs = pixels if self.seeds else pixels / 255
        return (inputs - mean) / deviation, targets.to(self.device, non_blocking=True)

    def _make_generator(self, row: int) -> torch.Generator:
        state = np.random.SeedSequence((*self.seeds, row)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def read(path: Path, size: int) -> torch.Tensor:
    """The middle of an image, (3, size, size) uint8: its shorter side is scaled to `size`.

    Raises:
        WorkloadError: The file is missing or no image that Pillow reads.
    """
    pillow = _load_pillow()
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


def _find_missing(files: Sequence[Path]) -> list[Path]:
    """Those that are not there. Folders are listed, which is far quicker than asking for each."""
    listed: dict[Path, set[str]] = {}
    for folder in {file.parent for file in files}:
        try:
            listed[folder] = set(os.listdir(folder))
        except OSError:
            listed[folder] = set()
    return [file for file in files if file.name not in listed[file.parent]]


def _load_pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise StartError(
            "image files need Pillow, which is not installed", "pip install pillow"
        ) from error
    return PIL.Image


def read_folder(path: Path, size: int) -> tuple[ImageFiles, ImageFiles, list[str]]:
    """Training and test images and the classes' names, of `train/CLASS/` and `val/CLASS/`.

    Raises:
        UsageError: The folders are missing, empty, or have other classes than each other.
    """
    test = next((path / name for name in _TEST_FOLDERS if (path / name).is_dir()), path / "val")
    parts = [list_class_folders(path / "train"), list_class_folders(test)]
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


def from_index(path: Path, found: Index, part: str, size: int) -> ImageFiles:
    """The images of one part of an index, which lies at `path`.

    Raises:
        UsageError: The index has no such part, or names images that are not there.
    """
    numbers: Sequence[int] = found.split.get(part, ())
    if not numbers:
        raise UsageError(f"{path} has no images for {part}", "create it again with such a folder")
    codes = {label: code for code, label in enumerate(found.classes)}
    chosen = [found.images[number] for number in numbers]
    files = tuple(path.parent / location for location, _ in chosen)
    missing = _find_missing(files)
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(files)} images for {part} in {path} are missing,"
            f" {missing[0]} the first",
            "bring them there (`clusterctl data push FOLDER`), or make the index anew",
        )
    return ImageFiles(files, tuple(codes[label] for _, label in chosen), size)

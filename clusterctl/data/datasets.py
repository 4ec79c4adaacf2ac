"""Public data sets: what they are, and how their folders are made of files that have come."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.core.text import decode_table
from clusterctl.errors import ProviderError
from clusterctl.transport.copying import UnsafeArchive, unpack

Progress = Callable[[str, int, int], None]
"""Takes a file's name, its bytes so far, and all of its bytes."""


class File(Struct, frozen=True):
    """One file to download."""

    path: str
    size: int
    sha256: str


class Dataset(Struct, frozen=True, kw_only=True):
    """A row of datasets.toml."""

    title: str
    url: str
    name: str = ""
    files: tuple[File, ...]
    archive: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def mark(self) -> str:
        """What a complete copy is marked with: it changes with any of the files."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()


@cache
def load_datasets() -> dict[str, Dataset]:
    """The data sets that `data get` knows, by name."""
    rows = decode_table(Path(__file__).with_suffix(".toml"), dict[str, Dataset])
    return {name: replace(row, name=name) for name, row in rows.items()}


def is_here(dataset: Dataset, root: Path) -> bool:
    """Whether a complete copy lies in `root`."""
    try:
        marked = (root / f".{dataset.name}.complete").read_text().strip()
    except OSError:
        return False
    return marked == dataset.mark and (root / dataset.name).is_dir()


def complete(dataset: Dataset, files: Path, root: Path) -> None:
    """Makes the data set's folder in `root` of the checked files in the folder `files`, at once.
    Raises ProviderError for an archive that cannot be unpacked, OSError."""
    source, target = files, root / dataset.name
    if dataset.archive:
        scratch = files.with_name("unpacked")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        for file in dataset.files:
            try:
                with tarfile.open(files / file.path) as archive:
                    unpack(archive, scratch)
            except (tarfile.TarError, EOFError, UnsafeArchive) as error:
                raise ProviderError(f"{file.path} cannot be unpacked: {error}") from error
        inner = [entry for entry in scratch.iterdir() if entry.is_dir()]
        source = inner[0] if len(inner) == 1 else scratch
    shutil.rmtree(target, ignore_errors=True)
    os.replace(source, target)
    (root / f".{dataset.name}.complete").write_text(dataset.mark + "\n")

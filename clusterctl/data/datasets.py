"""Public data sets: what they are, and how their files get here, once, whole and checked.

A download goes on where it broke off, and counts only when its checksum is right.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import ProviderError, UsageError, make_local_error
from clusterctl.transport.copying import UnsafeArchive, unpack

CHUNK = 1 << 18
"""Bytes."""

TIMEOUT = 30.0
"""Seconds without a byte after which the mirror counts as silent."""

Progress = Callable[[str, int, int], None]
"""Takes a file's name, its bytes so far, and all of its bytes."""


@dataclass(frozen=True, slots=True)
class File:
    """One file to download."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """`url` is the folder of its files. An archive is unpacked without its outermost folder."""

    name: str
    title: str
    url: str
    files: tuple[File, ...]
    archive: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def mark(self) -> str:
        """What a complete copy is marked with: it changes with any of the files."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "mnist",
            "MNIST: 70,000 handwritten digits of 28 x 28 pixels",
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            (
                File(
                    "train-images-idx3-ubyte.gz",
                    9_912_422,
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                File(
                    "train-labels-idx1-ubyte.gz",
                    28_881,
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                File(
                    "t10k-images-idx3-ubyte.gz",
                    1_648_877,
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                File(
                    "t10k-labels-idx1-ubyte.gz",
                    4_542,
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            ),
        ),
        Dataset(
            "cifar10",
            "CIFAR-10: 60,000 coloured images of 32 x 32 pixels, ten classes",
            "https://www.cs.toronto.edu/~kriz",
            (
                File(
                    "cifar-10-binary.tar.gz",
                    170_052_171,
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ),
            ),
            archive=True,
        ),
        Dataset(
            "imagenette",
            "Imagenette: 13,394 photographs, ten classes of ImageNet, shorter side 320 pixels",
            "https://s3.amazonaws.com/fast-ai-imageclas",
            (
                File(
                    "imagenette2-320.tgz",
                    341_663_724,
                    "569b4497c98db6dd29f335d1f109cf315fe127053cedf69010d047f0188e158c",
                ),
            ),
            archive=True,
        ),
    )
}


def mark_path(root: Path, name: str) -> Path:
    """The file beside a data set's folder that says which complete copy it is."""
    return root / f".{name}.complete"


def is_here(dataset: Dataset, root: Path) -> bool:
    """Whether a complete copy lies in `root`."""
    try:
        marked = mark_path(root, dataset.name).read_text().strip()
    except OSError:
        return False
    return marked == dataset.mark and (root / dataset.name).is_dir()


def get(dataset: Dataset, root: Path, mirror: str, progress: Progress) -> Path:
    """The folder of the data set in `root`, downloaded if it is not there.

    Args:
        mirror: URL of a folder with the same files, "" for the data set's own.

    Raises:
        ProviderError: The mirror does not answer, has no such file, or another one.
        UsageError: The disk refuses, or `mirror` is no URL.
    """
    target = root / dataset.name
    if is_here(dataset, root):
        return target
    base = (mirror or dataset.url).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise UsageError(
            f"--mirror {mirror!r} is not a URL",
            hint="give one that begins with http:// or https://",
        )
    downloads = root / f".{dataset.name}.download"
    try:
        downloads.mkdir(parents=True, exist_ok=True)
        files = [download(file, base, downloads, progress) for file in dataset.files]
        _place(dataset, files, downloads / "unpacked", target)
        mark_path(root, dataset.name).write_text(dataset.mark + "\n")
        shutil.rmtree(downloads)
    except OSError as error:
        raise make_local_error(
            f"{error.filename or root} cannot be written: {error.strerror or error}",
            error.errno,
            hint=f"{dataset.name} takes about {dataset.size * 3 // 1_000_000 + 1} MB while it is "
            "unpacked; check permissions and free space, or set CLUSTERCTL_HOME",
        ) from error
    return target


def download(file: File, base: str, folder: Path, progress: Progress) -> Path:
    """The file in `folder`, whole and checked; what an earlier call left is gone on with.

    Raises:
        ProviderError: See `get`.
    """
    path = folder / file.name
    if path.exists():
        return path  # it has been checked before it got its name
    part = folder / f"{file.name}.part"
    url = f"{base}/{file.name}"
    have = part.stat().st_size if part.exists() else 0
    if have > file.size:
        part.unlink()
        have = 0
    if have < file.size:
        _fetch(url, file, part, have, progress)
    if hash_file(part) != file.sha256:
        size = part.stat().st_size
        part.unlink()
        raise ProviderError(
            f"{url} is not {file.name}: its checksum or size ({size:,} bytes) is "
            f"wrong, it should have {file.size:,} bytes",
            hint="try again, or another --mirror",
        )
    part.replace(path)
    return path


def _fetch(url: str, file: File, part: Path, have: int, progress: Progress) -> None:
    request = urllib.request.Request(url)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            if answer.status != 206:
                have = 0  # this server begins anew
            with part.open("ab" if have else "wb") as stream:
                progress(file.name, have, file.size)
                while have <= file.size and (data := answer.read(CHUNK)):
                    stream.write(data)
                    have += len(data)
                    progress(file.name, have, file.size)
    except urllib.error.HTTPError as error:
        error.close()  # it is the answer, too
        raise ProviderError(
            f"{url}: the mirror answered {error.code} {error.reason}", hint="try another --mirror"
        ) from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as e:
        reason = getattr(e, "reason", None) or e
        raise ProviderError(
            f"{url} cannot be downloaded: {reason}",
            hint="the next attempt continues from here; --mirror chooses another source",
            transient=True,
        ) from e
    if have < file.size:
        raise ProviderError(
            f"the download of {url} ended after {have:,} of {file.size:,} bytes",
            hint="the next attempt continues from here",
            transient=True,
        )


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while data := stream.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()


def _place(dataset: Dataset, files: Sequence[Path], scratch: Path, target: Path) -> None:
    """Make `target` of the checked files, at once."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    if dataset.archive:
        for path in files:
            try:
                with tarfile.open(path) as archive:
                    unpack(archive, scratch)
            except (tarfile.TarError, EOFError, UnsafeArchive) as error:
                raise ProviderError(f"{path.name} cannot be unpacked: {error}") from error
        inner = [entry for entry in scratch.iterdir() if entry.is_dir()]
        source = inner[0] if len(inner) == 1 else scratch
    else:
        for path in files:
            os.link(path, scratch / path.name)
        source = scratch
    shutil.rmtree(target, ignore_errors=True)
    source.replace(target)

"""Folders of images, one per class, and the YAML index of a data set, without loading torch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainlib.errors import StartError, UsageError, WorkloadError

#: What counts as an image in a class folder, by the end of its name.
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm")


def list_class_folders(path: Path) -> dict[str, list[Path]]:
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
        raise UsageError(f"{path} has no class folders", "make one folder of images per class")
    for name, files in found.items():
        if not files:
            raise UsageError(f"the class folder {path / name} holds no image", "fill or remove it")
    return found


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
        found = list_class_folders(path)
        classes = classes or tuple(found)
        unknown = sorted(set(found) - set(classes))
        if unknown:
            raise UsageError(
                f"{path} has classes that are not for training: {', '.join(unknown)}",
                "rename or remove them",
            )
        first = len(images)
        for label, files in found.items():
            images += [(_name_location(file, relative_to), label) for file in files]
        split[part] = tuple(range(first, len(images)))
    return Index(name, description, classes, tuple(images), split)


def _name_location(path: Path, relative_to: Path | None) -> str:
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
            "make one in the images' folder with `clusterctl data index`, and bring both to the "
            "nodes with `clusterctl data push`",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is not valid YAML ({reason})", "create it again") from error
    try:
        return _make_index(content)
    except ValueError as error:
        raise UsageError(
            f"{path} is not an index of images: {error}", "make one with make_dataset_yaml.py"
        ) from error


def _make_index(content: Any) -> Index:
    """Raises ValueError that says what is wrong."""
    if not isinstance(content, dict):
        raise ValueError("name, classes, images and split are not in it")
    for key, kind in (("classes", list), ("images", list), ("split", dict)):
        if not isinstance(content.get(key), kind):
            raise ValueError(
                f"`{key}` is missing, or not a {'list' if kind is list else 'mapping'}"
            )
    classes = tuple(str(label) for label in content["classes"])
    images = []
    for number, row in enumerate(content["images"]):
        if not isinstance(row, dict) or not {"location", "label"} <= row.keys():
            raise ValueError(f"image {number} has no `location` or no `label`")
        images.append((str(row["location"]), str(row["label"])))
        if images[-1][1] not in classes:
            raise ValueError(f"the label of image {number}, {images[-1][1]!r}, is not a class")
    split = {}
    for part, numbers in content["split"].items():
        if not isinstance(numbers, list):
            raise ValueError(f"`{part}` of `split` is not a list")
        for number in numbers:
            if type(number) is not int or not 0 <= number < len(images):
                raise ValueError(
                    f"`{part}` of `split` names image {number!r}, and there are {len(images)}"
                )
        split[str(part)] = tuple(numbers)
    name, description = (str(content.get(key) or "") for key in ("name", "description"))
    return Index(name, description, classes, tuple(images), split)

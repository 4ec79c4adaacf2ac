"""Make the YAML index of a data set from folders of images, one folder per class.

    python make_dataset_yaml.py TRAIN VALIDATION [--test_dir TEST] --out_filename dataset.yaml

Keys and command line as of deephealthproject's `create_yaml_dataset.py`: name, description,
classes, images (location, label) and split (numbers of images for training, validation and test).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainlib import folders
from trainlib.options import Parser, file_path
from trainlib.program import print_line, run_program


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(description="Folders of images to a YAML index.", allow_abbrev=False)
    parser.add_argument("train_dir", type=file_path, help="holds one folder of images per class")
    parser.add_argument("val_dir", type=file_path, help="the same, for validation")
    parser.add_argument("--test_dir", "--test-dir", type=file_path, help="the same, for testing")
    parser.add_argument(
        "--out_filename",
        "--out-filename",
        type=file_path,
        default=Path("dataset.yaml"),
        metavar="PATH",
        help="default dataset.yaml",
    )
    parser.add_argument("--name", help="default: the name of the folder around train_dir")
    parser.add_argument("--desc", default="", help="a description")
    parser.add_argument(
        "--absolute",
        action="store_true",
        help="name images by absolute paths, not as seen from the YAML's folder",
    )
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    parts = {"training": options.train_dir, "validation": options.val_dir}
    if options.test_dir is not None:
        parts["test"] = options.test_dir
    name = options.name or options.train_dir.resolve().parent.name
    relative_to = None if options.absolute else options.out_filename.parent
    found = folders.index(name, options.desc, parts, relative_to)
    folders.write_index(options.out_filename, found)
    counts = ", ".join(f"{len(numbers)} {part}" for part, numbers in found.split.items())
    print_line(f"{options.out_filename}: {len(found.classes)} classes, {counts} images")
    return 0


if __name__ == "__main__":
    run_program(main)

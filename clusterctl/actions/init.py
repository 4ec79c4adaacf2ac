"""`init`: settings for the project at hand, each line with what it does, most of them comments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError, make_write_error
from clusterctl.options.kinds import FILE
from clusterctl.options.verbs import VERBS
from clusterctl.project import own_project

SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "up": {
        "workers": 4,
        "gpu": ["g4dn:4"],
        "spot": True,
        "region": "us-east-1",
        "ttl": "8h",
        "budget": 20,
    },
    "run": {
        "requirements": "requirements-gpu.txt",
        "stage": ".",
        "env": ["LR=0.1"],
        "backend": "nccl",
        "timeout": "2h",
        "retries": 1,
        "keep_files": ["*.pt"],
    },
}
"""Options that projects set, by verb, with a value as an example."""


def write(folder: Path) -> Path:
    """Writes the file, whole or not at all. Raises UsageError where there is one."""
    path = folder / FILE
    text = make_text(folder)
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                path.unlink(missing_ok=True)  # the next `init` would take it for yours
                raise
    except FileExistsError:
        raise UsageError(
            f"{path} already exists", hint="--print shows what would be in a new one"
        ) from None
    except OSError as error:
        raise make_write_error(str(path), error, "check the folder's permissions") from error
    return path


def make_text(folder: Path) -> str:
    """The settings for the project in that folder."""
    lines = [
        "# Settings of clusterctl for this project; options on the command line override them."
    ]
    programs = own_project.list_commands(folder)
    lines += [f"#     clusterctl run {program}" for program in programs[:3] or ["SCRIPT"]]
    for verb, samples in SAMPLES.items():
        lines += ["", f"[{verb}]"]
        lines += _list_settings(verb, samples)
    return "\n".join([*lines, ""])


def _list_settings(verb: str, samples: Mapping[str, Any]) -> Iterator[str]:
    """A line per option, as a comment."""
    options = VERBS[verb].options()
    width = max(len(f"# {key} = {json.dumps(value)}") for key, value in samples.items())
    for key, value in samples.items():
        line = f"# {key} = {json.dumps(value)}"
        yield f"{line:<{width}}  # {options[key].help}"

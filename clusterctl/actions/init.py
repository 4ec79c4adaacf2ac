"""`init`: settings for the project at hand, each line with what it does, most of them comments."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError, make_write_error
from clusterctl.options.table import FILE
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
MOST = 200
"""Files that are looked at for programs."""


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
    programs = own_project.list_commands(folder) + find_programs(folder)
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


def find_programs(folder: Path) -> list[str]:
    """Python files that are meant to be run, those nearest to the folder first."""
    found = (*folder.glob("*.py"), *folder.glob("*/*.py"), *folder.glob("src/*/*.py"))
    paths = sorted(found, key=lambda path: len(path.parts))
    return [str(path.relative_to(folder)) for path in paths[:MOST] if _is_program(path)]


def _is_program(path: Path) -> bool:
    """Whether it has `if __name__ == "__main__"`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    tests = (ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If))
    return any(test == "__name__ == '__main__'" for test in tests)

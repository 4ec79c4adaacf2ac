"""The terraform or tofu program: which one, its environment, its command lines."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl import process
from clusterctl.errors import ProviderError

OLDEST = (1, 5, 0)
BINARIES = ("terraform", "tofu")
VERSION_TIMEOUT = 30.0
GET = "https://developer.hashicorp.com/terraform/install or https://opentofu.org/docs/intro/install"


@dataclass(frozen=True, slots=True)
class Binary:
    """`version` as its three numbers."""

    path: str
    version: tuple[int, int, int]

    @property
    def name(self) -> str:
        return f"{Path(self.path).name} {'.'.join(map(str, self.version))}"


def find() -> Binary:
    """The first of terraform and tofu on PATH that is new enough, or ProviderError."""
    found = []
    for name in BINARIES:
        path = shutil.which(name)
        if path is None:
            continue
        version = _ask_version(path)
        if version is None:
            found.append(f"{path} does not report its version")
            continue
        binary = Binary(path, version)
        if binary.version >= OLDEST:
            return binary
        found.append(f"{path} is {binary.name}")
    oldest = ".".join(map(str, OLDEST))
    raise ProviderError(
        f"terraform {oldest} or newer (or tofu) is needed: {'; '.join(found)}"
        if found
        else "neither terraform nor tofu is on PATH",
        hint=f"get it: {GET}",
    )


@cache
def _ask_version(path: str) -> tuple[int, int, int] | None:
    """What that program says, asked once in our life; None where it makes no sense."""
    result = process.run(
        [path, "version", "-json"], timeout=VERSION_TIMEOUT, env=_clean_environment()
    )
    return parse_version(result.text)


def parse_version(text: str) -> tuple[int, int, int] | None:
    """The version in what `terraform version -json` prints; None where there is none."""
    numbers = re.search(r'"terraform_version":\s*"(\d{1,6})\.(\d{1,6})\.(\d{1,6})', text, re.ASCII)
    return (int(numbers[1]), int(numbers[2]), int(numbers[3])) if numbers else None


def _clean_environment(**more: str) -> dict[str, str]:
    ours = {"TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1", **more}
    made = process.make_environment("terraform", **ours)
    return {name: value for name, value in made.items() if value}


def make_environment(cache: Path, **more: str) -> dict[str, str]:
    """The environment of every command: nothing that changes what it means, and one cache. What is
    empty in `more` is left out."""
    return _clean_environment(
        TF_PLUGIN_CACHE_DIR=os.environ.get("TF_PLUGIN_CACHE_DIR") or str(cache),
        # A folder's first init would download again what the cache has.
        TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE="1",
        **more,
    )


def build_command_line(binary: Binary, command: str, *arguments: str, **options: Any) -> list[str]:
    """Options as python-terraform names them: underscores, and `flag()` where there is no value."""
    from python_terraform import Terraform as Builder

    # It reads a state file when it is made, and raises for one that is empty or damaged.
    builder = Builder(terraform_bin_path=binary.path, state=f"{os.devnull}/none")
    argv: list[str] = builder.generate_cmd_string(command, *arguments, input=False, **options)
    return argv


def load_flag() -> Any:
    from python_terraform import IsFlagged

    return IsFlagged

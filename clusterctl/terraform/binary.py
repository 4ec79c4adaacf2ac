"""The terraform or tofu program: which one, its environment, its command lines."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from clusterctl import process
from clusterctl.errors import ProviderError
from clusterctl.state.files import make_private, write_atomic


class Diagnostic(Struct, frozen=True, kw_only=True):
    """What Terraform complains about. `address` may be empty."""

    summary: str
    detail: str = ""
    address: str = ""
    severity: str = "error"

    @property
    def text(self) -> str:
        where = f"{self.address}: " if self.address else ""
        return f"{where}{self.summary}" + (f": {self.detail}" if self.detail else "")


class TerraformError(ProviderError):
    """Terraform ended with an error. `diagnostics` are what it said, for those who know better."""

    def __init__(self, message: str, *, hint: str = "", diagnostics: tuple[Diagnostic, ...] = ()):
        super().__init__(message, hint=hint)
        self.diagnostics = diagnostics


def find_first_line(text: str) -> str:
    """What is wrong. A line that only announces it (`…:`) brings the first error along."""
    lines = [line.strip("╷│╵ ") for line in text.splitlines()]
    first, *rest = list(filter(None, lines)) or ["it printed nothing"]
    errors = [line for line in rest if line.startswith("Error:")] or rest
    return " ".join((first, *errors[:1])) if first.endswith(":") else first


OLDEST = (1, 5, 0)
BINARIES = ("terraform", "tofu")
VERSION_TIMEOUT = 30.0
GET = "https://developer.hashicorp.com/terraform/install or https://opentofu.org/docs/intro/install"


class Binary(Struct, frozen=True):
    """`version` as its three numbers."""

    path: str
    version: tuple[int, int, int]

    @property
    def name(self) -> str:
        return f"{Path(self.path).name} {'.'.join(map(str, self.version))}"


def find_terraform() -> Binary:
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


# -------------------------------------------------------------------------------------------------
# `terraform init`, once for all clusters of the same module.


INIT_TIMEOUT = 900.0  # a first init downloads 700 MB
LOCK_FILE = ".terraform.lock.hcl"


def list_sources(module: Path) -> list[Path]:
    """The files of a module, in either of Terraform's languages."""
    return sorted(path for path in module.iterdir() if path.name.endswith((".tf", ".tf.json")))


class InitCache:
    """A folder where `terraform init` was run for a module, once for all clusters: they share what
    it has installed. `cache` holds the providers themselves."""

    def __init__(self, module: Path, binary: Binary, cache: Path) -> None:
        self._sources = list_sources(module)
        self._binary = binary
        self._cache = cache
        digest = hashlib.sha256(binary.name.encode())
        for source in self._sources:
            digest.update(b"\0" + source.name.encode() + b"\0" + source.read_bytes())
        self.folder = cache.with_name("terraform-seeds") / digest.hexdigest()[:16]
        self.data = self.folder / ".terraform"
        self.lock_file = self.folder / LOCK_FILE

    @property
    def ready(self) -> bool:
        """Whether `init` has come to its end, and what it installed is still there."""
        # HOST/NAMESPACE/TYPE/VERSION/OS_ARCH, each a link to the cache
        installed = list(self.data.glob("providers/*/*/*/*/*"))
        whole = self.lock_file.exists() and bool(installed)
        return whole and all(path.exists() for path in installed)

    def make(self) -> None:
        """Makes sure that it is ready. Raises TerraformError."""
        make_private(self._cache)
        with (self._cache / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the cache takes one init at a time
            if self.ready:
                return
            make_private(self.folder)
            for source in self._sources:
                write_atomic(self.folder / source.name, source.read_bytes())
            result = process.run(
                build_command_line(self._binary, "init", no_color=load_flag()),
                timeout=INIT_TIMEOUT,
                cwd=self.folder,
                env=make_environment(self._cache),
            )
        if not result.ok:
            said = result.error or result.complaints or result.text
            raise TerraformError(
                f"{self._binary.name} init failed: {find_first_line(said)}",
                hint="the AWS provider comes from registry.terraform.io, or from a mirror that your"
                " terraform configuration (TF_CLI_CONFIG_FILE) names",
            )

"""`terraform init`, once for all clusters of the same module."""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterctl import process
from clusterctl.state.home import make_private, write_atomic
from clusterctl.terraform.binary import Binary, build_command_line, load_flag, make_environment
from clusterctl.terraform.events import TerraformError, find_first_line

INIT_TIMEOUT = 900.0  # a first init downloads 700 MB
_LOCK_FILE = ".terraform.lock.hcl"


class InitCache:
    """A folder where `terraform init` was run for a module, once for all clusters: they take over
    what it has installed. `cache` holds the providers themselves."""

    def __init__(self, module: Path, binary: Binary, cache: Path) -> None:
        self._sources = sorted(module.glob("*.tf"))
        self._binary = binary
        self._cache = cache
        digest = hashlib.sha256(binary.name.encode())
        for source in self._sources:
            digest.update(b"\0" + source.name.encode() + b"\0" + source.read_bytes())
        self.folder = cache.with_name("terraform-seeds") / digest.hexdigest()[:16]
        self._begun: process.Spawned | None = None

    @property
    def ready(self) -> bool:
        """Whether `init` has come to its end, and what it installed is still there."""
        installed = [Path(name) for name in self._list_installed()]
        whole = (self.folder / _LOCK_FILE).exists() and bool(installed)
        return whole and all(path.exists() for path in installed)

    def begin(self) -> None:
        """Starts `init` and returns at once. It ends with us, if nobody waits for it by then."""
        with self._lock(wait=False) as lock:
            if lock is None or self.ready:
                return
            self._fill()
            # It inherits the lock: whoever comes while it works waits for it, also when we die.
            self._begun = process.spawn(
                self._build_argv(),
                log=self.folder / "init.log",
                cwd=self.folder,
                env=make_environment(self._cache),
                pass_fds=(lock,),
            )
        atexit.register(self._finish, 0.0)

    def make(self) -> None:
        """Makes sure that it is ready; waits for what was begun. Raises TerraformError."""
        self._finish(INIT_TIMEOUT)
        with self._lock(wait=True):
            if self.ready:
                return
            self._fill()
            result = process.run(
                self._build_argv(),
                timeout=INIT_TIMEOUT,
                cwd=self.folder,
                env=make_environment(self._cache),
            )
        if not result.ok:
            said = result.error or result.complaints or result.text
            raise TerraformError(
                f"{self._binary.name} init failed: {find_first_line(said)}",
                hint=_suggest_fix(said),
            )

    def copy(self, folder: Path) -> None:
        """Installs in `folder` what is installed here: links to the cache, and the lock file."""
        for name in self._list_installed():
            target = folder / Path(name).relative_to(self.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.unlink(missing_ok=True)
                target.symlink_to(os.path.realpath(name))
        write_atomic(folder / _LOCK_FILE, (self.folder / _LOCK_FILE).read_bytes())

    def _list_installed(self) -> list[str]:
        """Paths of the packages: `.terraform/providers/HOST/NAMESPACE/TYPE/VERSION/OS_ARCH`."""
        return [str(path) for path in self.folder.glob(".terraform/providers/*/*/*/*/*")]

    def _fill(self) -> None:
        make_private(self.folder)
        for source in self._sources:
            write_atomic(self.folder / source.name, source.read_bytes())

    def _build_argv(self) -> list[str]:
        return build_command_line(self._binary, "init", no_color=load_flag())

    def _finish(self, limit: float) -> None:
        begun, self._begun = self._begun, None
        if begun:
            process.finish(begun, limit)

    @contextmanager
    def _lock(self, *, wait: bool) -> Iterator[int | None]:
        """The cache takes one init at a time. Yields None where one is at it and we do not wait."""
        make_private(self._cache)
        with (self._cache / ".lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            yield lock.fileno()


def _suggest_fix(said: str) -> str:
    own = os.environ.get("TF_CLI_CONFIG_FILE")
    if own and "CLI configuration" in said:
        return f"correct that file, or unset TF_CLI_CONFIG_FILE, which is {own}"
    return (
        "the AWS provider comes from registry.terraform.io, or from a mirror that your terraform"
        " configuration names"
    )

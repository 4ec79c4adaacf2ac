"""`check`: what this machine offers, before anything is created."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import PackageNotFoundError, version

from clusterctl import catalog, process, providers, terraform
from clusterctl.errors import ClusterctlError
from clusterctl.formats import format_bytes
from clusterctl.model import ClusterSpec, NodeGroup
from clusterctl.providers.protocol import CheckRow, Diagnosing
from clusterctl.state import Store

SPACE = 1_000_000_000


def check(store: Store) -> tuple[CheckRow, ...]:
    """Tools, Python packages, the state home, and whether clusters can be made here and in the
    cloud."""
    clusters = (row for name in providers.PROVIDERS for row in _check_clusters(name))
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
        binary = terraform.find()
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


def _check_clusters(name: str) -> tuple[CheckRow, ...]:
    """What the provider says against clusters, else whether one can be planned."""
    provider = providers.load_creator(name)
    if isinstance(provider, Diagnosing):
        return provider.diagnose()
    subject = provider.features.subject or name
    try:
        plan = provider.plan(ClusterSpec(name="check", provider=name, groups=(NodeGroup(count=2),)))
    except ClusterctlError as error:
        return (CheckRow(provider.features.if_missing, subject, error.message, error.hint),)
    text = plan.mode + (f" ({plan.mode_reason})" if plan.mode_reason else "")
    return (CheckRow("ok", subject, text),)

"""`check`: what this machine offers, before anything is created."""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec.structs import replace

from clusterctl import process
from clusterctl.actions.common import Connected, Unfetched, open_pool
from clusterctl.actions.down import take_down
from clusterctl.actions.up import bring_up
from clusterctl.core import catalog, model
from clusterctl.core.text import count, format_bytes
from clusterctl.errors import ClusterctlError
from clusterctl.machines import providers
from clusterctl.machines.protocol import CheckRow, QuotaExceeded
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
        missing = CheckRow(level, name, f"not found; needed for {purpose}", hint)
        found.append(CheckRow("ok", name, path) if path else missing)
    return [*found, _check_mpirun(), _check_terraform(), *check_gdrdrv()]


WORKLOADS = "install clusterctl with its extra `workloads` (README, Install)"
"""No command: the package of that name on PyPI is not ours."""


def check_gdrdrv(
    devices: Path = Path("/dev"), modules: Path = Path("/sys/module")
) -> list[CheckRow]:
    """Of a machine with NVIDIA GPUs."""
    if not (devices / "nvidiactl").exists():
        return []
    try:
        release = (modules / "gdrdrv" / "version").read_text().strip()
    except OSError:
        return [CheckRow("ok", "gdrdrv", "not loaded; only gdrcopy needs it: docs/images.md")]
    return [CheckRow("ok", "gdrdrv", f"{release} is loaded; images need gdrcopy of this release")]


def _check_mpirun() -> CheckRow:
    beside = sys.executable.rpartition("/")[0]
    path = shutil.which("mpirun", path=beside) or shutil.which("mpirun")
    if path is None:
        hint = f"apt-get install openmpi-bin, or {WORKLOADS}"
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
            found.append(CheckRow("warning", name, text, WORKLOADS))
    return found


def _check_home(store: Store) -> CheckRow:
    try:
        path = store.home.make(store.home.path)
    except ClusterctlError as error:
        return CheckRow("error", "state", error.message, error.hint)
    free = shutil.disk_usage(path).free
    level, hint = ("warning", "free some space") if free < SPACE else ("ok", "")
    return CheckRow(level, "state", f"{path}: {format_bytes(free)} free", hint)


# -------------------------------------------------------------------------------------------------
# `check --real`: a small cluster on EC2, from nothing to nothing.


WORKERS = 2
"""Or as many as the quotas have room for: of the 5 vCPUs of a new account, launcher and one worker
take 4."""
WORKER_TYPE = "t3.small"
"""The launcher is a t3.micro. A worker builds its image and loads PyTorch, which 1 GiB may be too
little for."""

BUDGET = 0.10
"""US dollars: the nodes end themselves before they cost more."""

DISK = 30
"""GiB of each worker: nobody works there."""

TTL = 33 * 60.0
CREDITS = 0.09
"""US dollars per hour that a t3.micro costs more if it computes all the time (docs/ec2.md): what
the plan does not count, and the launcher of a check does not need."""


def run_real_check(
    store: Store,
    *,
    runtime: model.Runtime | None,
    cloud: model.CloudSpec,
    report: model.Reporter,
    consent: model.Consent,
) -> tuple[dict[str, float], float]:
    """Creates the cluster, which proves itself by an all-reduce, and removes it, whatever happens.
    Returns the seconds of `up` and `down`, and what it has cost in US dollars."""
    spec = model.ClusterSpec(
        name=f"check-{secrets.token_hex(3)}",
        provider="ec2",
        groups=(model.NodeGroup(count=WORKERS, instance_type=WORKER_TYPE),),
        ttl=TTL,
        runtime=runtime,
        cloud=replace(cloud, budget=BUDGET - CREDITS * TTL / 3600, disk=DISK),
    )
    gone, began = None, time.monotonic()
    with process.handle_signals() as ignore:
        try:
            try:
                made = bring_up(store, spec, report, consent)
            except QuotaExceeded as error:
                if not error.fits:
                    raise
                report(f"{error.message}: checking with {count(error.fits, 'worker')}")
                group = replace(spec.groups[0], count=error.fits)
                made = bring_up(store, replace(spec, groups=(group,)), report, consent)
            _reduce_with_launcher(store, made.cluster, report)
        finally:
            ignore()
            ready = time.monotonic()
            if spec.name in store.list_names():
                # It asks AWS whether anything is left, and raises LeftoverError.
                agree, discard = (lambda question: True), Unfetched(discard=True)
                gone = take_down(store, spec.name, report, agree, discard)
    seconds = {"up": round(ready - began, 1), "down": round(time.monotonic() - ready, 1)}
    return seconds, gone.dollars if gone else 0.0


def _reduce_with_launcher(store: Store, cluster: model.Cluster, report: model.Reporter) -> None:
    """The launcher takes a rank of an all-reduce in C, so that one worker is enough to test the
    network. The worker, which has a compiler, comes first."""
    from clusterctl.actions.run import run_all_reduce  # not for every `check`

    launcher = replace(cluster.launcher, role=model.Role.BOTH)
    whole = replace(cluster, nodes=(*cluster.workers, launcher))
    with open_pool(store, cluster) as pool:
        run_all_reduce(Connected(store, whole, pool, report), "hello.c")

"""Makes the containers of a cluster, keeps those that are sound, and waits for their sshd."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from pathlib import Path

from clusterctl import assets
from clusterctl.errors import ProviderError
from clusterctl.model import Accelerator, Cluster, Reporter
from clusterctl.providers.docker import engine, layout
from clusterctl.providers.docker.engine import Container
from clusterctl.providers.docker.layout import NodePlan, Privilege
from clusterctl.providers.shared import deadlines
from clusterctl.providers.shared.nodes import LAUNCHER
from clusterctl.providers.shared.sshd_probe import probe
from clusterctl.timeouts import Deadline

START_LIMIT = 30.0
"""Seconds until a started container's sshd has to greet."""
_AT_ONCE = 8
_TOOLKIT = "NVIDIA GPUs need the NVIDIA container toolkit on this machine: docs/docker.md"


def make_labels(cluster: Cluster, folder: Path) -> dict[str, str]:
    return {engine.CLUSTER: cluster.id, engine.FOLDER: str(folder)}


def set_deadline(cluster: str, deadline: float | None, life: float = 0.0) -> dict[Container, str]:
    """Gives the containers that are there their deadline; those that cannot get it, and why."""
    data = build_archive({deadlines.FILE: (deadlines.render_file(deadline, life), 0o644)})
    refused: dict[Container, str] = {}

    def set_one(item: Container) -> None:
        copied = engine.call("cp", "-", f"{item.id}:/", stdin=data)
        policy = engine.call("update", "--restart", layout.choose_restart(deadline), item.id)
        for result in (copied, policy):
            if not result.ok:
                refused[item] = engine.explain_failure(result)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(set_one, engine.list_containers(cluster)))
    return refused


def keep_healthy(
    cluster: str, digests: Mapping[str, str], addresses: Mapping[str, str]
) -> tuple[set[str], list[str]]:
    """The nodes that stay, and those whose container was removed. One that only stands still is
    started again: what was written in it is worth keeping."""
    found = engine.list_containers(cluster)
    fit = {item.node: item for item in found if digests.get(item.node) == item.digest}
    for item in list(fit.values()):
        revive = "unpause" if item.state == "paused" else "start"
        if item.state == "created":
            del fit[item.node]  # we were interrupted before it had its keys
        elif item.state != "running" and not engine.call(revive, item.id).ok:
            del fit[item.node]
    answers = _wait({name: addresses[name] for name in fit}, START_LIMIT / 3)
    kept = {name for name, trouble in answers.items() if not trouble}
    doomed = [item for item in found if item.node not in kept or fit[item.node] is not item]
    engine.remove(("rm", "--force", "--volumes"), [item.id for item in doomed])
    return kept, [item.node for item in doomed]


def _wait(addresses: Mapping[str, str], limit: float) -> dict[str, str]:
    """Name → nothing, or what is wrong with its sshd when the time is up."""
    deadline = Deadline(limit)
    answers = probe({name: (ip, layout.PORT) for name, ip in addresses.items()}, seconds=1)
    while (late := [n for n, trouble in answers.items() if trouble]) and not deadline.passed:
        time.sleep(0.1)
        answers |= probe({name: (addresses[name], layout.PORT) for name in late}, seconds=1)
    return answers


def find_supported(
    cluster: str,
    machines: Sequence[NodePlan],
    wanted: Sequence[Privilege],
    report: Reporter,
) -> tuple[Privilege, ...]:
    """What this engine gives of what workers are to get (`wanted`). Each refusal is said with its
    price."""
    workers = [machine for machine in machines if machine.name != LAUNCHER]
    if not workers:
        return ()
    image = workers[0].image
    if not _find_refusal(cluster, image, wanted):
        return tuple(wanted)
    found = []
    for privilege in wanted:
        if why := _find_refusal(cluster, image, (privilege,)):
            report(f"warning: the engine refuses {privilege.name} ({why}): {privilege.cost}")
        else:
            found.append(privilege)
    return tuple(found)


def _find_refusal(cluster: str, image: str, wanted: Iterable[Privilege]) -> str:
    """Why a container with that does not start; nothing if it does. It carries the cluster's label,
    so that `down` finds it if we are killed in between."""
    words = [word for privilege in wanted for word in privilege.argv]
    result = engine.call(
        *("run", "--rm", "--network", "none", "--label", f"{engine.CLUSTER}={cluster}", *words),
        *("--entrypoint", "/bin/true", image),
    )
    if result.ok:
        return ""
    return (
        engine.explain_failure(result).removesuffix(".").removesuffix(": unknown").split(": ")[-1]
    )


def make(
    cluster: Cluster,
    folder: Path,
    machines: Sequence[NodePlan],
    digests: Mapping[str, str],
    subnet: IPv4Network,
    privileges: Sequence[Privilege],
    authorized: Sequence[str],
) -> None:
    """Creates, fills and starts containers, several at once. ProviderError names the first node
    that could not be started."""

    def make_one(machine: NodePlan) -> None:
        argv = layout.build_create_argv(
            machine,
            cluster=cluster.id,
            labels={**make_labels(cluster, folder), engine.DIGEST: digests[machine.name]},
            subnet=subnet,
            privileges=() if machine.name == LAUNCHER else privileges,
            restart=layout.choose_restart(cluster.deadline),
            shared=cluster.spec.shared,
        )
        what = f"{machine.name} could not be created"
        id = engine.need(*argv, what=what).strip()
        private = (folder / "containers" / machine.name).read_text()
        files = {
            f"{layout.ETC}/host_key": (private, 0o600),
            f"{layout.ETC}/authorized_keys": ("".join(f"{k}\n" for k in authorized), 0o644),
            **_render_files(cluster),
        }
        engine.need("cp", "-", f"{id}:/", what=what, stdin=build_archive(files))
        hint = _TOOLKIT if machine.vendor is Accelerator.NVIDIA and machine.gpus else ""
        engine.need("start", id, what=f"{machine.name} could not be started", hint=hint)

    # All of them, also after one has failed; then the first failure.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        started = [pool.submit(make_one, machine) for machine in machines]
    for each in started:
        each.result()


def _render_files(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """The entry point, its sshd's settings and the agent that minds the deadline: this release's,
    whatever the image brings."""
    common = assets.find_folder("docker") / "common"
    found = {f"{layout.ETC}/sshd_config": ((common / "sshd_config").read_text(), 0o644)}
    for name in ("entrypoint.sh", "healthcheck.sh"):
        found[f"{layout.ENTRY}/{name}"] = ((common / name).read_text(), 0o755)
    agent = deadlines.render_agent(root=layout.name_root(cluster.id), end=layout.END)
    found[layout.AGENT] = (agent, 0o755)
    found[deadlines.FILE] = (deadlines.render_file(cluster.deadline, cluster.spec.ttl), 0o644)
    return found


def build_archive(files: Mapping[str, tuple[str, int]]) -> bytes:
    """A tar of path → (text, mode), all root's, with the folders above it."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for folder in sorted({str(Path(path).parent) for path in files}):
            row = tarfile.TarInfo(folder.lstrip("/"))
            row.type, row.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(row)
        for path, (text, mode) in files.items():
            data = text.encode()
            row = tarfile.TarInfo(path.lstrip("/"))
            row.size, row.mode = len(data), mode
            tar.addfile(row, io.BytesIO(data))
    return sink.getvalue()


def wait_for_sshd(
    cluster: Cluster, machines: Sequence[NodePlan], addresses: Mapping[str, str]
) -> None:
    """Raises ProviderError for the first node whose sshd cannot be reached, with what it said."""
    answers = _wait({machine.name: addresses[machine.name] for machine in machines}, START_LIMIT)
    failed = next((machine for machine in machines if answers[machine.name]), None)
    if failed is None:
        return
    name = layout.name_container(cluster.id, failed)
    log = engine.call("logs", "--tail", "3", name)
    lines = (log.text + log.stderr.decode(errors="replace")).strip().splitlines()
    state = next(
        (c.state for c in engine.list_containers(cluster.id) if c.node == failed.name), "gone"
    )
    if state == "running":
        raise ProviderError(
            f"{failed.name} runs, but {answers[failed.name]}",
            hint="containers can be reached only from the machine that runs the engine (not"
            " with Docker Desktop, nor with a DOCKER_HOST elsewhere)",
        )
    raise ProviderError(
        f"{failed.name} stopped at once ({state}): {' · '.join(lines) or 'it printed nothing'}",
        hint=f"docker logs {name}; the image {failed.image} needs /bin/sh and an sshd",
    )

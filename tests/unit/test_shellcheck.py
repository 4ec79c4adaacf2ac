"""shellcheck finds nothing in any script of ours: those of the checkout, and those we render."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.core import assets, catalog, keys
from clusterctl.core.model import Accelerator, Role, Runtime
from clusterctl.machines import bootstrap, deadlines, registry
from clusterctl.machines.protocol import RegistryLogin
from tests.conftest import Need
from tests.unit.making import node

ROOT = Path(__file__).parents[2]
IN_THE_CHECKOUT = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("templates/*/*.sh"), ROOT / ".ci" / "run"]


def node_script(accelerator: Accelerator, runtime: Runtime, recipe: str = "") -> str:
    """What makes a node ready, with every step that such a node gets."""
    key = keys.generate()
    worker = node("worker-1", "10.0.0.11", accelerator=accelerator)
    nodes = (node("launcher", "10.0.0.10", role=Role.LAUNCHER), worker)
    container = None
    if runtime is Runtime.DOCKER:
        kind = bootstrap.find_kind(worker)
        listed = registry.read_downloads()
        container = bootstrap.NodeContainer(
            image=registry.make_tag(recipe, listed) if recipe else "some/image:1",
            recipe=recipe,
            bases=(registry.list_arguments(listed)["BASE"],) if recipe else (),
            login=None if recipe else RegistryLogin("me", "secret"),
            host_key=key,
            mesh_key=key.public,
            row=catalog.CONTAINER_IMAGES[kind],
        )
    files = bootstrap.list_mesh_files(key, nodes, {"worker-1": key.public})
    todo = bootstrap.list_steps(
        worker,
        runtime,
        nodes=nodes,
        mesh_key=key.public,
        container=container,
        deadline_unit="clusterctl-deadline.service",
        idle=3600.0,
        shared="/a folder",
    )
    return bootstrap.render_script(worker, files, pythons=["/opt/python"], steps=todo).decode()


LAUNCHER_AND_WORKERS = (
    node("launcher", role=Role.LAUNCHER, root="/tmp/it's a root"),
    (node("worker-1", root="/tmp/it's a root"), node("worker-2")),
)


def share_script(name: str) -> str:
    """What makes a launcher share its folder (`export`), or a worker mount it (`mount`)."""
    launcher, workers = LAUNCHER_AND_WORKERS
    todo = bootstrap.list_steps(
        launcher if name == "export" else workers[0],
        Runtime.HOST,
        nodes=(launcher, *workers),
        mesh_key="ssh-ed25519 MESH",
        container=None,
        shared="/a folder",
    )
    [step] = [step for step in todo if step.name == name]
    return f"if ! (\n{step.check}\n); then\n{step.apply}\nfi\n"


def copy_script(name: str, **values: object) -> str:
    place = "source" if name == "get" else "target"
    return assets.render(f"transport/{name}.sh.j2", **{place: "'/a b/c'"}, mark="mark", **values)


RENDERED: dict[str, Callable[[], str]] = {
    **{
        f"node-{accelerator.value}-{runtime.value}": (
            lambda accelerator=accelerator, runtime=runtime: node_script(accelerator, runtime)
        )
        for accelerator in Accelerator
        for runtime in (Runtime.HOST, Runtime.DOCKER)
    },
    "node-recipe": lambda: node_script(Accelerator.NONE, Runtime.DOCKER, "cpu"),
    "export": lambda: share_script("export"),
    "mount": lambda: share_script("mount"),
    "put a file": lambda: copy_script("put_file", size=7, mode="644", parent="'/a b'"),
    "put a folder": lambda: copy_script("put_folder", mode="755"),
    "get": lambda: copy_script("get", had=0, digest=""),
    "get-rest": lambda: copy_script("get", had=5, digest="0" * 64),
    "deadline": lambda: deadlines.render_agent(root="/tmp/it's a root", end="poweroff", spot=True),
    "deadline, on demand": lambda: deadlines.render_agent(root="/r", end=":", metadata=True),
}


@pytest.mark.parametrize("path", IN_THE_CHECKOUT, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_of_the_checkout(path: Path, need: Need) -> None:
    shellcheck = need("shellcheck")
    done = subprocess.run(
        [shellcheck, "-x", "-P", "SCRIPTDIR", "-S", "warning", str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", RENDERED)
def test_a_script_that_is_rendered(name: str, need: Need) -> None:
    shellcheck = need("shellcheck")
    done = subprocess.run(
        [shellcheck, "-s", "sh", "-S", "warning", "-"],
        input=RENDERED[name](),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout

"""A private registry, for real: what `docker login` saves is enough to see and pull its images."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import bcrypt
import pytest
from msgspec.structs import replace

from clusterctl.core import catalog, keys
from clusterctl.core.model import Runtime
from clusterctl.errors import ProviderError
from clusterctl.machines import bootstrap, registry
from clusterctl.machines.protocol import RegistryLogin
from tests.conftest import Need
from tests.sim import registry as registries
from tests.sim.engine import Engine
from tests.unit.making import node

pytestmark = [pytest.mark.all, pytest.mark.timeout(600)]


def test_a_node_pulls_with_the_login_of_this_machine(
    engine: Engine, need: Need, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users"
    users.write_text(f"me:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    with registries.running(engine, need, tmp_path, users=users) as served:
        image = f"127.0.0.1:{served.port}/team/private:1"
        with pytest.raises(ProviderError, match="it is private or does not exist"):
            registry.resolve_image(image)
        engine(
            "login",
            "--username",
            "me",
            "--password-stdin",
            image.partition("/")[0],
            stdin=b"secret",
        )
        digest = served.serve("team/private:1", engine.base(need))
        found = registry.resolve_image(image)
        assert found.digest == digest
        assert found.size > 10_000_000
        (tmp_path / "docker" / "config.json").unlink()

        # The node's step, with this machine's engine as the node's.
        shim = tmp_path / "sudo"
        shim.write_text('#!/bin/sh\nshift\nexec "$@"\n')
        shim.chmod(0o755)
        env = {**os.environ, **engine.environment, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

        def apply(login: RegistryLogin | None) -> subprocess.CompletedProcess[str]:
            key = keys.generate()
            box = bootstrap.NodeContainer(
                image=found.pinned,
                login=login,
                host_key=key,
                mesh_key=key.public,
                row=catalog.CONTAINER_IMAGES["cpu"],
            )
            worker = replace(node("worker-1"), root=str(tmp_path))
            todo = bootstrap.list_steps(
                worker, Runtime.DOCKER, nodes=(worker,), mesh_key=key.public, container=box
            )
            [pull] = [step for step in todo if step.name == "image"]
            script = pull.apply.replace("for pause in 2 5 0", "for pause in 0")
            return subprocess.run(
                ["sh", "-eu"], input=script, text=True, capture_output=True, env=env
            )

        assert "no basic auth credentials" in apply(None).stderr
        done = apply(found.login)
        try:
            assert done.returncode == 0, done.stderr
            assert engine.has(found.pinned)
        finally:
            engine.try_("rmi", "--no-prune", found.pinned)
        assert not (tmp_path / "docker" / "config.json").exists()

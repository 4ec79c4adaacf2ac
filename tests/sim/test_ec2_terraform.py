"""The gate of the simulator: to the real Terraform with its real provider it looks like EC2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.sim.ec2.client import CHECKOUT, Ec2
from tests.sim.lab import keypair

pytestmark = [
    pytest.mark.all,
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
]


@pytest.mark.timeout(240)
def test_a_second_plan_is_empty(ec2: Ec2, tmp_path: Path) -> None:
    """With all that drifts where a simulator is careless: placement group, spot, key pair."""
    module = tmp_path / "module"
    hidden = shutil.ignore_patterns(".terraform*", "*.tfstate*", "tests")
    shutil.copytree(CHECKOUT / "infra/ec2", module, ignore=hidden)
    variables = {
        "groups": [{"family": "g4dn", "count": 2}],
        "spot": True,
        "ssh_cidr": "203.0.113.7/32",
        "public_key": keypair(tmp_path / "user"),
    }
    (module / "terraform.tfvars.json").write_text(json.dumps(variables))

    def terraform(*words: str) -> int:
        env = {**os.environ, **ec2.quick_env}
        path = env["PATH"]
        binary = shutil.which("terraform", path=path) or shutil.which("tofu", path=path)
        assert binary
        done = subprocess.run(
            [binary, *words], cwd=module, env=env, capture_output=True, text=True, timeout=200
        )
        assert done.returncode in (0, 2), f"{done.stdout}\n{done.stderr}\n{ec2.log()}"
        return done.returncode

    def planned() -> list[dict[str, Any]]:
        argv = [shutil.which("terraform") or "tofu", f"-chdir={module}", "show", "-json", "planned"]
        env = {**os.environ, **ec2.env}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
        changes: list[dict[str, Any]] = json.loads(done.stdout)["resource_changes"]
        return changes

    try:
        ec2.grant(64, "L-3819A6DF")
        terraform("init", "-input=false")
        assert ec2.left() == []
        assert terraform("apply", "-input=false", "-auto-approve") == 0
        assert {one.name for one in ec2.wait(3).values()} == {"launcher", "worker-1", "worker-2"}
        terraform("plan", "-input=false", "-out=planned")
        assert {tuple(one["change"]["actions"]) for one in planned()} == {("no-op",)}
        terraform("destroy", "-input=false", "-auto-approve")
        assert ec2.left() == []
    finally:
        ec2.reset()

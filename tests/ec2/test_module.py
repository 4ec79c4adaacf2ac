"""infra/ec2 by itself: formatted, valid, tested, scanned, and able to stand alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.core import assets
from tests.conftest import Need, find
from tests.ec2.conftest import OUTSIDE, World
from tests.sim.ec2.client import provider_mirror, terraform_environment
from tests.sim.ec2.provider import StayingProvider, programs
from tests.sim.lab import keypair

MODULE = assets.find_folder("infra") / "ec2"
pytestmark = [pytest.mark.usefixtures("many_cpus"), pytest.mark.terraform, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with its provider installed."""
    folder = tmp_path_factory.mktemp("infra") / "ec2"
    shutil.copytree(MODULE, folder)
    done = terraform(folder, "init", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    return folder


def terraform(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    binary = find("terraform") or find("tofu")
    assert binary
    env = {**os.environ, **terraform_environment(folder.parent), **more}
    env.pop("AWS_PROFILE", None)
    argv = [shutil.which(Path(binary).name, path=env["PATH"]) or binary, *words]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=250)


def test_is_formatted(tmp_path: Path) -> None:
    folder = shutil.copytree(MODULE, tmp_path / "ec2")
    done = terraform(folder, "fmt", "-check", "-recursive")
    assert done.returncode == 0, done.stdout


def test_is_valid(module: Path) -> None:
    done = terraform(module, "validate", "-json")
    answer = json.loads(done.stdout)
    assert answer["valid"], answer
    assert not answer["diagnostics"]


@pytest.fixture
def quick(module: Path) -> Iterator[dict[str, str]]:
    """What lets Terraform find a provider that stays, if there is one on this disk: it starts one
    for each run of a test otherwise, which takes a second each."""
    mirror = provider_mirror()
    terraform = find("terraform") or find("tofu")
    if not (terraform and mirror and (found := programs(mirror))):
        yield {}
        return
    env = terraform_environment(module.parent)
    provider = StayingProvider(terraform, found[-1], module.parent, env)
    yield provider.env
    provider.close()


def test_its_own_tests_pass(module: Path, quick: dict[str, str]) -> None:
    done = terraform(module, "test", "-no-color", **quick)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Success! \d+ passed, 0 failed", done.stdout)


def test_a_region_that_is_newer_than_the_provider_is_asked_all_the_same(module: Path) -> None:
    """It has a list of regions, and an account may be in one that opened later. Nobody answers
    here: it gets as far as asking."""
    words = ("-var=region=ap-southeast-6", "-var=max_retries=1", "-input=false", "-no-color")
    keys = {"AWS_ACCESS_KEY_ID": "AKIANOBODY", "AWS_SECRET_ACCESS_KEY": "nothing"}
    done = terraform(module, "plan", *words, **keys, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "invalid AWS Region" not in done.stderr
    assert "connection refused" in done.stderr


def test_every_variable_explains_and_defaults_itself() -> None:
    text = (MODULE / "variables.tf").read_text()
    for block in re.findall(r'variable "(\w+)" \{(.*?)\n\}', text, re.DOTALL):
        for part in ("description", "type", "default"):
            assert re.search(rf"^  {part}\s+=", block[1], re.MULTILINE), f"{block[0]}: no {part}"


def test_a_security_scan_finds_nothing_unexplained(module: Path, need: Need) -> None:
    """Exceptions, each with its reason, are in one file."""
    checkov = need("checkov")
    exceptions = MODULE / "checkov.yaml"
    done = subprocess.run(
        [checkov, "--directory", str(module), "--config-file", str(exceptions), "--output", "json"],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "LOG_LEVEL": "ERROR"},
    )
    report = json.loads(done.stdout)
    failed = {
        (check["check_id"], check["resource"]) for check in report["results"]["failed_checks"]
    }
    assert failed == set()
    assert report["summary"]["passed"] > 10
    skipped = re.findall(r"^  - (CKV\w+) *(#.*)?$", exceptions.read_text(), re.MULTILINE)
    assert skipped
    assert all(reason for _, reason in skipped)


REPORT = "set -- $(hostname -I); echo $OMPI_COMM_WORLD_RANK $1 $MASTER_ADDR"
PLAN = """
mock_provider "aws" {}

run "plan" {
  command = plan

  variables {
    multinode_mpi = true
    zone          = "us-east-1a"
  }
}
"""


@pytest.fixture
def key(tmp_path: Path) -> str:
    """The public half of the user's key, and beside it the key of the nodes."""
    keypair(tmp_path / "mesh_key")
    return keypair(tmp_path / "user")


def test_what_is_missing_by_hand_is_said_with_the_command_that_brings_it(
    module: Path, tmp_path: Path, key: str
) -> None:
    (module / "plans").mkdir()
    (module / "plans" / "plan.tftest.hcl").write_text(PLAN)
    given = {"public_key": key, "ssh_cidr": OUTSIDE, "mesh_key": f"{tmp_path}/mesh_key"}
    commands = ("ssh-keygen -t ed25519", "checkip.amazonaws.com", "ssh-keygen -q -t ed25519 -N")
    for name, command in zip(given, commands, strict=True):
        words = [f"-var={other}={value}" for other, value in given.items() if other != name]
        done = terraform(module, "test", "-no-color", "-test-directory=plans", *words)
        assert done.returncode == 1
        assert command in done.stderr
        assert done.stderr.count("Error:") == 1


@pytest.mark.netns
@pytest.mark.sshd
@pytest.mark.mpi
def test_two_workers_are_used_by_hand(world: World, module: Path, tmp_path: Path, key: str) -> None:
    """As README.md of the module says: log in, start ranks on both workers, destroy."""
    words = [f"-var={name}" for name in ("multinode_mpi=true", f"public_key={key}")]
    words += [f"-var=ssh_cidr={OUTSIDE}", f"-var=mesh_key={tmp_path}/mesh_key", "-input=false"]
    apply = terraform(module, "apply", "-auto-approve", *words, **world.ec2.env)
    assert apply.returncode == 0, apply.stderr
    said = json.loads(terraform(module, "output", "-json").stdout)
    nodes = said["nodes"]["value"]
    assert [node["instance_type"] for node in nodes] == ["t3.micro", "t3.xlarge", "t3.xlarge"]
    way_in, launch = said["log_in"]["value"].split(), said["mpirun"]["value"]
    words_of_ssh = ("-i", f"{tmp_path}/user", "-o", "StrictHostKeyChecking=no")
    words_of_ssh += ("-o", f"UserKnownHostsFile={tmp_path}/known", "-o", "ConnectTimeout=60")

    def ssh(command: str) -> str:
        argv = [way_in[0], *words_of_ssh, way_in[1], command]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{done.stderr}\n{world.ec2.log()}"
        return done.stdout

    ssh("cloud-init status --wait && command -v docker")
    start = launch.partition(" python3 ")[0]
    said_by = ssh(f"{start} sh -c '{REPORT}'")
    first, second = (node["private_address"] for node in nodes[1:])
    assert sorted(said_by.split("\n"))[1:] == [f"0 {first} {first}", f"1 {second} {first}"]
    assert ssh("ssh worker-2 ssh worker-1 ssh launcher echo there") == "there\n"
    destroy = terraform(module, "destroy", "-auto-approve", *words, **world.ec2.env)
    assert destroy.returncode == 0, destroy.stderr

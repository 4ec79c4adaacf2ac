"""What a fresh machine is made ready with: sound sh, the right steps, and no secret in sight."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl import bootstrap, catalog, keys
from clusterctl.bootstrap import Mesh, steps
from clusterctl.bootstrap.steps import Container
from clusterctl.model import Accelerator, Node, Runtime
from tests.conftest import Need
from tests.unit.making import node

KEY = keys.generate()


def machine(accelerator: Accelerator = Accelerator.NONE, name: str = "worker-1") -> Node:
    return replace(node(name), accelerator=accelerator, job_port=2222)


def container(image: str = "some/image:1") -> Container:
    return Container(
        image=image,
        host_key=KEY,
        mesh_key="ssh-ed25519 MESH",
        row=catalog.CONTAINER_IMAGES["cpu"],
    )


def chosen(of: Node, runtime: Runtime) -> tuple[bootstrap.Step, ...]:
    return steps.for_node(
        of,
        runtime,
        nodes=(machine(name="launcher"), of),
        mesh_key="ssh-ed25519 MESH",
        container=container() if runtime is Runtime.DOCKER else None,
    )


def test_pip_is_asked_for_the_pytorch_of_the_accelerator() -> None:
    """Else it takes PyPI's for NVIDIA where the other index has not this version."""
    assert f"torch==2.13.0+{catalog.ROCM}" in steps.pins(machine(Accelerator.AMD))
    assert catalog.TORCH_INDEX["amd"].endswith(f"/{catalog.ROCM}")
    assert "torch==2.13.0" in steps.pins(machine(Accelerator.NVIDIA))


@pytest.mark.parametrize(
    ("runtime", "accelerator", "names"),
    [
        (Runtime.HOST, Accelerator.NONE, "upgrades hosts secrets authorize venv"),
        (Runtime.DOCKER, Accelerator.NONE, "upgrades hosts secrets docker image container"),
        (
            Runtime.DOCKER,
            Accelerator.NVIDIA,
            "upgrades hosts secrets docker nvidia image container versions",
        ),
        (Runtime.DOCKER, Accelerator.AMD, "upgrades hosts secrets docker amd image container"),
    ],
)
def test_steps_of_a_node(runtime: Runtime, accelerator: Accelerator, names: str) -> None:
    of = machine(accelerator)
    found = chosen(of, runtime)
    assert [step.name for step in found] == names.split()
    assert all(step.describe() for step in found)
    text = bootstrap.script(
        of,
        Mesh(key=KEY, nodes=(of,), host_keys={of.name: KEY.public}),
        pythons=["/opt/python"],
        steps=found,
        files=container().files(of) if runtime is Runtime.DOCKER else None,
        inside=steps.inside(container() if runtime is Runtime.DOCKER else None),
    ).decode()
    done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    for name, step in zip(names.split(), found, strict=True):
        assert step.check(of) in text, name


def test_secrets_are_gone_after_a_restart(need: Need, tmp_path: Path) -> None:
    """As systemd reads the rule; at any other time it leaves them, for jobs that run."""
    tool = need("systemd-tmpfiles")
    jobs = tmp_path / "node root" / "jobs"
    for name in ("7/env", "7/state", "7/work/env", "8/env"):
        (jobs / name).parent.mkdir(parents=True, exist_ok=True)
        (jobs / name).write_text("export TOKEN=x\n")
    rule = tmp_path / "clusterctl.conf"
    rule.write_text(steps.secrets_rule(str(jobs.parent)) + "\n")
    subprocess.run([tool, "--remove", rule], check=True)
    assert len(list(jobs.rglob("env"))) == 3
    subprocess.run([tool, "--remove", "--boot", rule], check=True)
    left = sorted(str(path.relative_to(jobs)) for path in jobs.rglob("*") if path.is_file())
    assert left == ["7/state", "7/work/env"]
    of = machine()
    [step] = [s for s in chosen(of, Runtime.HOST) if s.name == "secrets"]
    assert steps.secrets_rule(of.root) in step.apply(of)


def test_the_container_is_made_as_the_seed_describes() -> None:
    [step] = [
        s for s in chosen(machine(Accelerator.NVIDIA), Runtime.DOCKER) if s.name == "container"
    ]
    text = step.apply(machine(Accelerator.NVIDIA))
    for flag in (
        "--network=host",
        "--ipc=host",
        "--init",
        "--cap-add=SYS_PTRACE",
        "--security-opt=seccomp=unconfined",
        "--ulimit=memlock=-1",
        "--gpus=all",
        "--volume=/home/ubuntu/.clusterctl/lab-1a2b:/home/ubuntu/.clusterctl/lab-1a2b",
    ):
        assert flag in text, flag
    assert "--privileged" not in text
    [amd] = [s for s in chosen(machine(Accelerator.AMD), Runtime.DOCKER) if s.name == "container"]
    assert "/dev/kfd /dev/dri" in amd.apply(machine(Accelerator.AMD))


def test_another_image_or_key_is_another_container() -> None:
    of = machine()
    first = container().digest(of)
    assert first == container().digest(of)
    assert first != container("other/image:1").digest(of)
    assert first != replace(container(), mesh_key="ssh-ed25519 OTHER").digest(of)


def test_the_driver_table_names_both_versions() -> None:
    [step] = [
        s for s in chosen(machine(Accelerator.NVIDIA), Runtime.DOCKER) if s.name == "versions"
    ]
    text = step.apply(machine(Accelerator.NVIDIA))
    assert "12.*) needs=525.60 ;;" in text
    assert "NVIDIA driver $driver is too old for the CUDA $cuda" in text
    assert "gdrdrv $module is loaded, and some/image:1 has gdrcopy $library" in text


@pytest.mark.parametrize(
    ("driver", "cuda", "module", "library", "said"),
    [
        ("550.54.15", "12.4.1", "2.4.1", "2.4", ""),
        ("470.182.03", "12.4.1", "2.4.1", "2.4", "NVIDIA driver 470.182.03 is too old for"),
        ("470.182.03", "11.8.0", "", "", ""),
        ("550.54.15", "12.4.1", "2.3.0", "2.4", "gdrdrv 2.3.0 is loaded"),
    ],
)
def test_versions_that_do_not_fit_stop_the_bootstrap(
    tmp_path: Path, driver: str, cuda: str, module: str, library: str, said: str
) -> None:
    """The step itself, with a driver and an engine that answer like these."""
    [step] = [
        s for s in chosen(machine(Accelerator.NVIDIA), Runtime.DOCKER) if s.name == "versions"
    ]
    script = step.apply(machine(Accelerator.NVIDIA)).replace(
        "[ -r /sys/module/gdrdrv/version ]", "[ -n '" + module + "' ]"
    )
    script = script.replace("$(cat /sys/module/gdrdrv/version)", module)
    answers = {
        "nvidia-smi": f"echo {driver}",
        "sudo": f'case "$*" in *inspect*) echo CUDA_VERSION={cuda} ;;'
        f" *) echo /usr/lib/x/libgdrapi.so.{library} ;; esac",
    }
    for name, text in answers.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh"], input=script, text=True, capture_output=True, env=env)
    assert done.returncode == (1 if said else 0), done.stderr
    assert said in done.stderr


def test_hosts_are_ours_between_two_lines() -> None:
    block = steps.hosts([node("launcher", "10.0.0.10"), node("worker-1", "10.0.0.11")])
    assert block.splitlines() == [
        "# clusterctl begin",
        "10.0.0.10 launcher",
        "10.0.0.11 worker-1",
        "# clusterctl end",
    ]

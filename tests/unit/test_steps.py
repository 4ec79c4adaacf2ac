"""What a fresh machine is made ready with: sound sh, the right steps, and no secret in sight."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core import catalog, keys
from clusterctl.core.model import Accelerator, Node, NodeResult, Role, Runtime
from clusterctl.machines import bootstrap, facts, registry
from clusterctl.machines.bootstrap import NodeContainer, list_mesh_files
from clusterctl.machines.protocol import RegistryLogin
from tests.conftest import Need
from tests.unit.making import node
from tests.unit.tables import read_rows, rows

KEY = keys.generate()


def machine(accelerator: Accelerator = Accelerator.NONE, name: str = "worker-1") -> Node:
    return replace(node(name), accelerator=accelerator, job_port=2222)


def container(image: str = "some/image:1", **more: Any) -> NodeContainer:
    return NodeContainer(
        **more,
        image=image,
        host_key=KEY,
        mesh_key="ssh-ed25519 MESH",
        row=catalog.CONTAINER_IMAGES["cpu"],
    )


def chosen(
    of: Node, runtime: Runtime, box: NodeContainer | None = None
) -> tuple[bootstrap.Step, ...]:
    return bootstrap.list_steps(
        of,
        runtime,
        nodes=(machine(name="launcher"), of),
        mesh_key="ssh-ed25519 MESH",
        container=(box or container()) if runtime is Runtime.DOCKER else None,
        deadline_unit="clusterctl-deadline.service",
        idle=3600.0,
    )


def built(recipe: str) -> NodeContainer:
    """One whose image the node makes."""
    listed = registry.read_downloads()
    bases = (registry.list_arguments(listed)["BASE"],)
    return container(registry.make_tag(recipe, listed), recipe=recipe, bases=bases)


def test_pip_is_asked_for_the_pytorch_of_the_accelerator() -> None:
    """Else it takes PyPI's for NVIDIA where the other index has not this version."""
    assert f"torch==2.13.0+{catalog.ROCM}" in bootstrap.list_pins(machine(Accelerator.AMD))
    assert catalog.TORCH_INDEX["amd"].endswith(f"/{catalog.ROCM}")
    assert "torch==2.13.0" in bootstrap.list_pins(machine(Accelerator.NVIDIA))


@rows("runtime, accelerator, recipe, names", "steps.steps_of_a_node")
def test_steps_of_a_node(runtime: str, accelerator: str, recipe: str, names: str) -> None:
    of = machine(Accelerator(accelerator))
    box = built(recipe) if recipe else container()
    found = chosen(of, Runtime(runtime), box)
    names = f"boot upgrades deadline idle hosts secrets {names}"
    assert [step.name for step in found] == names.split()
    assert all(step.what for step in found)
    text = bootstrap.render_script(
        of,
        list_mesh_files(KEY, [of], {of.name: KEY.public})
        | (box.list_files(of) if runtime == "docker" else {}),
        pythons=["/opt/python"],
        steps=found,
        inside=bootstrap.enter_container(box if runtime == "docker" else None),
    ).decode()
    done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    for name, step in zip(names.split(), found, strict=True):
        assert step.check in text, name


def shared(of: Node, runtime: Runtime = Runtime.HOST, *peers: Node) -> dict[str, bootstrap.Step]:
    """The steps of a node of a cluster whose nodes share a folder."""
    launcher = replace(node("launcher", "10.77.1.4"), role=Role.LAUNCHER)
    found = bootstrap.list_steps(
        of,
        runtime,
        nodes=(launcher, *peers),
        mesh_key="ssh-ed25519 MESH",
        container=container(shared="/shared") if runtime is Runtime.DOCKER else None,
        shared="/shared",
    )
    return {step.name: step for step in found}


WORKERS = (node("worker-1", "10.77.1.5"), node("worker-2", "10.77.1.6"))


def test_the_launcher_exports_its_folder_to_the_nodes_alone() -> None:
    launcher = replace(node("launcher", "10.77.1.4"), role=Role.LAUNCHER)
    text = shared(launcher, Runtime.HOST, *WORKERS)["export"].apply
    (line,) = (line for line in text.splitlines() if line.startswith("exports="))
    done = subprocess.run(
        ["sh", "-c", f'{line}; printf %s "$exports"'], capture_output=True, text=True, check=True
    )
    options = "rw,sync,no_subtree_check,all_squash"
    mine = f"({options},anonuid={os.getuid()},anongid={os.getgid()})"
    assert done.stdout == f"/shared 10.77.1.5{mine} 10.77.1.6{mine}"
    assert "host=10.77.1.4\nvers2=n\nvers3=n" in text, "or rpc.mountd listens on all addresses"
    assert text.index("clusterctl.conf") < text.index("nfs-kernel-server"), "which starts at once"
    grown = shared(launcher, Runtime.HOST, *WORKERS[:1])["export"]
    assert grown.check != shared(launcher, Runtime.HOST, *WORKERS)["export"].check, (
        "a new worker is let in"
    )


@pytest.mark.parametrize(
    ("name", "package"), [("export", "nfs-kernel-server"), ("mount", "nfs-common")]
)
def test_no_port_mapper_starts_with_nfs(name: str, package: str, tmp_path: Path) -> None:
    """Version 4 needs none. The mask comes before the packages, whose installation starts it; a
    machine that has one already keeps it."""
    launcher = replace(node("launcher", "10.77.1.4"), role=Role.LAUNCHER)
    of = launcher if name == "export" else WORKERS[0]
    text = shared(of, Runtime.HOST, *WORKERS)[name].apply
    [line] = (line for line in text.splitlines() if "rpcbind" in line)
    assert text.index(line) < text.index(package)
    (tmp_path / "sudo").write_text('#!/bin/sh\necho "$*"\n')
    (tmp_path / "sudo").chmod(0o755)
    line, there = line.replace("/sbin/rpcbind", '"$THERE"'), tmp_path / "rpcbind"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "THERE": str(there)}
    first = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, check=True)
    assert first.stdout == (
        "-n systemctl mask --quiet rpcbind.service rpcbind.socket rpc-statd.service\n"
    )
    (there.write_text(""), there.chmod(0o755))
    assert not subprocess.run(["sh", "-c", line], env=env, capture_output=True, check=True).stdout


def test_a_worker_mounts_the_folder_at_each_boot_and_waits_for_no_launcher_for_ever() -> None:
    text = shared(WORKERS[0], Runtime.HOST, *WORKERS)["mount"].apply
    source, folder, kind, options, *rest = next(
        word for word in shlex.split(text, comments=True) if word.endswith(" 0 0")
    ).split()
    assert (source, folder, kind, rest) == ("10.77.1.4:/shared", "/shared", "nfs4", ["0", "0"])
    assert {"soft", "bg", "_netdev", "proto=tcp"} < set(options.split(","))


def test_the_folder_is_seen_in_the_container_also_when_it_is_mounted_later() -> None:
    names = list(found := shared(WORKERS[0], Runtime.DOCKER, *WORKERS))
    assert names.index("mount") < names.index("container")
    text = found["container"].apply
    assert "--mount=type=bind,source=/shared,target=/shared,bind-propagation=rslave" in text
    assert "stat -c %d /shared" in found["container"].check
    [plain] = [s for s in chosen(WORKERS[0], Runtime.DOCKER) if s.name == "container"]
    assert "/shared" not in plain.apply + plain.check
    assert container().compute_digest(WORKERS[0]) != container(shared="/shared").compute_digest(
        WORKERS[0]
    )


def test_secrets_are_gone_after_a_restart(need: Need, tmp_path: Path) -> None:
    """As systemd reads the rule; at any other time it leaves them, for jobs that run."""
    tool = need("systemd-tmpfiles")
    jobs = tmp_path / "node root" / "jobs"
    for name in ("7/env", "7/state", "7/work/env", "8/env"):
        (jobs / name).parent.mkdir(parents=True, exist_ok=True)
        (jobs / name).write_text("export TOKEN=x\n")
    rule = tmp_path / "clusterctl.conf"
    rule.write_text(bootstrap.render_rule(str(jobs.parent)) + "\n")
    subprocess.run([tool, "--remove", rule], check=True)
    assert len(list(jobs.rglob("env"))) == 3
    subprocess.run([tool, "--remove", "--boot", rule], check=True)
    left = sorted(str(path.relative_to(jobs)) for path in jobs.rglob("*") if path.is_file())
    assert left == ["7/state", "7/work/env"]
    of = machine()
    [step] = [s for s in chosen(of, Runtime.HOST) if s.name == "secrets"]
    assert bootstrap.render_rule(of.root) in step.apply


def test_the_container_is_made_as_the_seed_describes() -> None:
    [step] = [
        s for s in chosen(machine(Accelerator.NVIDIA), Runtime.DOCKER) if s.name == "container"
    ]
    text = step.apply
    for flag in read_rows("steps", "the_container_is_made_as_the_seed_describes"):
        assert flag in text, flag
    assert "--privileged" not in text
    [amd] = [s for s in chosen(machine(Accelerator.AMD), Runtime.DOCKER) if s.name == "container"]
    assert "/dev/kfd /dev/dri" in amd.apply


class Engine:
    """What stands for `sudo docker` on a node: it has these images, writes down its calls, and
    builds or pulls whatever it is told."""

    def __init__(self, folder: Path, *images: str) -> None:
        self.root = folder / "root"
        self.folder, self.log, self.images = folder, folder / "log", folder / "images"
        (self.root / "image" / "wheels").mkdir(parents=True)
        self.images.write_text("".join(f"{name}\n" for name in images))
        (folder / "sudo").write_text(
            f"""#!/bin/sh
shift # -n
echo "$*" >>{self.log}
shift # docker
[ "$1" != --config ] || {{ cat "$2/config.json" >>{self.log}; echo >>{self.log}; shift 2; }}
case "$1 $2" in
"image inspect") shift 2; for image; do grep -qxF "$image" {self.images} || exit 1; done ;;
"pull --quiet") [ ! -e {folder}/broken ] && echo "$3" >>{self.images} ;;
build*) cat {folder}/said 2>/dev/null; [ ! -e {folder}/said ] ;;
esac
"""
        )
        (folder / "sudo").chmod(0o755)
        (folder / "sleep").symlink_to("/bin/true")

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.folder}:/usr/bin:/bin"}
        return subprocess.run(
            ["sh", "-eu"], input=text, text=True, capture_output=True, env=env, cwd=self.folder
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def step(name: str, engine: Engine, box: NodeContainer) -> tuple[str, str]:
    """Check and apply, on a machine whose root is in that folder."""
    of = replace(machine(), root=str(engine.root))
    [found] = [one for one in chosen(of, Runtime.DOCKER, box) if one.name == name]
    return found.check, found.apply


def explain(complaints: str) -> str:
    """What a person reads of a step that has said this and failed."""
    text = f"{complaints}\nstep it failed"
    result = NodeResult(node="worker-1", exit_code=1, stderr=text.encode())
    return bootstrap.find_problem(result).removeprefix("step it failed: ")


def test_an_image_is_built_from_what_is_public(tmp_path: Path) -> None:
    """Pull, wheels, image; none of them again on a node that has the image."""
    engine, box = Engine(tmp_path), built("cpu")
    for name in ("base", "wheels", "build"):
        check, apply = step(name, engine, box)
        assert engine.run(check).returncode != 0, name
        done = engine.run(apply)
        assert done.returncode == 0, done.stderr
    calls = [call for call in engine.calls if " image inspect " not in call]
    base = f"--build-arg BASE={box.bases[0]}"
    wheels = f"{box.image}-python"
    assert calls == [
        f"docker pull --quiet {box.bases[0]}",
        f"docker build --network=host {base} --target python --tag {wheels} .",
        f"docker build --network=host {base} --tag {box.image} .",
        f"docker rmi {wheels}",
        "docker builder prune --force",
    ]
    engine.images.write_text(f"{box.image}\n")
    for name in ("base", "wheels", "build"):
        assert engine.run(step(name, engine, box)[0]).returncode == 0, name


@rows("said, why", "steps.a_build_that_fails_says_why")
def test_a_build_that_fails_says_why(said: str, why: str, tmp_path: Path) -> None:
    """And not only in which step of the recipe: with Docker's first builder, and with BuildKit."""
    engine = Engine(tmp_path)
    (tmp_path / "said").write_text(said)
    done = engine.run(step("wheels", engine, built("cpu"))[1])
    assert done.returncode == 1
    assert explain(done.stdout) == why
    assert done.stdout == said


def test_a_private_image_is_pulled_with_a_login_that_does_not_stay(tmp_path: Path) -> None:
    engine, image = Engine(tmp_path), f"ghcr.io/me/cpu@sha256:{'a' * 64}"
    box = container(image, login=RegistryLogin("me", "it's secret"))
    assert "secret" not in repr(box)
    check, apply = step("image", engine, box)
    assert engine.run(check).returncode != 0
    assert engine.run(apply).returncode == 0
    assert engine.run(check).returncode == 0
    pull, shown = engine.calls[1:3]
    assert pull.startswith("docker --config /dev/shm/clusterctl-")
    assert pull.endswith(f" pull --quiet {image}")
    assert json.loads(shown) == json.loads(
        registry.render_settings(image, RegistryLogin("me", "it's secret"))
    )
    assert "secret" not in pull
    assert not Path(pull.split()[2]).exists()
    (tmp_path / "broken").touch()
    before = set(Path("/dev/shm").glob("clusterctl-??????"))
    assert engine.run(apply).returncode == 1
    assert set(Path("/dev/shm").glob("clusterctl-??????")) <= before


def test_another_image_or_key_is_another_container() -> None:
    of = machine()
    first = container().compute_digest(of)
    assert first == container().compute_digest(of)
    assert first != container("other/image:1").compute_digest(of)
    assert first != replace(container(), mesh_key="ssh-ed25519 OTHER").compute_digest(of)


@rows("driver, cuda, said", "steps.versions_that_do_not_fit_stop_the_bootstrap")
def test_versions_that_do_not_fit_stop_the_bootstrap(driver: str, cuda: str, said: str) -> None:
    """A GPU of that driver, in a container whose image says that it was made for that CUDA."""
    answers = {"tools": "\n".join(f"/bin/{tool}" for tool in bootstrap.REQUIRED), "cuda": cuda}
    answers["nvidia"] = f"Tesla T4, {driver}"
    text = "".join(f"{facts.MARKER} {name}\n{answer}\n" for name, answer in answers.items())
    result = NodeResult(node="worker-1", exit_code=0, stdout=text.encode())
    found = bootstrap.find_problem(result, container())
    assert found.startswith(said) if said else not found
    assert not bootstrap.find_problem(result)  # not a container: nobody asked for that CUDA


def apply(
    folder: Path, name: str, of: Accelerator | Node = Accelerator.NVIDIA, **commands: str
) -> subprocess.CompletedProcess[str]:
    """What a step does on a machine where these commands are so; every call is in `log`."""
    of = of if isinstance(of, Node) else machine(of)
    [step] = [s for s in chosen(of, Runtime.DOCKER) if s.name == name]
    usual = {
        "sudo": 'shift; [ "$1" != env ] || shift 2; "$@"',
        "sleep": "",
        "systemctl": "",
        "dpkg": "",
        "dpkg-query": "",
        "mkdir": "",
        "touch": "",
    }
    for command, text in (usual | commands).items():
        path = folder / command
        path.write_text(f'#!/bin/sh\necho "{command} $*" >>{folder}/log\n{text}\n')
        path.chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin"}
    text = f"set -eu\n{step.apply}"
    return subprocess.run(["sh"], input=text, text=True, capture_output=True, env=env)


@pytest.mark.parametrize("starts", [True, False])
def test_an_amd_gpu_counts_when_its_driver_has_started_it(tmp_path: Path, starts: bool) -> None:
    """/dev/kfd is there as soon as the module is loaded, also without the GPU's firmware."""
    answers = {"apt-get": "", "env": "", "modprobe": "", "dmesg": "echo amdgpu: firmware missing"}
    done = apply(tmp_path, "amd", Accelerator.AMD, grep=f"exit {int(not starts)}", **answers)
    log = (tmp_path / "log").read_text()
    assert "linux-firmware linux-modules-extra-" in log
    assert log.index("linux-firmware") < log.index("modprobe amdgpu")
    assert done.returncode == int(not starts)
    assert ("does not start the GPU" in done.stderr) is not starts


@rows("docker, said", "steps.a_gpu_counts_when_a_kernel_has_run_on_it")
def test_a_gpu_counts_when_a_kernel_has_run_on_it(tmp_path: Path, docker: str, said: str) -> None:
    """PyTorch finds the GPU of g4ad, and has no code for it: the first kernel says so."""
    done = apply(tmp_path, "kernel", Accelerator.AMD, docker=docker, timeout='shift; "$@"')
    assert done.returncode == int(bool(said))
    assert said in done.stderr
    assert ("some/image:1 runs no kernel on this GPU (gfx1011)" in done.stderr) is bool(said)


def test_the_first_boot_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    done = apply(tmp_path, "boot", timeout="exit 124", **{"cloud-init": ""})
    assert done.returncode == 1
    assert "cloud-init did not finish within 300 s" in done.stderr
    done = apply(tmp_path, "boot", timeout="exit 1", **{"cloud-init": "echo a module failed"})
    assert done.returncode == 0, "what bootstrap needs, its own steps tell"
    assert "a module failed" in done.stderr
    done = apply(tmp_path, "boot", timeout="", **{"cloud-init": ""})
    assert (done.returncode, done.stderr) == (0, "")
    assert "timeout 300 cloud-init status --wait" in (tmp_path / "log").read_text()


def test_upgrades_that_run_already_are_stopped(tmp_path: Path) -> None:
    assert apply(tmp_path, "upgrades").returncode == 0
    log = (tmp_path / "log").read_text()
    for unit in ("apt-daily.service", "apt-daily-upgrade.service"):
        assert log.index(f"systemctl stop {unit}") < log.index("dpkg --configure -a")
    assert log.index("disable --now apt-daily.timer") < log.index("stop apt-daily.service")


@pytest.mark.parametrize("package", ["nvidia-driver-570", ""])
def test_only_what_is_installed_is_held(tmp_path: Path, package: str) -> None:
    """dpkg knows names that others only mention; apt-mark complains of those."""
    listed = (
        f"[ -z '{package}' ] || echo installed {package}; echo not-installed nvidia-libopencl1-dev"
    )
    answer = f'case "$*" in *db:Status-Status*) {listed} ;; *) echo nvidia-libopencl1-dev ;; esac'
    assert apply(tmp_path, "upgrades", **{"dpkg-query": answer, "apt-mark": ""}).returncode == 0
    held = [
        line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("apt-mark")
    ]
    assert held == [f"apt-mark hold {package}"] * bool(package)


@pytest.mark.parametrize(("failures", "tried"), [(0, 1), (2, 3), (9, 4)])
def test_package_indexes_are_asked_for_again(tmp_path: Path, failures: int, tried: int) -> None:
    """And where one stays away, the package may still be there."""
    update = f'[ "$(grep -c "^apt-get .* update" {tmp_path}/log)" -gt {failures} ]'
    apt = f'case "$*" in *update) {update} || exit 100 ;; esac'
    apt += f"; case $* in *install*) cp {tmp_path}/sleep {tmp_path}/nvidia-ctk ;; esac"
    more = {"curl": "", "gpg": "", "tee": "cat >/dev/null", "apt-get": apt}
    done = apply(tmp_path, "nvidia", **more)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "log").read_text().splitlines()
    assert len([line for line in log if line.startswith("apt-get") and "update" in line]) == tried
    [installed] = [line for line in log if line.startswith("apt-get") and "install" in line]
    assert installed.endswith("nvidia-container-toolkit")


@rows("update, named", "steps.a_machine_without_a_way_to_the_internet_says_so")
def test_a_machine_without_a_way_to_the_internet_says_so(
    tmp_path: Path, update: str, named: bool
) -> None:
    """And not only that it knows no such package; nor does apt repeat what is repeated here."""
    (tmp_path / "said").write_text(f"Err:1 http://mirror jammy InRelease\n{update}\n")
    apt = f'case "$*" in *update) cat {tmp_path}/said; exit 100 ;; esac'
    apt += "; echo 'E: Unable to locate package docker.io' >&2; exit 100"
    done = apply(tmp_path, "docker", **{"apt-get": apt})
    assert done.returncode != 0
    last = explain(done.stdout + done.stderr)
    if named:
        assert last.startswith("no way to the internet for packages (look at the route table, the")
        assert last.endswith(update.partition(": ")[2])
    else:
        assert last == "E: Unable to locate package docker.io"
    log = (tmp_path / "log").read_text().splitlines()
    assert all("-o Acquire::Retries=0" in line for line in log if line.endswith(" update"))


def test_a_machine_without_its_deadline_is_no_node(tmp_path: Path) -> None:
    done = apply(tmp_path, "deadline", systemctl='[ "$1" != is-active ] || exit 3')
    assert done.returncode == 1
    assert "this machine would not shut down at its deadline" in done.stderr
    assert "enable --now clusterctl-deadline.service" in (tmp_path / "log").read_text()
    assert apply(tmp_path, "deadline").returncode == 0

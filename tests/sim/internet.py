"""What simulated machines see of the internet, as servers on the loopback: a registry with public
container images alone, Debian's packages, and the package index of Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clusterctl.actions import images
from clusterctl.machines import registry as machines_registry
from tests.conftest import Need
from tests.sim import registry
from tests.sim.ec2.full import INDEX_PORT, PACKAGES_PORT, REGISTRY_PORT
from tests.sim.ec2.network import IMDS
from tests.sim.engine import SUITE, Engine, cache, debian_mirror
from tests.sim.registry import Registry

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "openssh-server openssh-client python3 python3-venv python3-dev iproute2 procps zlib1g gcc g++"
    " libc6-dev make"
)
TRAVELS = ("clusterctl", "templates", "docker", "infra", "workloads")


@dataclass(frozen=True)
class Internet:
    """`ports`: of the simulated machines' network → those of the servers here."""

    registry: Registry
    ports: dict[int, int]
    engine: Engine
    need: Need

    def public_base(self) -> str:
        """Serves Debian as Docker Hub does; returns its digest. What the recipes install of its
        packages is there already, so that three machines do not unpack them on one disk;
        tests/images builds on a bare one. Others come from us."""
        source = f"deb http://{IMDS}:{PACKAGES_PORT}/debian {SUITE} main"
        recipe = (
            f"FROM {self.engine.base(self.need)}\n"
            f"RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y"
            f" --no-install-recommends {PACKAGES}\n"
            f"RUN rm -rf /var/lib/apt/lists/* && echo '{source}' >/etc/apt/sources.list\n"
        )
        image = self.engine.build("clusterctl-test/public", recipe)
        name, _, _ = machines_registry.read_downloads()["base"]["image"].partition("@")
        return self.registry.serve(f"library/{name}", image)

    def edition(self, folder: Path, digest: str) -> Path:
        """This checkout with two changes in docker/downloads.json: the base has this digest, for
        nobody can make another image with Debian's; and the 3 GB of wheels that only the image
        `nvidia` has are those of `cpu`. For PYTHONPATH."""
        for name in TRAVELS:
            left_out = shutil.ignore_patterns("__pycache__", ".terraform*")
            shutil.copytree(ROOT / name, folder / name, ignore=left_out)
        path = folder / "docker" / "downloads.json"
        listed = json.loads(path.read_text())
        listed["base"]["image"] = f"{listed['base']['image'].partition('@')[0]}@{digest}"
        for row in listed["wheels"]:
            others = [name for name in row["images"] if name != "nvidia"]
            row["images"] = [*others, "nvidia"] if "cpu" in others else others
        path.write_text(json.dumps(listed))
        return folder


@contextlib.contextmanager
def running(engine: Engine, need: Need, folder: Path) -> Iterator[Internet]:
    with contextlib.ExitStack() as until:
        served = until.enter_context(registry.running(engine, need, folder))
        packages = until.enter_context(_server(_Packages))
        index = until.enter_context(_server(partial(_Index, _wheels())))
        ports = {REGISTRY_PORT: served.port, PACKAGES_PORT: packages, INDEX_PORT: index}
        yield Internet(served, ports, engine, need)


@contextlib.contextmanager
def _server(handler: Any) -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, code: int, data: bytes, kind: str = "application/octet-stream") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Packages(_Handler):
    """Debian's mirror, with its packages in the test cache: three machines want the same."""

    def do_GET(self) -> None:
        kept = cache() / "packages" / self.path.rpartition("/")[2]
        if not self.path.endswith(".deb"):
            return self.answer(*self._fetched())
        if not kept.exists():
            code, data = self._fetched()
            if code != 200:
                return self.answer(code, data)
            kept.parent.mkdir(exist_ok=True)
            fresh = kept.with_name(f"{kept.name}.{threading.get_ident()}")
            fresh.write_bytes(data)
            fresh.replace(kept)
        self.answer(200, kept.read_bytes())

    def _fetched(self) -> tuple[int, bytes]:
        mirror = debian_mirror()
        if not mirror:
            return 502, b"this machine is no Debian: its sources name no mirror"
        try:
            with urllib.request.urlopen(
                mirror + self.path.removeprefix("/debian"), timeout=60
            ) as a:
                return 200, a.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, b""
        except OSError as error:
            return 502, str(error).encode()


class _Index(_Handler):
    """https://peps.python.org/pep-0503/"""

    def __init__(self, wheels: Path, *rest: Any) -> None:
        self._wheels = wheels
        super().__init__(*rest)

    def do_GET(self) -> None:
        match = re.fullmatch(r"/simple/([a-z0-9-]+)/", self.path)
        file = self._wheels / urllib.parse.unquote(self.path.rpartition("/")[2])
        if match:
            names = [path.name for path in self._wheels.glob("*.whl") if _project(path) == match[1]]
            links = "".join(f'<a href="/files/{name}">{name}</a>\n' for name in names)
            self.answer(200 if names else 404, f"<!DOCTYPE html>{links}".encode(), "text/html")
        elif self.path.startswith("/files/") and file.is_file():
            self.answer(200, file.read_bytes())
        else:
            self.answer(404, b"")


def _project(wheel: Path) -> str:
    return re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()


def _wheels() -> Path:
    """A folder with what the images `launcher` and `cpu` take, from this machine's own index."""
    listed = machines_registry.read_downloads()
    wanted = machines_registry.list_requirements("cpu", listed)
    folder = cache() / f"wheels-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if not folder.exists():
        fresh = folder.with_suffix(f".{os.getpid()}")
        fresh.mkdir()
        file = fresh / "requirements.txt"
        file.write_text(wanted)
        argv = images.make_pip_argv(file, fresh, listed)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
        if done.returncode:
            argv += ["--extra-index-url", listed["index"]["cpu"]]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        with contextlib.suppress(OSError):  # another process was faster
            fresh.rename(folder)
    return folder

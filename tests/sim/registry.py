"""Debian's registry server, on the loopback, with its blobs in the test cache."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Need
from tests.sim.engine import Engine, cache


@dataclass(frozen=True)
class Registry:
    port: int
    engine: Engine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, reference: str, image: str) -> str:
        """Offers the engine's `image` under a name such as `team/cpu:1`; returns its digest."""
        name = f"127.0.0.1:{self.port}/{reference}"
        self.engine("tag", image, name)
        try:
            said = self.engine("push", name, seconds=600)
        finally:
            self.engine("rmi", "--no-prune", name)
        found = re.search(r"digest: (sha256:[0-9a-f]{64})", said)
        assert found, said
        return found[1]


@contextlib.contextmanager
def running(
    engine: Engine, need: Need, folder: Path, users: Path | None = None
) -> Iterator[Registry]:
    """The packaged configuration asks for a password; ours is four settings. `users`: a file of
    htpasswd's, for a registry that lets nobody else in."""
    program = need("docker-registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    blobs = cache() / "registry"
    settings = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(blobs)}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    if users:
        settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(users)}}
    configuration = folder / "registry.yml"
    configuration.write_text(json.dumps(settings))  # which is YAML too
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", program, "serve", str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 60
        while not _answers(port):
            said = (folder / "registry.log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < until, said
            time.sleep(0.05)
        yield Registry(port, engine)
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/v2/", timeout=2) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 401  # it wants a password
    except OSError:
        return False

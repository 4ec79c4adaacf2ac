"""A Docker engine for tests: the one that runs, else one of our own, stopped again afterwards.

Ours keeps its data in the test cache, so that a second run finds its images again. It makes no
bridge and no firewall rules: containers are built with the network of this machine, and run with
it, with none, or with cables of ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import Need

SUITE = "bookworm"
INCLUDED = "ca-certificates"

_GIVEN = {name: os.environ.get(name) for name in ("CLUSTERCTL_TEST_CACHE", "XDG_CACHE_HOME")}
"""Read at import, by the plug-in: tests see neither."""


def home() -> Path:
    """Of the person who runs the tests; $HOME is a test's own."""
    return Path(pwd.getpwuid(os.geteuid()).pw_dir)


def cache() -> Path:
    """What outlives a run: $CLUSTERCTL_TEST_CACHE, else a folder in the user's cache."""
    usual = Path(_GIVEN["XDG_CACHE_HOME"] or home() / ".cache") / "clusterctl-tests"
    folder = Path(_GIVEN["CLUSTERCTL_TEST_CACHE"] or usual)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class Engine:
    """`environment` is what makes `docker` find it."""

    docker: str
    environment: dict[str, str]

    def try_(
        self, *words: str, stdin: bytes = b"", seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.docker, *words],
            env={**os.environ, **self.environment},
            input=stdin,
            capture_output=True,
            timeout=seconds,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, _text(done.stdout), _text(done.stderr)
        )

    def __call__(self, *words: str, stdin: bytes = b"", seconds: float = 120) -> str:
        """`docker WORDS`, which has to succeed; what it said."""
        done = self.try_(*words, stdin=stdin, seconds=seconds)
        tail = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.returncode}\n{tail}"
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        return self.try_("image", "inspect", image).returncode == 0

    def build(self, tag: str, dockerfile: str, seconds: float = 900) -> str:
        """An image from a recipe without a context; made once for each text."""
        digest = hashlib.sha256(dockerfile.encode()).hexdigest()[:12]
        name = f"{tag}:{digest}"
        if not self.has(name):
            words = ["build", "--network", "host", "-t", name, *proxies(), "-"]
            self(*words, stdin=dockerfile.encode(), seconds=seconds)
        return name

    def base(self, need: Need) -> str:
        """A bare Debian, made from the distribution's packages: no registry has to be reached."""
        name = f"clusterctl-test/debian:{SUITE}"
        if self.has(name):
            return name
        mirror = debian_mirror()
        recipe = f"{SUITE} {INCLUDED} {mirror}"
        archive = cache() / f"debian-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.tar"
        if not archive.exists():
            debootstrap = need("debootstrap")
            with tempfile.TemporaryDirectory(dir=cache()) as folder:
                root = f"{folder}/root"
                argv = [
                    debootstrap,
                    "--variant=minbase",
                    f"--include={INCLUDED}",
                    SUITE,
                    root,
                    *([mirror] if mirror else []),
                ]
                done = subprocess.run(argv, capture_output=True, text=True, timeout=900)
                assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
                _tidy(Path(root), mirror)
                fresh = f"{folder}/fresh.tar"
                subprocess.run(["tar", "-C", root, "-cf", fresh, "."], check=True, timeout=300)
                os.replace(fresh, archive)
        self("import", str(archive), name, seconds=300)
        return name


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _tidy(root: Path, mirror: str) -> None:
    """What Docker's own Debian images do too: no documentation, no services at installation."""
    if mirror:
        sources = [f"deb {mirror} {SUITE} main", f"deb {mirror} {SUITE}-updates main"]
        (root / "etc/apt/sources.list").write_text("\n".join([*sources, ""]))
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    left_out = ("path-exclude /usr/share/doc/*", "path-exclude /usr/share/man/*")
    (root / "etc/dpkg/dpkg.cfg.d/lean").write_text("\n".join([*left_out, ""]))
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)


def debian_mirror() -> str:
    """The one that this machine's own packages come from, if it is a Debian; else nothing, which
    means debootstrap's own choice."""
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    for file in files:
        if file.is_file():
            for line in file.read_text(errors="replace").splitlines():
                found = re.search(r"(https?://\S+/debian)/?(\s|$)", line)
                if found and not line.lstrip().startswith("#"):
                    return found[1]
    return ""


def proxies() -> list[str]:
    """Build arguments that hand this machine's proxies on."""
    names = ("http_proxy", "https_proxy", "no_proxy")
    return [word for name in names if os.environ.get(name) for word in ("--build-arg", name)]


@contextlib.contextmanager
def _let_containers_meet(iptables: str) -> Iterator[None]:
    """As an engine with rules of its own does: one that ran here before may have closed the
    machine's forwarding, which Linux asks about packets within a bridge, too."""
    rule = ("FORWARD", "-i", "br-+", "-o", "br-+", "-j", "ACCEPT")
    subprocess.run([iptables, "--wait", "-I", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run([iptables, "--wait", "-D", *rule], check=True)


@contextlib.contextmanager
def running(need: Need) -> Iterator[Engine]:
    """An engine. One of ours is alone in its cache: another run of tests has to wait for it."""
    docker = need("docker")
    known = Engine(docker, {})
    if known.try_("info").returncode == 0:
        yield known
        return
    need(os.geteuid() == 0, "needs a Docker engine, or root to start one")
    dockerd = need("dockerd")
    folder = cache() / "docker"
    folder.mkdir(exist_ok=True)
    with (cache() / "docker.lock").open("w") as lock, tempfile.TemporaryDirectory() as run:
        fcntl.flock(lock, fcntl.LOCK_EX)
        socket = f"unix://{run}/docker.sock"
        argv = [
            *("setpriv", "--pdeathsig", "TERM", "--"),
            # What it mounts goes with it; what this machine mounts it sees.
            *("unshare", "--mount", "--propagation", "slave", "--", dockerd),
            *("--data-root", str(folder), "--exec-root", f"{run}/exec", "-H", socket),
            *("--pidfile", f"{run}/pid", "--bridge=none", "--iptables=false", "--ip6tables=false"),
        ]
        with (cache() / "dockerd.log").open("wb") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            engine = Engine(docker, {"DOCKER_HOST": socket})
            until = time.monotonic() + 60
            while engine.try_("info").returncode:
                tail = (cache() / "dockerd.log").read_text()[-2000:]
                assert process.poll() is None, tail
                assert time.monotonic() < until, tail
                time.sleep(0.1)
            with _let_containers_meet(need("iptables")):
                yield engine
        finally:
            process.terminate()
            process.wait(60)

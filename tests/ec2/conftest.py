"""clusterctl against the simulated EC2: real Terraform, real hosts, one state home per test."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core import assets
from tests.e2e.cli import BUSY, Done, wait_for
from tests.ec2 import receipts
from tests.sim import hub as hubs
from tests.sim.ec2.client import Ec2
from tests.sim.ec2.iam import allows
from tests.sim.ec2.network import YOU
from tests.sim.hub import Hub
from tests.warm.client import Late, shared

LONGEST = 300
"""Seconds for one command: less than a test has, so that it can say what the command has said."""

OUTSIDE = f"{YOU}/32"
"""From where the simulated launchers are reached."""


SAVES = """#!/bin/sh
trap 'echo saved its work | tee saved; kill $!; exit 0' TERM
echo at work
sleep 3000 & wait
"""
"""A program that waits for SIGTERM without computing, and then makes a file."""


class World:
    """One person's machine beside a cloud: `run` is the command line. Terraform was initialised
    there, and its provider stays from one command to the next."""

    wait = staticmethod(wait_for)

    def __init__(self, ec2: Ec2, hub: Hub, folder: Path, initialised: Path) -> None:
        self.ec2 = ec2
        self.hub = hub
        self.home = folder / "clusterctl"
        self.home.mkdir(mode=0o700)
        shutil.copytree(initialised, self.home / initialised.name, symlinks=True)
        self.env = {
            **os.environ,
            **ec2.quick_env,
            "HOME": str(folder),
            "CLUSTERCTL_HOME": str(self.home),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "CLUSTERCTL_DOCKER_HUB": hub.url,
            "NO_COLOR": "1",
        }
        self.settings = folder / "config" / "clusterctl" / "clusterctl.toml"
        self.settings.parent.mkdir(parents=True)
        self.settings.write_text(f'[up]\nssh_cidr = "{OUTSIDE}"\n')
        self._folder = folder
        self.hung = False
        self.late = receipts.LATE

    def on_the_first_day(self) -> None:
        """Nothing is initialised, and Terraform starts its provider itself: it can be interrupted
        then, and two can run at once."""
        shutil.rmtree(self.home)
        self.keep_provider(False)

    def keep_provider(self, keep: bool = True) -> None:
        """For commands that come one after the other and are not interrupted."""
        self.env["PATH"] = self.ec2.quick_env["PATH"] if keep else os.environ["PATH"]

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "clusterctl", *words],
            cwd=self._folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **more,
        )

    def run(self, *words: str, timeout: float = 170) -> Done:
        limit = min(timeout * BUSY, LONGEST)
        argv = ["-m", "clusterctl", *words]
        try:
            done = shared().run(argv, cwd=self._folder, env=self.env, timeout=limit)
        except Late as late:
            said = str(late)
        else:
            return Done(words, done.returncode, done.stdout, done.stderr)
        self.hung = True
        # Without the source of this: what it says has to fit in what a CI shows.
        pytest.fail(f"{said}\n{self.ec2.doing()}", pytrace=False)

    def ok(self, *words: str, timeout: float = 170) -> Done:
        done = self.run(*words, timeout=timeout)
        assert done.code == 0, f"{words}: {done.code}\n{done.out}\n{done.err}\n{self.ec2.failures}"
        return done

    def program(self, name: str, text: str) -> str:
        """Writes one, in a folder of its own; its path."""
        path = self._folder / "project" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def wait_for_unused(self, seconds: float) -> None:
        """Until workers that nobody uses have ended, and `status` says why."""
        self.wait(lambda: len(self.ec2.machines) == 1, seconds, "workers that end unused")

        def told() -> list[str]:
            return list(self.ok("status", "--json").document()["warnings"])

        self.wait(lambda: any("after 1 min idle" in line for line in told()), 90, "the reason")

    def record(self, name: str = "default") -> dict[str, Any]:
        path = self.home / "clusters" / name / "cluster.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def policy() -> dict[str, Any]:
    """The rights that a person gives to who uses clusterctl."""
    text = (assets.find_folder("infra") / "ec2" / "policy.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Docker Hub, as far as it is asked what an image is."""
    with hubs.running() as found:
        found.serve_bases()
        yield found


@pytest.fixture
def world(ec2: Ec2, hub: Hub, initialised: Path, tmp_path: Path) -> Iterator[World]:
    """Whoever uses it has the rights of infra/ec2/policy.json, and no others. Afterwards nothing
    may be left in the cloud. EC2_CALLS names a file that gets the names of all calls."""
    ec2.forget_calls()
    ec2.policy(policy())
    ec2.make_role()
    world = World(ec2, hub, tmp_path, initialised)
    try:
        yield world
        if world.hung:
            return  # and has said what there is to say
        assert ec2.left() == []
        assert receipts.differences(world.home, ec2.bill, world.late) == []
        rights = policy()
        mine = [call for call in ec2.calls if not call["administrator"]]
        denied = [ask for call in mine for ask in call["asks"] if not allows(rights, **ask)]
        assert denied == [], "infra/ec2/policy.json does not allow what was asked for"
        if record := os.environ.get("EC2_CALLS"):
            with Path(record).open("a") as file:
                file.writelines(f"{call['action']}\n" for call in mine)
    finally:
        ec2.policy(None)
        ec2.clear()
        ec2.reset()


def cut_power(world: World, words: Sequence[str], when: Callable[[], bool]) -> None:
    """Of an `up` at that moment: it ends with all that it has started."""
    world.keep_provider(False)
    world.ec2.forget_calls()
    up = world.start(*words)
    world.wait(when, 100, "the moment")
    up.kill()
    for folder in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if world.home in folder.readlink().parents:
                os.kill(int(folder.parent.name), signal.SIGKILL)
    up.communicate()
    world.keep_provider()

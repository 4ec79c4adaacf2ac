"""One process of Terraform's AWS provider for all commands of a simulator.

Terraform starts its provider several times for each `apply`, and each start costs a second of
processor time before anything is asked. One in debug mode stays, and TF_REATTACH_PROVIDERS says
where; to read all of its schema costs another second each time, so `schema.py` stands before it.
The provider has one configuration at a time: this is for one Terraform after the other, and for
none that is interrupted.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from clusterctl.core import assets
from tests.sim.ec2.hurry import find_waits, hurry

PLACE = Path("registry.terraform.io/hashicorp/aws")

COMMAND = """#!/bin/sh
case $1 in
plan | apply | destroy | test) export TF_REATTACH_PROVIDERS={attach} ;;
esac
exec {terraform} "$@"
"""


def programs(mirror: Path) -> list[Path]:
    """The provider, unpacked, in the versions that our module takes."""
    return sorted((mirror / PLACE).glob("5.*/*/terraform-provider-aws_v*"))


def types() -> list[str]:
    """The resources and data sources of our module."""
    texts = (path.read_text() for path in (assets.find_folder("infra") / "ec2").glob("*.tf"))
    return re.findall(r'^(?:resource|data) "(\w+)"', "".join(texts), re.MULTILINE)


class StayingProvider:
    """`env` is what makes Terraform use it."""

    def __init__(self, terraform: str, program: Path, folder: Path, env: Mapping[str, str]) -> None:
        self._end = ExitStack()
        # Without AWS_CA_BUNDLE: its second configuration would fail over that.
        env_of_provider = {**os.environ, **env}
        env_of_provider.pop("AWS_CA_BUNDLE", None)
        attach = self._start(
            [str(program), "-debug"],
            r"TF_REATTACH_PROVIDERS='(.+)'",
            folder / "provider.log",
            env=env_of_provider,
        )
        hurry(json.loads(attach)[PLACE.as_posix()]["Pid"], find_waits(program))
        found = re.search(r'"String":"(.+?)"', attach)
        assert found, attach
        listens = found[1]
        socket = Path(f"{listens}.schema")
        self._end.callback(socket.unlink, missing_ok=True)
        self._start(
            [sys.executable, "-m", "tests.sim.ec2.schema", str(socket), listens, *types()],
            "(ready)",
            folder / "schema.log",
            cwd=Path(__file__).parents[3],
        )
        command = folder / "bin" / Path(terraform).name
        command.parent.mkdir()
        attach = shlex.quote(attach.replace(listens, str(socket)))
        command.write_text(COMMAND.format(attach=attach, terraform=shlex.quote(terraform)))
        command.chmod(0o755)
        self.env = {**env, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}

    def _start(
        self,
        argv: list[str],
        ready: str,
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> str:
        """Until it says `ready`: what the group in that is."""
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._end.callback(process.wait)
        self._end.callback(process.kill)
        until = time.monotonic() + 60
        while True:
            said = log.read_text(errors="replace")
            if found := re.search(ready, said):
                return found[1]
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{argv[0]} did not start: {said[-4000:]}")
            time.sleep(0.05)

    def close(self) -> None:
        self._end.close()

"""One process of Terraform's AWS provider for all commands of a simulator.

Terraform starts its provider several times for each `apply`, and each start costs a second of
processor time before anything is asked. One in debug mode stays, and TF_REATTACH_PROVIDERS says
where. It has one configuration at a time: this is for one Terraform after the other, and for none
that is interrupted.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

PLACE = Path("registry.terraform.io/hashicorp/aws")

COMMAND = """#!/bin/sh
case $1 in
apply | destroy) export TF_REATTACH_PROVIDERS={attach} ;;
esac
exec {terraform} "$@"
"""


def programs(mirror: Path) -> list[Path]:
    """The provider, unpacked, in the versions that our module takes."""
    return sorted((mirror / PLACE).glob("5.*/*/terraform-provider-aws_v*"))


class StayingProvider:
    """`env` is what makes Terraform use it."""

    def __init__(self, terraform: str, program: Path, folder: Path, env: Mapping[str, str]) -> None:
        self._log = folder / "provider.log"
        environment = {**os.environ, **env}
        environment.pop("AWS_CA_BUNDLE", None)  # its second configuration would fail over that
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(program), "-debug"],
                env={
                    name: value
                    for name, value in {**os.environ, **env}.items()
                    if name != "AWS_CA_BUNDLE"
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        command = folder / "bin" / Path(terraform).name
        command.parent.mkdir()
        attach = shlex.quote(self._attach())
        command.write_text(COMMAND.format(attach=attach, terraform=shlex.quote(terraform)))
        command.chmod(0o755)
        self.env = {**env, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}

    def _attach(self) -> str:
        until = time.monotonic() + 60
        while True:
            said = self._log.read_text(errors="replace")
            if found := re.search(r"TF_REATTACH_PROVIDERS='(.+)'", said):
                return found[1]
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the provider did not start: {said[-4000:]}")
            time.sleep(0.05)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

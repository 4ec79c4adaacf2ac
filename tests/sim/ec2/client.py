"""The simulator as the tests see it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clusterctl.core import assets
from clusterctl.machines.ec2 import schedules
from clusterctl.terraform import binary
from tests.conftest import find
from tests.sim import internet
from tests.sim.ec2.full import dockerfile
from tests.sim.ec2.provider import PLACE, StayingProvider, programs
from tests.sim.ec2.server import ADMINISTRATOR
from tests.sim.engine import cache, home
from tests.warm.late import stacks

if TYPE_CHECKING:
    from tests.conftest import Need
    from tests.sim.engine import Engine
    from tests.sim.internet import Internet

CHECKOUT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Machine:
    """`pid` is a process of it, seen from here; `up`: its sshd listens."""

    id: str
    name: str
    private: str
    public: str | None
    hostname: str
    pid: int | None
    up: bool
    log: str

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Runs something in the machine, as root and behind everybody's back."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        enter = ["nsenter", "--target", children[0], "--all", "--"]
        return subprocess.run([*enter, *argv], capture_output=True, text=True, timeout=60)


class Ec2:
    """A simulated EC2. `env` is all that a program needs to find it."""

    _provider: StayingProvider | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = (folder / "simulator.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sim.ec2", str(folder)],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the tests: they end it
        )
        self._base = f"http://127.0.0.1:{self._port()}"
        self.env = {
            "AWS_ENDPOINT_URL": self._base,
            "AWS_ACCESS_KEY_ID": "AKIASIMULATED",
            "AWS_SECRET_ACCESS_KEY": "simulated",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            **terraform_environment(folder),
        }

    def _port(self) -> str:
        until = time.monotonic() + 60
        while not (self._folder / "port").exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the simulator did not start: {self.log()}")
            time.sleep(0.05)
        return (self._folder / "port").read_text()

    def log(self) -> str:
        return (self._folder / "simulator.log").read_text(errors="replace")[-8000:]

    def doing(self) -> str:
        """What it does, for who looks into a failure: also one that does not answer."""
        machines = "its machines: no answer"
        with contextlib.suppress(OSError, RuntimeError):
            machines = f"its machines: {self._ask('machines', timeout=5)}"
        routes = subprocess.run(["ip", "route"], capture_output=True, text=True, timeout=20).stdout
        return f"simulator {stacks(self._process.pid)}\n{machines}\n{routes}\n{self.log()}"

    @cached_property
    def quick_env(self) -> dict[str, str]:
        """`env`, and a Terraform whose provider stays: for one command after the other."""
        mirror = provider_mirror()
        terraform = find("terraform") or find("tofu")
        found = programs(mirror) if mirror else []
        if not (terraform and found):
            return self.env
        self._provider = StayingProvider(terraform, found[-1], self._folder, self.env)
        return self._provider.env

    def close(self) -> None:
        if self._provider:
            self._provider.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ask(self, verb: str, *, timeout: float = 60, **said: Any) -> Any:
        request = urllib.request.Request(
            f"{self._base}/_sim/{verb}", json.dumps(said).encode(), method="POST"
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as failed:
            raise RuntimeError(f"{verb}: {failed.read().decode()}") from None

    def client(self, service: str, region: str = "us-east-1") -> Any:
        """A boto3 client of it, who may do anything."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            cast(Any, service),
            region_name=region,
            endpoint_url=self._base,
            aws_access_key_id=ADMINISTRATOR,
            aws_secret_access_key=self.env["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"total_max_attempts": 1}, proxies={}),
        )

    def fault(self, kind: str, **how: Any) -> None:
        """Something goes wrong from now on: the table in `faults.py`."""
        self._ask("fault", kind=kind, **how)

    def grant(self, vcpus: int, code: str = "L-DB2E81BA") -> None:
        """AWS has raised a quota, usually that for machines with GPUs. Until `reset`."""
        self._ask("grant", code=code, vcpus=vcpus)

    def grant_cpus(self, vcpus: int = 256) -> None:
        """As above, those for machines without GPUs: on demand, and as spot instances."""
        for code in ("L-1216C47A", "L-34B43A08"):
            self.grant(vcpus, code)

    def clear(self) -> None:
        """Nothing goes wrong any more. What went wrong stays so."""
        self._ask("clear")

    @property
    def machines(self) -> dict[str, Machine]:
        """The machines that run, by the id of their instance."""
        return {id: Machine(**one) for id, one in self._ask("machines")["machines"].items()}

    def machine(self, name: str) -> Machine:
        """The one of this node name, or Name."""
        found = [one for one in self.machines.values() if one.name == name]
        if len(found) != 1:
            raise LookupError(f"{len(found)} machines are called {name}: {self.failures}")
        return found[0]

    @property
    def failures(self) -> dict[str, str]:
        """Machines that ended otherwise than by being switched off, and what they said."""
        return dict(self._ask("machines")["failures"])

    def wait(self, count: int, seconds: float = 30) -> dict[str, Machine]:
        """Until so many machines are up, and no other is there."""
        until = time.monotonic() + seconds
        while True:
            machines = self.machines
            if len(machines) == count and all(one.up for one in machines.values()):
                return machines
            if time.monotonic() > until:
                raise TimeoutError(f"{machines} {self.failures} {self.log()}")
            time.sleep(0.05)

    def offer_tunnels(self) -> str:
        """The folder of an `aws` that opens connections through endpoints."""
        return str(self._ask("tunnels")["folder"])

    @property
    def tunnels(self) -> int:
        """How many connections through endpoints are open."""
        return int(self._ask("tunnels")["open"])

    def cut_tunnels(self) -> int:
        """Ends them as a network does; how many there were."""
        return int(self._ask("cut_tunnels"))

    def policy(self, document: dict[str, Any] | None) -> None:
        """All that whoever uses `env` may do from now on; None: anything."""
        self._ask("policy", document=document)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """All calls of the API since `forget_calls`: `action` is what a policy calls it, and `asks`
        what IAM is asked about it."""
        return list(self._ask("calls"))

    @property
    def actions(self) -> set[str]:
        return {call["action"] for call in self.calls}

    def forget_calls(self) -> None:
        self._ask("forget")

    def forget_ended(self) -> None:
        """An hour has passed for EC2: it does not show ended machines any more."""
        self._ask("forget_ended")

    def refill(self) -> None:
        """Forgets how often what EC2 rations was called, for tests that are not about that."""
        self._ask("refill")

    @property
    def schedules(self) -> dict[str, dict[str, float]]:
        """Group of schedules → instance → when AWS ends it."""
        return dict(self._ask("schedules"))

    @property
    def group_tags(self) -> dict[str, dict[str, str]]:
        """Group of schedules → its tags."""
        return dict(self._ask("group_tags"))

    def turn_the_scheduler_ahead(self, seconds: float) -> None:
        """Its clock, and nobody else's."""
        self._ask("ahead", seconds=seconds)

    def make_role(self) -> None:
        """An administrator has run `up` in the account, or made the role by hand."""
        iam = self.client("iam")
        infra = assets.find_folder("infra") / "ec2"
        with contextlib.suppress(iam.exceptions.EntityAlreadyExistsException):
            iam.create_role(
                RoleName=schedules.ROLE,
                AssumeRolePolicyDocument=(infra / "deadline-trust.json").read_text(),
            )
        iam.put_role_policy(
            RoleName=schedules.ROLE,
            PolicyName=schedules.POLICY,
            PolicyDocument=(infra / "deadline-role.json").read_text(),
        )

    def remove_role(self) -> None:
        iam = self.client("iam")
        with contextlib.suppress(iam.exceptions.NoSuchEntityException):
            iam.delete_role_policy(RoleName=schedules.ROLE, PolicyName=schedules.POLICY)
        with contextlib.suppress(iam.exceptions.NoSuchEntityException):
            iam.delete_role(RoleName=schedules.ROLE)

    def left(self) -> list[str]:
        """Whatever exists, tagged or not: one line each. Empty is what `down` has to reach."""
        return list(self._ask("left"))

    @property
    def bill(self) -> list[dict[str, Any]]:
        """What AWS would charge until now: the fields of `bill.Use`, its seconds and its USD."""
        return list(self._ask("bill"))

    def reset(self) -> None:
        """A new world, whatever was there."""
        self._ask("reset")
        self.wait(0)

    def internet(self, ports: dict[int, int]) -> None:
        """What networks that are made from now on see of the internet: ports of 169.254.169.254,
        each one of this machine's."""
        self._ask("internet", ports=ports)

    @contextlib.contextmanager
    def full(self, engine: Engine, need: Need) -> Iterator[Internet]:
        """New instances become full machines meanwhile. Hands out what they see of the internet."""
        image = engine.build("clusterctl-test/machine", dockerfile(engine.base(need)))
        with internet.running(engine, need, self._folder) as served:
            host = engine.environment.get("DOCKER_HOST", "")
            self._ask("full", image=image, host=host, ports=served.ports)
            try:
                yield served
            finally:
                self._ask("light")


def terraform_environment(folder: Path) -> dict[str, str]:
    """Terraform's set-up: the provider from this disk where it is found, and no one's own file."""
    configuration = folder / "terraformrc"
    mirror = provider_mirror()
    if mirror is None:
        text = "disable_checkpoint = true\n"
    else:
        include = f'path = {json.dumps(str(mirror))}\n    include = ["hashicorp/aws"]'
        direct = 'exclude = ["hashicorp/aws"]'
        text = (
            "disable_checkpoint = true\n"
            f"provider_installation {{\n  filesystem_mirror {{\n    {include}\n  }}\n"
            f"  direct {{\n    {direct}\n  }}\n}}\n"
        )
    configuration.write_text(text)
    # A download of 700 MB is kept; from a mirror Terraform makes links.
    plugins = folder / "plugins" if mirror else cache() / "terraform"
    plugins.mkdir(exist_ok=True)
    return {
        "TF_CLI_CONFIG_FILE": str(configuration),
        "TF_PLUGIN_CACHE_DIR": str(plugins),
        "CHECKPOINT_DISABLE": "1",
        # A quarter less processor time, for more memory.
        "GOGC": "off",
        "GOMEMLIMIT": "1GiB",
        "GOMAXPROCS": "1",
    }


def initialise(ec2: Ec2, folder: Path) -> Path:
    """What `terraform init` leaves in a state home, made in this folder; nothing without
    Terraform."""
    plugins = folder / "terraform-plugins"
    if not (find("terraform") or find("tofu")):
        plugins.mkdir()
        return plugins
    before = dict(os.environ)
    os.environ.update(ec2.env)
    try:
        made = binary.InitCache(
            assets.find_folder("infra") / "ec2", binary.find_terraform(), plugins
        )
        made.make()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return made.folder.parent


def provider_mirror() -> Path | None:
    """A folder that serves as Terraform's file system mirror, if this machine has one with the
    provider for AWS in it.
    """
    usual = [
        Path(os.environ["TF_PLUGIN_MIRROR"]) if os.environ.get("TF_PLUGIN_MIRROR") else None,
        home() / ".terraform.d/plugins",
        Path("/usr/local/share/terraform/plugins"),
        Path("/usr/share/terraform/plugins"),
    ]
    for place in usual:
        if place and any((place / PLACE).glob("*/*")):
            return place
    # Not `find /`: three levels below the folders where software is put take no time.
    for top in ("/opt", "/srv", "/usr/local", "/var/lib", "/usr/share", "/usr/lib", "/var/cache"):
        for depth in ("", "*/", "*/*/"):
            for found in sorted(Path(top).glob(f"{depth}{PLACE}")):
                if any(found.glob("*/*")):
                    return found.parents[2]
    return None

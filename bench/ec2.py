# ruff: noqa: E402
"""What clusterctl adds to Terraform on EC2, and what it saves against an ansible playbook.

    python bench/ec2.py [--out bench/results/ec2.json]

Against the simulated EC2 of tests/sim: real Terraform, real AWS provider, real SSH. Needs root,
terraform and the extra `dev`; `ansible-playbook` on PATH, or $ANSIBLE_PLAYBOOK, for the comparison.
About ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from clusterctl.core import assets
from clusterctl.core.model import Cluster, ClusterSpec, NodeGroup, Phase, Role
from clusterctl.insight import cost
from clusterctl.machines.ec2 import prices, spec
from clusterctl.machines.ec2.prices import Quote
from clusterctl.state.home import Home
from clusterctl.state.store import Store
from tests.sim.ec2.client import Ec2
from tests.sim.ec2.network import YOU

WORKERS = 8
LARGE = 64
STANDARD = "L-1216C47A"
"""The quota of the types that are no GPU machines."""
BOOT = 2
"""Seconds that `up` waits for machines that never boot."""
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - command: systemctl disable --now unattended-upgrades.service
      become: true
      ignore_errors: true
    - file: {path: "~/.ansible-made/bin", state: directory, mode: "0700"}
    - lineinfile: {path: ~/.ssh/authorized_keys, line: "{{ mesh }}"}
    - copy: {content: "{{ item }}", dest: "~/.ansible-made/bin/{{ item }}", mode: "0700"}
      loop: [mesh, mesh.pub, config, known_hosts, agent, free-port]
    - command: python3 -c "import torch.version, mpi4py"
    - setup: {gather_subset: [hardware, network]}
"""
"""The steps of the bootstrap that these nodes need, as one would write them."""


@dataclass(frozen=True)
class Row:
    """`value` in `unit`; `limit` is an upper one unless `least`."""

    what: str
    value: float
    unit: str
    limit: float
    against: str
    least: bool = False

    @property
    def ok(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "ec2.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", action="store_true", help="only measure how `up` grows")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [] if options.growth else [*thousand(folder / "records")]
        cloud = folder / "cloud"
        cloud.mkdir()
        ec2 = Ec2(cloud)
        ec2.grant_cpus(4096)
        try:
            if not options.growth:
                rows += until_ssh(ec2, folder, options.rounds)
                rows += bootstrap(ec2, folder)
            rows += growth(ec2, folder)
        finally:
            ec2.close()
    version = platform.python_version()
    today = time.strftime("%Y-%m-%d")
    kept = json.loads(options.out.read_text())["rows"] if options.growth else []
    fresh = {row.what for row in rows}
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {version}",
        "rows": [row for row in kept if row["what"] not in fresh]
        + [
            {**asdict(row), "value": round(row.value, 3), "ok": row.ok, "date": today, "load": load}
            for row in rows
        ],
    }
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for row in rows:
        mark = "" if row.ok else "   OVER ITS LIMIT"
        print(f"{row.what}: {row.value:.3g} {row.unit} (limit {row.limit:g}, {row.against}){mark}")
    return 0 if all(row.ok for row in rows) else 1


def thousand(folder: Path) -> list[Row]:
    """Plan, table, record and money of 1,000 workers; no process, no network."""
    wish = ClusterSpec(name="big", provider="ec2", groups=(NodeGroup(count=1000, family="g4dn"),))
    dollars = {"g4dn.xlarge": 0.526, "t3.micro": 0.0104, prices.DISK: 0.08, prices.ADDRESS: 0.005}
    quotes = {item: Quote(price, "a list") for item, price in dollars.items()}

    def planned() -> None:
        machines = spec.plan_machines(wish, {}, {})
        charges = prices.build_charges(machines, quotes, 0.0)
        prices.render_table(machines, charges, "us-east-1a", 8 * 3600)

    machines = spec.plan_machines(wish, {}, {})
    charges = prices.build_charges(machines, quotes, 0.0)
    from tests.unit.making import node

    nodes = tuple(
        replace(
            node(machine.name, f"10.64.{index // 250}.{index % 250 + 1}"),
            role=Role.LAUNCHER if index == 0 else Role.WORKER,
        )
        for index, machine in enumerate(machines)
    )
    cluster = Cluster(
        id="big-1", spec=wish, phase=Phase.READY, created=0.0, nodes=nodes, charges=charges
    )
    store = Store(Home(folder))

    def recorded() -> None:
        store.save(cluster)
        found = store.read_cluster("big")
        cost.sum_dollars(found.charges, 1e4)
        cost.make_receipt(found.charges, 1e4)

    return [
        Row("plan and table of 1,000 workers", 1000 * best(planned), "ms", 50, "absolute"),
        Row("record and money of 1,000 workers", 1000 * best(recorded), "ms", 50, "absolute"),
    ]


def best(action: Callable[[], None], rounds: int = 9) -> float:
    """The least of some seconds: whatever else the machine does only adds."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def environment(ec2: Ec2, folder: Path) -> dict[str, str]:
    settings = folder / "config" / "clusterctl" / "clusterctl.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'[up]\nssh_cidr = "{YOU}/32"\n')
    return {
        **os.environ,
        **ec2.env,
        "HOME": str(folder),
        "CLUSTERCTL_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "PYTHONPATH": str(ROOT),
    }


def ctl(ec2: Ec2, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "clusterctl", *words]
    done = subprocess.run(argv, env=environment(ec2, folder), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr}")
    return done


def until_ssh(ec2: Ec2, folder: Path, rounds: int) -> list[Row]:
    """`up` from its start until all nodes answer over SSH, against `terraform init` and `apply` of
    the same variables until the launcher's port is open. The two take turns, each in a folder and
    a state home where nothing is installed yet."""
    ours, raw = [], []
    for number in range(rounds):
        home = folder / f"round-{number}"
        home.mkdir()
        done = ctl(ec2, home, "up", "--cpu", "t3.xlarge:2", "--runtime", "host", "--yes")
        answers = re.findall(r"^ *([\d.]+) s  [\w-]+: SSH answers", done.stderr, re.MULTILINE)
        ours.append(max(map(float, answers)))
        made = home / "state/clusters/default/terraform"
        variables = json.loads((made / "cluster.tfvars.json").read_text())
        ctl(ec2, home, "down", "--yes", "--force")
        raw.append(terraform(ec2, home, variables))
        print(f"round {number + 1}: up {ours[-1]:.2f} s, terraform {raw[-1]:.2f} s", flush=True)
    # The least of each: whatever else the machine does only adds.
    added = min(ours) - min(raw)
    return [
        Row("terraform init and apply until SSH", min(raw), "s", 600, "itself"),
        Row("up until SSH, added", added, "s", 0.5, "- terraform init and apply"),
    ]


def terraform(ec2: Ec2, home: Path, variables: dict[str, object]) -> float:
    folder = home / "raw"
    shutil.copytree(assets.find_folder("infra") / "ec2", folder)
    (folder / "x.auto.tfvars.json").write_text(json.dumps({**variables, "cluster_id": "raw"}))
    env = environment(ec2, home)

    def run(*words: str) -> None:
        argv = ["terraform", *words]
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)

    began = time.monotonic()
    run("init", "-input=false")
    run("apply", "-auto-approve", "-input=false", "-parallelism=11")
    # Not `terraform output`, which takes a second: apply has just printed the addresses.
    nodes = json.loads((folder / "terraform.tfstate").read_text())["outputs"]["nodes"]["value"]
    while True:
        try:
            socket.create_connection((nodes[0]["address"], 22), timeout=5).close()
            break
        except OSError:
            time.sleep(0.05)
    took = time.monotonic() - began
    run("destroy", "-auto-approve", "-input=false")
    return took


def bootstrap(ec2: Ec2, folder: Path) -> list[Row]:
    """Eight prepared workers and the launcher once more, against a playbook over the same SSH."""
    home = folder / "eight"
    home.mkdir()
    wish = ("up", "--cpu", f"t3.xlarge:{WORKERS}", "--runtime", "host", "--yes", "--json")
    ctl(ec2, home, *wish)
    ours = statistics.median(
        json.loads(ctl(ec2, home, *wish).stdout)["seconds"]["bootstrap"] for _ in range(3)
    )
    rows = [Row(f"bootstrap of {WORKERS} prepared workers", ours, "s", 2, "absolute")]
    tool = os.environ.get("ANSIBLE_PLAYBOOK") or shutil.which("ansible-playbook")
    if tool:
        theirs = ansible(tool, home)
        rows.append(
            Row("the same by ansible", theirs / ours, "x", 20, "÷ our bootstrap", least=True)
        )
    ctl(ec2, home, "down", "--yes", "--force")
    return rows


def growth(ec2: Ec2, folder: Path) -> list[Row]:
    """`up` of few workers and of many, from the first launch until all of them run, and the
    processor time that clusterctl and Terraform take for all of it. The machines are records of EC2
    and never boot; its bucket of RunInstances is that of AWS."""
    rows = []
    for workers, limit in ((WORKERS, 30), (LARGE, 75)):
        home = folder / f"{workers} workers"
        home.mkdir()
        ec2.reset()
        ec2.refill()
        ec2.grant(4 * LARGE + 16, STANDARD)
        ec2.fault("never_boot")
        took, cpu = until_running(ec2, home, workers)
        print(f"{workers} workers: {took:.1f} s", flush=True)
        ec2.reset()
        rows += [
            Row(f"first launch until {workers} workers run", took, "s", limit, "absolute"),
            Row(f"processor time of up for {workers} workers", cpu, "s", 60, "absolute"),
        ]
    return rows


def until_running(ec2: Ec2, home: Path, workers: int) -> tuple[float, float]:
    """Seconds from the first launch until all machines run, and of processor time."""
    argv = [sys.executable, "-m", "clusterctl", "up", "--cpu", f"c7i.xlarge:{workers}"]
    argv += ["--runtime", "host", "--boot-timeout", f"{BOOT}s", "--yes"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, env=environment(ec2, home), capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if f"waited {BOOT} s for the machine to boot" not in done.stderr:
        raise SystemExit(f"{argv}: {done.stderr}")
    begun, made = [], []
    log = home / "state/clusters/default/terraform/terraform.jsonl"
    for event in map(json.loads, filter(None, log.read_text().splitlines())):
        if event.get("hook", {}).get("resource", {}).get("resource_type") == "aws_instance":
            when = datetime.fromisoformat(event["@timestamp"].replace("Z", "+00:00")).timestamp()
            {"apply_start": begun, "apply_complete": made}.get(event["type"], []).append(when)
    assert len(made) == workers + 1, done.stderr
    running = [item["State"]["Name"] for item in machines(ec2)]
    assert running == ["running"] * (workers + 1), running
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return max(made) - min(begun), cpu


def machines(ec2: Ec2) -> list[dict[str, Any]]:
    pages = ec2.client("ec2").get_paginator("describe_instances").paginate()
    return [item for page in pages for group in page["Reservations"] for item in group["Instances"]]


def ansible(tool: str, home: Path) -> float:
    """Its second run, when everything is there already; connections persist as it likes them."""
    ssh = home / "state/clusters/default/ssh"
    names = ["launcher", *(f"worker-{number}" for number in range(1, WORKERS + 1))]
    (home / "inventory").write_text("".join(f"{name}\n" for name in names))
    (home / "playbook.yml").write_text(PLAYBOOK)
    env = {
        **os.environ,
        "HOME": str(home),
        "ANSIBLE_SSH_ARGS": "-F config -o ControlMaster=auto -o ControlPersist=60s",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_FORKS": "32",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": "/tmp/.bench-ansible",
    }
    mesh = (ssh / "mesh.pub").read_text().strip()
    argv = [tool, "-i", str(home / "inventory"), "-e", json.dumps({"mesh": mesh})]
    took = 0.0
    for _ in range(2):
        began = time.monotonic()
        done = subprocess.run(
            [*argv, str(home / "playbook.yml")], cwd=ssh, env=env, capture_output=True, text=True
        )
        took = time.monotonic() - began
        if done.returncode:
            raise SystemExit(done.stdout[-3000:])
    return took


if __name__ == "__main__":
    sys.exit(main())

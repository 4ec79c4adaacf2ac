# ruff: noqa: E402
"""What 64, 256 and 1,000 nodes on EC2 cost, and what breaks first: a model, and its check.

    python -m bench.scale [--out bench/results/scale.json]

The inputs are measured with 8 workers of the simulated EC2 of tests/sim, which are real nodes that
share the cores of this machine; with 64 of them, the model is checked. Needs root, terraform and
the extra `dev`; a quarter of an hour. docs/scale.md is written from the results by
scripts/readme.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from clusterctl.actions import common
from clusterctl.core.model import ClusterSpec, NodeGroup
from clusterctl.insight import cost
from clusterctl.machines.ec2 import prices, spec
from clusterctl.state.home import Home
from clusterctl.state.store import Store
from clusterctl.transport import pool as transport_pool
from clusterctl.transport import session
from tests.sim.ec2 import throttling

OUT = ROOT / "bench" / "results" / "scale.json"
MEASURED, CHECKED = 8, 64
SHOWN = (64, 256, 1000)
UP = ("plan", "create", "bootstrap", "mesh", "all-reduce")
"""Steps of `up`, as its JSON names them."""
TOLERANCE = 0.25
"""Beyond it, a prediction is shown as missed."""
FAMILY, TYPE, VCPUS = "c7i", "c7i.xlarge", 4
REGION = "us-east-1"
BOOT = 25.8
"""Seconds from a launch on EC2 until sshd answers, as published; a simulated machine needs none."""
RADIX = 64
"""Daemons that one of mpirun's starts: `routed_radix`, in Open MPI 4.1 and 5."""
TREE = 100e6
"""Bytes of the program tree of the examples."""
UPLINK = 20e6 / 8
"""Bytes a second from the user's machine."""


# -------------------------------------------------------------------------------------------------
# The model.


@dataclass(frozen=True)
class Limit:
    """`reached`: from how many workers on, None: never. `needs`: what so many workers need."""

    what: str
    limit: str
    needs: tuple[str, ...]
    reached: float | None
    then: str
    source: str


def count_machines(workers: int) -> int:
    return workers + 1  # and the launcher


def bound_calls(action: str, calls: float) -> float:
    """Seconds that so many calls of the API take at least."""
    usual = throttling.DESCRIBE if action.startswith("Describe") else throttling.OTHERS
    size, rate = throttling.CALLS.get(action, usual)
    return max(0.0, (calls - size) / rate)


def predict(measured: Mapping[str, Any], workers: int, *, shared: bool) -> dict[str, float]:
    """Seconds of each step. `shared`: all nodes on the cores of the machine that measured, as in
    the check; else each has its own."""
    steps, connect = dict(measured["seconds"]), measured["client"]["cpu_per_node"]
    launch = bound_calls("RunInstances", count_machines(workers))
    steps["create"] += launch - bound_calls("RunInstances", count_machines(MEASURED))
    steps["mesh"] *= math.ceil(workers / session.SESSIONS)
    steps["verify"] *= workers / MEASURED
    if shared:
        for name in ("bootstrap", "all-reduce", "run"):
            steps[name] *= count_machines(workers) / count_machines(MEASURED)
        return steps
    steps["create"] += BOOT
    at_once = transport_pool.LIMIT
    steps["bootstrap"] = max(steps["bootstrap"], at_once * connect)
    steps["bootstrap"] *= math.ceil(count_machines(workers) / at_once)
    for name in ("all-reduce", "run"):
        steps[name] *= find_depth(workers)
    return steps


def find_depth(workers: int) -> int:
    """Of the tree of mpirun's daemons."""
    depth, reached = 1, RADIX
    while reached < workers:
        depth += 1
        reached += RADIX**depth
    return depth


def sum_start(steps: Mapping[str, float]) -> float:
    return sum(steps[name] for name in UP)


def sum_hourly(workers: int) -> float:
    """US dollars an hour, at the prices that clusterctl knows without AWS."""
    wish = ClusterSpec(
        name="n", provider="ec2", groups=(NodeGroup(count=workers, instance_type=TYPE),)
    )
    machines = spec.plan_machines(wish, {}, {})
    items = {machine.instance_type for machine in machines} | {prices.DISK, prices.ADDRESS}
    quotes = {item: prices.look_up_fallback(item, REGION) for item in items}
    return cost.sum_hourly(prices.build_charges(machines, quotes, 0.0))


def list_limits(report: Mapping[str, Any]) -> list[Limit]:
    """In the order in which a growing cluster meets them."""
    measured = report["runs"][str(MEASURED)]
    again = {
        action: number / count_machines(MEASURED)
        for action, number in measured["calls_again"].items()
        if action.startswith("Describe") and number >= count_machines(MEASURED)
    }
    action = max(again, key=lambda name: again[name])
    calls = again[action]
    client = report["runs"][str(CHECKED)]["client"]
    open_files, own = client["files_per_node"], client["files"]
    shown = [count_machines(workers) for workers in SHOWN]

    def seconds(of: str, each: float) -> tuple[str, ...]:
        return tuple(f"{bound_calls(of, each * n):.0f} s" for n in shown)

    size = throttling.DESCRIBE[0]
    found = [
        Limit(
            "vCPUs of a new account",
            "5",
            tuple(f"{VCPUS * n}" for n in SHOWN),
            1,
            "`up` compares before it creates anything, and exits with 3",
            "[AWS CLI](https://docs.aws.amazon.com/cli/latest/reference/service-quotas/"
            "get-aws-default-service-quota.html), example",
        ),
        Limit(
            "launches (RunInstances)",
            "5 calls, then 2/s",
            seconds("RunInstances", 1),
            5,
            "takes this long at least; the plan says so",
            "[AWS](https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html)",
        ),
        Limit(
            f"a further `up` ({action}, {calls:g} per machine)",
            "100 calls, then 20/s",
            seconds(action, calls),
            size // calls,
            "takes this long at least: Terraform reads every machine",
            "the same; calls counted here",
        ),
        Limit(
            "pulls from Docker Hub of a cluster with one public address (`--private`)",
            "100 in 6 hours",
            tuple(f"{n}" for n in SHOWN),
            100,
            "needs a registry of your own; not with machine images or other registries",
            "[Docker](https://docs.docker.com/docker-hub/usage/)",
        ),
        Limit(
            "files that the client has open",
            "1,024 (`ulimit -n`)",
            tuple(f"{own + open_files * n:.0f}" for n in shown),
            (1024 - own) / open_files if open_files else None,
            "workers are reached through the launcher's connection; your own hosts take one each",
            "measured; setrlimit(2), usual soft limit",
        ),
        Limit(
            "workers of one cluster",
            f"{spec.MAX_WORKERS:,}",
            tuple(f"{n}" for n in SHOWN),
            spec.MAX_WORKERS + 1,
            "a larger one is refused",
            "clusterctl",
        ),
        Limit(
            "logins that one sshd has to answer at once (MaxStartups)",
            "10",
            ("2", "2", "2"),
            None,
            "the launcher and one worker log in to each worker; clusterctl logs in to each once",
            "sshd_config(5); ADR 18",
        ),
        Limit(
            "daemons that mpirun's first one starts",
            f"{RADIX} (routed_radix)",
            tuple(f"{min(n, RADIX)}, {find_depth(n)} deep" for n in SHOWN),
            None,
            "beyond that, workers start the others",
            "`ompi_info --all`",
        ),
        Limit(
            "a program tree of 100 MB over an uplink of 20 Mbit/s",
            "one copy",
            tuple(f"{TREE / UPLINK:.0f} s" for _ in SHOWN),
            None,
            "nodes pass it on; scp to each would take that long per node",
            "[performance](performance.md)",
        ),
        Limit(
            "memory of the client",
            "",
            tuple(f"{client['mb'] + client['mb_per_node'] * n:.0f} MB" for n in shown),
            None,
            "",
            "measured",
        ),
    ]
    return sorted(found, key=lambda one: math.inf if one.reached is None else one.reached)


# -------------------------------------------------------------------------------------------------
# The measurements.


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    runs = {str(workers): measure(workers) for workers in (MEASURED, CHECKED)}
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
        "load_before": round(load, 1),
        "runs": runs,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(workers: int) -> dict[str, Any]:
    """The whole life of a cluster of so many workers: seconds, calls, and what its client holds."""
    from bench.ec2 import environment
    from tests.sim.ec2.client import Ec2

    with tempfile.TemporaryDirectory() as name:
        cloud, home = Path(name, "cloud"), Path(name, "home")
        for folder in (cloud, home / "work"):
            folder.mkdir(parents=True)
        (home / "work" / "hi.py").write_text("print('hi')\n")
        ec2 = Ec2(cloud)
        seconds: dict[str, float] = {}

        def call(*words: str, codes: tuple[int, ...] = (0,)) -> str:
            print(*words, "…", file=sys.stderr, flush=True)
            ec2.forget_calls()
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "clusterctl", *words, "--quiet"],
                env=environment(ec2, home),
                cwd=home / "work",
                capture_output=True,
                text=True,
            )
            seconds[words[0]] = time.monotonic() - began
            if done.returncode not in codes:
                raise SystemExit(f"{words}: {done.stderr}")
            return done.stdout

        up = ("up", "--cpu", f"{TYPE}:{workers}", "--runtime", "host", "--yes", "--json")
        try:
            ec2.grant_cpus(VCPUS * 1100)
            ec2.refill()
            first = json.loads(call(*up))["seconds"]
            calls = count_calls(ec2)
            call("run", "hi.py")
            client = measure_client(home)
            again = {}
            if workers == MEASURED:
                call(*up)
                again = count_calls(ec2)
            call("verify", "--json", codes=(0, 8))  # nodes that share cores are slow ones
            call("down", "--yes", "--force")
        finally:
            ec2.close()
    steps = {name: first[name] for name in UP}
    for verb in ("run", "verify", "down"):
        steps[verb] = seconds[verb]
    return {
        "seconds": {name: round(value, 2) for name, value in steps.items()},
        "calls": calls,
        "calls_again": again,
        "client": client,
    }


def count_calls(ec2: Any) -> dict[str, int]:
    """Calls of EC2's API since they were forgotten, by action."""
    actions = Counter(str(call["action"]) for call in ec2.calls)
    return {name.partition(":")[2]: n for name, n in actions.most_common() if "ec2:" in name}


def measure_client(home: Path) -> dict[str, float]:
    """What a process has open, and uses, for connections to all nodes."""
    os.environ["CLUSTERCTL_HOME"] = str(home / "state")
    store = Store(Home(home / "state"))
    cluster = store.read_cluster("default")
    names = [node.name for node in cluster.nodes]
    before = look_at_this_process()
    with common.open_pool(store, cluster) as pool:
        pool.run("true", names[:1], timeout=60)  # what one connection loads is loaded
        one, began = look_at_this_process(), time.process_time()
        results = pool.run("true", names, timeout=120)
        cpu = time.process_time() - began
        all_open = look_at_this_process()
    assert all(result.ok for result in results), results
    more = len(names) - 1
    return {
        "cpu_per_node": round(cpu / more, 4),
        "files": before["files"],
        "files_per_node": round((all_open["files"] - one["files"]) / more, 2),
        "threads_per_node": round((all_open["threads"] - one["threads"]) / more, 2),
        "mb": round(one["mb"]),
        "mb_per_node": round(max(0.0, all_open["mb"] - one["mb"]) / more, 2),
    }


def look_at_this_process() -> dict[str, float]:
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "mb": resident * os.sysconf("SC_PAGESIZE") / 1e6,
    }


if __name__ == "__main__":
    sys.exit(main())

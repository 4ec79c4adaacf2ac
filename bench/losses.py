"""A worker killed at seeded moments of a training: it has to end with the weights of an undisturbed
run, bit for bit, and no later than that run, the repeated steps and the replacement took together.

    python -m bench.losses --moments 20 --seed 0

It needs what local nodes in namespaces need: root, sshd and MPI. Every second time the worker's
disk is lost, too. Before and after each moment there is an undisturbed run; the longer one counts.
Prints a row for each moment, a summary, and a line for each miss.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cli import Cli, Traces, kill_node

PAUSE, EVERY = 0.25, 5
"""Seconds that each step sleeps (so that a busy machine takes hardly longer than an idle one), and
steps between two snapshots."""
PROGRAM = f"""
import hashlib, os, sys, time
import torch
from mpi4py import MPI

world = MPI.COMM_WORLD
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
done, content = 0, b""
if world.rank == 0 and os.path.exists("snapshot.pt"):
    with open("snapshot.pt", "rb") as file:
        content = file.read()
content = world.bcast(content)
if content:
    import io
    found = torch.load(io.BytesIO(content), weights_only=True)
    done = found["done"]
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
print("from", done, time.time(), flush=True)
while done < int(sys.argv[1]):
    chance = torch.Generator().manual_seed(1000 * done + world.rank)
    rows = torch.randn(8, 16, generator=chance)
    optimizer.zero_grad()
    (model(rows) - rows.sum(1, keepdim=True).sin()).square().mean().backward()
    for value in model.parameters():
        world.Allreduce(MPI.IN_PLACE, value.grad.numpy())
        value.grad /= world.size
    optimizer.step()
    done += 1
    if world.rank == 0 and done % {EVERY} == 0:
        state = {{"done": done, "model": model.state_dict(), "optimizer": optimizer.state_dict()}}
        torch.save(state, "snapshot.pt.new")
        os.replace("snapshot.pt.new", "snapshot.pt")
    print("step", done, time.time(), flush=True)
    time.sleep({PAUSE})
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
print("weights", digest.hexdigest(), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """A run that has ended. `seconds`: all that it took."""

    seconds: float
    weights: tuple[str, ...]


@dataclass(frozen=True)
class Loss:
    """What followed a kill, in seconds. `repeated`: from the snapshot until the kill; `back`: from
    the kill until the ranks had taken a step again."""

    step: int
    resumed: int
    repeated: float
    back: float
    ended: Ended


def find_weights(out: str) -> tuple[str, ...]:
    return tuple(sorted(set(re.findall(r"^\[\d+\] weights (\w+)$", out, re.MULTILINE))))


def run_undisturbed(cli: Cli, steps: int) -> Ended:
    began = time.monotonic()
    done = cli.start("run", "-c", "lab", "program/program.py", steps).wait(60 + steps * PAUSE * 4)
    assert done.code == 0, done
    return Ended(time.monotonic() - began, find_weights(done.out))


def lose(cli: Cli, node: str, disk: bool, step: int, steps: int) -> Loss:
    (root,) = (item["root"] for item in cli.status("lab")["nodes"] if item["name"] == node)
    began = time.monotonic()
    running = cli.start("run", "-c", "lab", "program/program.py", steps)
    running.until(f"[0] step {step} ", seconds=60 + steps * PAUSE * 4)
    killed = time.time()
    kill_node(cli, node, "lab")
    if disk:
        shutil.rmtree(root)
    done = running.wait(120 + steps * PAUSE * 8)
    ended = Ended(time.monotonic() - began, find_weights(done.out))
    assert done.code == 0, done
    # The times are the program's own: what is printed comes here later, on a busy machine much.
    starts = re.findall(r"^\[0\] from (\d+) ([\d.]+)$", done.out, re.MULTILINE)
    resumed, began_again = int(starts[-1][0]), float(starts[-1][1])
    taken = re.findall(r"^\[0\] step (\d+) ([\d.]+)$", done.out, re.MULTILINE)
    times = {int(number): float(when) for number, when in taken if float(when) < began_again}
    saved = times.get(resumed, float(starts[0][1]))  # 0: when it began
    # The worker is replaced when the ranks have connected to each other again: at their first step.
    # The undisturbed run has the pause before it, too, or, at its beginning, that connecting.
    first = min(float(when) for _, when in taken if float(when) >= began_again)
    again = first - PAUSE if resumed else began_again
    return Loss(max(times), resumed, killed - saved, again - killed, ended)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=160, help="of the program; four in a second")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="losses-"))
    cli, chance = Cli(folder / "state", folder), random.Random(given.seed)
    misses: list[str] = []
    try:
        cli("up", "lab", "--workers", 2, "--ttl", "3h", timeout=300)
        traces = Traces.of(cli, "lab")
        cli.script("program/program.py", PROGRAM)
        before = run_undisturbed(cli, given.steps)
        print(f"undisturbed: {before.seconds:.1f} s\n")
        print("| worker | disk | killed after step | resumed from | repeated | back after |"
              " whole run | undisturbed, before and after | beyond the bound | weights |\n"
              + "|---" * 10 + "|")  # fmt: skip
        for number in range(given.moments):
            node = chance.choice(("worker-1", "worker-2"))
            disk = bool(number % 2)
            step = chance.randrange(given.steps // 10, given.steps * 9 // 10)
            loss = lose(cli, node, disk, step, given.steps)
            after = run_undisturbed(cli, given.steps)  # by what the machine can do just then
            most = max(before.seconds, after.seconds) + loss.repeated + loss.back
            excess = loss.ended.seconds - most
            same = len(after.weights) == 1 and loss.ended.weights == before.weights == after.weights
            print(f"| {node} | {'lost' if disk else 'kept'} | {loss.step} | {loss.resumed} |"
                  f" {loss.repeated:.1f} s | {loss.back:.1f} s | {loss.ended.seconds:.1f} s |"
                  f" {before.seconds:.1f} s, {after.seconds:.1f} s | {excess:.1f} s |"
                  f" {'equal' if same else 'differ'} |",
                  flush=True)  # fmt: skip
            if not same:
                misses.append(f"moment {number}: weights {loss.ended.weights}, {after.weights}")
            if excess > 0:
                misses.append(f"moment {number}: {excess:.1f} s later than the bound")
            before = after
        cli("down", "lab", "--discard")
        misses += [f"left behind: {item}" for item in traces.left()]
    finally:
        cli.end()
        for name in cli.clusters():
            cli("down", "--force", name, code=None, timeout=120)
    print(f"\n{given.moments} moments, misses: {len(misses)}", *misses, sep="\n")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())

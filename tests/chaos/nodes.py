"""Attacks on nodes while they run a job, which goes on: on sshd alone, and on whole nodes."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from clusterctl.machines.providers import load_provider
from clusterctl.state.home import Home
from clusterctl.state.store import Store
from tests.chaos.site import Site
from tests.e2e.cli import Done, Running, kill_node
from tests.e2e.test_dead_worker import TRAINS, undisturbed
from tests.e2e.test_programs import python_without_openmpi

SUMS = """
import sys, time
from mpi4py import MPI

world = MPI.COMM_WORLD
for number in range(400):
    assert world.allreduce(number) == number * world.size
    print("line", number, flush=True)
    time.sleep(float(sys.argv[1]) / 400)
"""
"""What takes that many seconds, and has the ranks talk to each other at every step."""


def begin(site: Site, seconds: int, *options: str) -> Running:
    """A job that has begun, and takes that long."""
    site.cli.script("sums/sums.py", SUMS)
    running = site.cli.start("run", "-c", "lab", *options, "sums/sums.py", seconds)
    running.until(f"line {site.chance.randrange(1, 60)}\n", seconds=60)
    return running


def expect_job(site: Site, running: Running, number: int) -> Done:
    """It has ended well, as if nothing had been done to its nodes."""
    done = site.expect(running.wait(120), (0,))
    site.expect_lines(number)
    return done


def on_node(site: Site, node: str, script: str) -> None:
    site.cli("ssh", "-c", "lab", node, "--", f"PATH=$PATH:/usr/sbin:/sbin; {script}")


def folder_of(site: Site, node: str) -> Path:
    """The node's own folder, which it sees by the same name."""
    nodes = {item["name"]: item for item in site.cli.status("lab")["nodes"]}
    return Path(nodes[node]["root"]).parent


def attack_sshd(site: Site) -> None:
    """The sshd of a node does not listen any more. Its connections stay, and so does the node."""
    site.make()
    node = site.chance.choice(("launcher", "worker-1", "worker-2"))
    running = begin(site, 10)
    # A local node ends with its sshd. Who knocks hears what a kernel says where nobody listens.
    reset = "-p tcp --dport 22 --syn -j REJECT --reject-with tcp-reset"
    on_node(site, node, f"iptables -I INPUT {reset}")
    expect_job(site, running, 1)
    words = ("ssh", "-c", "lab", node, "--", "true")
    site.expect(site.cli(*words, code=None), (4,), "nothing listens on port 22")
    site.expect(site.cli("up", "lab", code=None), (0,))
    site.expect(site.cli("run", "-c", "lab", "program/program.py", code=None), (0,))
    site.expect_lines(max(site.cli.jobs()))
    site.expect_end()


def attack_restart(site: Site) -> None:
    """A worker restarts while it runs a job, which goes on there; then the launcher is gone with
    its disk. The job comes to the end of an undisturbed run, to the last bit."""
    site.make()
    node = site.chance.choice(("worker-1", "worker-2"))
    site.cli.script("trains.py", TRAINS)
    running = site.cli.start("run", "-c", "lab", "trains.py")
    running.until("step 20\n", times=2)
    kill_node(site.cli, node, "lab")
    store = Store(Home(site.cli.home))
    where = store.read_cluster("lab"), store.locate_folder("lab")
    load_provider("local").create(*where, lambda text: None)
    running.until("] from ", times=4, seconds=90)
    if not site.cli.job(1)["reason"].startswith(f"{node} restarted"):
        site.misses.append(f"{node} restarted: {site.cli.job(1)}")
    kill_node(site.cli, "launcher", "lab")
    shutil.rmtree(folder_of(site, "launcher") / "root")
    site.expect(running.wait(90), (4,), "lost launcher")
    site.expect(site.cli("up", "lab", code=None), (0,))
    done = site.expect(site.cli("rerun", 2, "--resume", code=None), (0,))
    begun = int(done.of(0)[0].split()[1])
    if begun < 20 or done.of(0)[-1] != undisturbed() or done.of(1)[-1] != undisturbed():
        site.misses.append(f"another end than that of an undisturbed run: {done}")
    site.expect_end()


def attack_silence(site: Site) -> None:
    """A worker falls silent, as one that has lost its power: no packet comes or goes. A job goes on
    after a short while of that, and ends soon, for that reason, where the worker stays silent. Of
    Open MPI 4 nothing but ssh would say it."""
    site.cli.python, site.cli.warm = str(python_without_openmpi(site.cli.folder / "python")), None
    site.make()
    node = site.chance.choice(("worker-1", "worker-2"))

    def silence(seconds: int) -> None:
        drop = "for way in INPUT OUTPUT; do iptables {} $way -j DROP; done"
        script = f"sleep 1; {drop.format('-I')}; sleep {seconds}; {drop.format('-D')}"
        on_node(site, node, f"setsid sh -c {shlex.quote(script)} </dev/null >/dev/null 2>&1 &")

    running = begin(site, 20)
    silence(10)
    expect_job(site, running, 1)
    running = begin(site, 100, "--on-node-loss", "fail")
    silence(3600)
    site.expect(running.wait(80), (4,), f"lost {node}")
    site.expect(site.cli("up", "lab", code=None), (0,))
    site.expect(site.cli("run", "-c", "lab", "program/program.py", code=None), (0,))
    site.expect_end()


ATTACKS: Mapping[str, Callable[[Site], None]] = {
    "sshd": attack_sshd,
    "restart": attack_restart,
    "silence": attack_silence,
}

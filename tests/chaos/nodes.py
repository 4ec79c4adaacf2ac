"""Attacks on nodes while they run a job, which goes on: on sshd alone, links, clocks, host keys."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from clusterctl.machines.providers import load_provider
from clusterctl.state.home import Home
from clusterctl.state.store import Store
from tests.chaos.site import Site
from tests.e2e.cli import Done, Running, kill_node
from tests.e2e.test_dead_worker import TRAINS, undisturbed

SECONDS = 20
"""How long a link drops packets."""
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

DATE = """#!/bin/sh
read -r step <{folder}/step
exec {folder}/real -d "$step seconds" "$@"
"""
"""A node's `date`, ahead by the number in a file: all nodes here have one clock, the kernel's."""


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


def attack_loss(site: Site) -> None:
    """A link drops every third packet or so, for a while."""
    site.make()
    node = site.chance.choice(("launcher", "worker-1", "worker-2"))
    running = begin(site, SECONDS + 4)
    drop = "INPUT ! -i lo -m statistic --mode random --probability 0.3 -j DROP"
    script = f"(iptables -I {drop}; sleep {SECONDS}; iptables -D {drop}) >/dev/null 2>&1 &"
    on_node(site, node, script)
    expect_job(site, running, 1)
    site.expect_end()


def attack_node_clock(site: Site) -> None:
    """A node's clock is set while it runs a job: no limit of time ends it, and it gets no age that
    is less than nothing."""
    site.make()
    node = site.chance.choice(("launcher", "worker-1", "worker-2"))
    folder, date = folder_of(site, node) / "clock", shutil.which("date")
    assert date
    folder.mkdir()
    shutil.copy(date, folder / "real")
    (folder / "date").write_text(DATE.format(folder=shlex.quote(str(folder))))
    (folder / "date").chmod(0o755)
    (folder / "step").write_text("0\n")
    on_node(site, node, f"mount --bind {shlex.quote(str(folder))}/date {Path(date).resolve()}")
    running = begin(site, 10, "--timeout", "10m", "--hang-timeout", "5m")
    (folder / "new").write_text(f"{site.chance.choice((-86400, -3600, 3600, 86400))}\n")
    (folder / "new").replace(folder / "step")
    expect_job(site, running, 1)
    job = site.cli.job(1)
    if job["finished"] is None or job["finished"] < job["started"]:
        site.misses.append(f"{node}: the job ended {job['started']} to {job['finished']}")
    site.expect(site.cli("jobs", code=None), (0,))
    site.expect_end()


def attack_rotated_key(site: Site) -> None:
    """A node's sshd gets another host key while it runs a job. Nobody takes it for the node until
    the provider has confirmed the key."""
    site.make()
    node = site.chance.choice(("launcher", "worker-1", "worker-2"))
    running = begin(site, 10)
    key = folder_of(site, node) / "etc" / "ssh_host_ed25519_key"
    fresh = site.cli.folder / "key"
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", str(fresh)], check=True)
    # Some versions of sshd read it again for each connection, others when they are told to.
    told = f"kill -HUP $(cat {shlex.quote(str(key.parent / 'sshd.pid'))})"
    on_node(site, node, f"(sleep 1; {told}) >/dev/null 2>&1 &")
    for name in ("", ".pub"):
        Path(f"{key}{name}").write_text(Path(f"{fresh}{name}").read_text())
    expect_job(site, running, 1)
    words = ("ssh", "-c", "lab", node, "--", "true")
    site.expect(site.cli("status", "lab", "--live", code=None), (0, 4), "SHA256:")
    site.expect(site.cli(*words, code=None), (4,), "SHA256:")
    site.expect(site.cli("up", "lab", code=None), (0,), "new host key")
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
    running.until("from", times=4, seconds=90)
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


ATTACKS: Mapping[str, Callable[[Site], None]] = {
    "sshd": attack_sshd,
    "loss": attack_loss,
    "node-clock": attack_node_clock,
    "rotated-key": attack_rotated_key,
    "restart": attack_restart,
}

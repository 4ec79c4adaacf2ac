"""Copies from and to nodes that are cut off for 40 seconds go on, and nothing is half there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Need
from tests.e2e.cli import Cli, tagged, wait_for

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

SECONDS = 40
SLOWLY = "tc qdisc add dev eth0 root tbf rate 100mbit burst 32kb lat 1s"
MIB = 1 << 20
MAKES = """
import os
if os.environ["RANK"] == "0":
    for name in ("first", "second", "third"):
        with open(name, "wb") as file:
            for _ in range(32):
                file.write(os.urandom(1 << 20))
"""


def cut_off(cli: Cli, node: str) -> Callable[[], None]:
    """Drops all its packets; returns what ends that."""
    mark = f"CLUSTERCTL_NODE={cli.status()['id']}/{node}"
    pid = next(line.split()[0] for line in tagged(mark))
    rules = (("INPUT", "!", "-i", "lo"), ("OUTPUT", "!", "-o", "lo"))

    def change(what: str) -> None:
        for rule in rules:
            words = ["nsenter", "-t", pid, "-n", "iptables", what, *rule, "-j", "DROP"]
            subprocess.run(words, check=True)

    change("-I")
    return lambda: change("-D")


def digests(text: str) -> dict[str, str]:
    """What sha256sum prints, by name."""
    return {line[66:]: line[:64] for line in text.splitlines()}


def digests_here(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if not path.name.startswith(".")
    }


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.all
@pytest.mark.timeout(400)
def test_fetch_and_push_go_on_after_an_outage_of_40_s(own: Cli, need: Need) -> None:
    need("iptables")
    need("tc")
    own("up")
    for node in ("launcher", "worker-1"):
        own("ssh", node, "--", f"PATH=$PATH:/usr/sbin:/sbin; {SLOWLY}")
    own.script("makes/makes.py", MAKES)
    own("run", "makes/makes.py")
    work = next(n["root"] for n in own.status()["nodes"] if n["name"] == "worker-1")
    made = digests(
        own("ssh", "worker-1", "--", f"cd {work}/jobs/1/work && sha256sum *ir* sec*").out
    )
    assert set(made) == {"first", "second", "third"}
    data = own.folder / "some"
    data.mkdir()
    for name in ("one", "two"):
        (data / name).write_bytes(os.urandom(32 * MIB))
    fetching = own.start("fetch", 1)
    pushing = own.start("data", "push", data)
    there = f"du -sb {work}/data/some 2>/dev/null | cut -f 1"
    wait_for(lambda: size(own.folder / "job-1") > MIB, 60, "a beginning")
    wait_for(lambda: int(own("ssh", "worker-1", "--", there).out or 0) > MIB, 60, "a beginning")
    ends = [cut_off(own, node) for node in ("launcher", "worker-1")]
    try:
        before = size(own.folder / "job-1")
        time.sleep(SECONDS)
        assert size(own.folder / "job-1") < 96 * MIB, "it was too quick to be cut off"
        assert before >= MIB
    finally:
        for end in ends:
            end()
    done = fetching.wait(150), pushing.wait(150)
    assert [item.code for item in done] == [0, 0], done
    fetched = own.folder / "job-1" / "worker-1"
    assert digests_here(fetched) == made
    assert not list(own.folder.glob("job-1/**/.clusterctl-[!f]*"))
    told = own("ssh", "worker-1", "--", f"cd {work}/data/some && sha256sum *").out
    assert digests(told) == digests_here(data)

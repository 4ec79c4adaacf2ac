"""`data` on a real cluster: to every worker's folder, and read there by a program."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.data.datasets import load_datasets
from tests.e2e.cli import Cli
from tests.workloads import making

READER = """
import os, pathlib
root = pathlib.Path(os.environ["CLUSTERCTL_DATA"])
print(sorted(p.name for p in (root / "tiny").iterdir()), flush=True)
"""

WRITER = """
import os, pathlib
tiny = pathlib.Path(os.environ["CLUSTERCTL_DATA"]) / "tiny"
(tiny / f"of-{os.environ['RANK']}.txt").write_text("")
"""

pytestmark = [pytest.mark.sshd]


BROKEN = """#!/bin/sh
if mkdir {here}/.broken 2>/dev/null; then
    head -c 10 >/dev/null
    pid=$$
    until [ "$(cat /proc/$pid/comm)" = sshd ]; do
        pid=$(cut -d ' ' -f 4 /proc/$pid/stat)
    done
    kill -9 "$pid"
fi
exec {here}/clusterctl-ssh.whole "$@"
"""
"""ssh to other nodes: the first time, our connection to the node is lost meanwhile."""


@contextmanager
def break_once(cli: Cli) -> Iterator[None]:
    agents = [Path(node["root"], "bin/clusterctl-ssh") for node in cli.status()["nodes"]]
    for agent in agents:
        agent.rename(agent.with_suffix(".whole"))
        agent.write_text(BROKEN.format(here=agent.parent))
        agent.chmod(0o700)
    try:
        yield
        assert any((agent.parent / ".broken").exists() for agent in agents)
    finally:
        for agent in agents:
            agent.with_suffix(".whole").replace(agent)
            shutil.rmtree(agent.parent / ".broken", ignore_errors=True)


def test_a_connection_that_is_lost_while_nodes_pass_on_is_made_again(cli: Cli) -> None:
    (cli.folder / "mine").mkdir()
    content = os.urandom(2_000_000)
    (cli.folder / "mine" / "large").write_bytes(content)
    with break_once(cli):
        cli("data", "push", "mine", "--name", "again")
    for node in cli.status()["nodes"]:
        if node["role"] == "worker":
            assert Path(node["root"], "data/again/large").read_bytes() == content


def test_a_folder_is_pushed_to_every_worker(cli: Cli) -> None:
    (cli.folder / "mine").mkdir()
    (cli.folder / "mine" / "a b.txt").write_text("x")
    (cli.folder / "read.py").write_text(READER)
    # As where an older clusterctl has started the cluster.
    shutil.rmtree(Path(cli.status()["nodes"][-1]["root"], "agent"))
    done = cli.json("data", "push", "mine", "--name", "tiny")
    assert done["data"][0]["pushed"] == ["worker-1", "worker-2"]
    (cli.folder / "write.py").write_text(WRITER)
    ran = cli("run", "--ranks", 2, "read.py")
    assert ran.of(0) == ran.of(1) == ["['a b.txt']"]
    cli("run", "--ranks", 2, "write.py")
    cli("data", "push", "mine", "--name", "tiny")
    ran = cli("run", "--ranks", 2, "read.py")
    assert ran.of(0) == ["['a b.txt', 'of-0.txt']"]
    assert ran.of(1) == ["['a b.txt', 'of-1.txt']"], "what programs wrote there stays"


@pytest.mark.mpi
def test_a_data_set_is_copied_once(cli: Cli) -> None:
    """With small files in MNIST's format in the place of the downloaded ones."""
    root = cli.home / "data"
    making.mnist(root / "mnist")
    (root / ".mnist.complete").write_text(load_datasets()["mnist"].mark + "\n")
    try:
        assert cli.json("data", "list")["data"][0]["here"] is True
        missing = cli("run", "train_mnist_ddp.py", "--epochs", 1, code=2)
        assert "clusterctl data get mnist" in missing.err
        done = cli.json("data", "get", "mnist")
        assert done["data"][0]["pushed"] == ["worker-1", "worker-2"]
        assert cli.json("data", "push", "mnist")["data"][0]["pushed"] == []
        (cli.folder / "read.py").write_text(READER.replace("tiny", "mnist"))
        assert "train-images-idx3-ubyte" in cli("run", "--ranks", 1, "read.py").out
    finally:
        shutil.rmtree(root)


@pytest.mark.mpi
def test_an_index_travels_with_its_images(cli: Cli) -> None:
    """The README's lines: index, push. Where nothing was pushed, its program says how to."""
    making.image_folders(cli.folder / "cats")
    words = ["train_imagenette.py", "--yml-in", "cats/dataset.yaml", "--net-name", "resnet18"]
    words += ["--patch-size", "16", "--batch-size", "6", "--epochs", "1"]
    assert "clusterctl data push" in cli("run", *words, code=2).err
    cli("data", "index", "cats/train", "cats/val", "--out_filename", "cats/dataset.yaml")
    cli("data", "push", "cats")
    (cli.folder / "read.py").write_text(READER.replace("tiny", "cats"))
    assert cli("run", "--ranks", 1, "read.py").of(0) == ["['dataset.yaml', 'train', 'val']"]

"""The lines that each guide begins with, run as they stand."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attach.conftest import Site
from tests.attach.lab import Hosts
from tests.conftest import require_namespaces
from tests.e2e.cli import Cli

DOCS = Path(__file__).resolve().parents[2] / "docs"


def first_lines(guide: str) -> list[list[str]]:
    """The words of the first code block, without comments and `clusterctl`."""
    blocks = (DOCS / guide).read_text().split("\n\n")
    block = next(block for block in blocks if block.startswith("    "))
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert all(line[0] == "clusterctl" for line in lines)
    return [line[1:] for line in lines]


@pytest.fixture
def fresh(site: Site, tmp_path: Path) -> Iterator[Cli]:
    """clusterctl on the login node, for somebody who has never used it."""
    made = site.cli(tmp_path / "project")
    made.home = tmp_path / "state"
    yield made
    for cluster in made.json("list")["clusters"]:
        made("detach", "--force", cluster["cluster"])


@pytest.mark.all
def test_a_batch_system_in_three_lines(fresh: Cli, site: Site) -> None:
    attach, run, detach = first_lines(f"{site.system}.md")
    lines = {"slurm": "#SBATCH --nodes=2\nsrun hostname\n", "sge": "#$ -cwd\nhostname\n"}
    fresh.script(run[1], f"#!/bin/sh\n{lines[site.system]}")
    fresh(*attach)
    assert "[0] c" in fresh(*run).out
    fresh(*detach)
    assert fresh.json("list")["clusters"] == []


@pytest.mark.all
@pytest.mark.netns
@pytest.mark.sshd
@pytest.mark.mpi
def test_hosts_in_five_lines(tmp_path: Path) -> None:
    require_namespaces()
    attach, run, own, fetch, detach = first_lines("hosts.md")
    lab = Hosts.start(tmp_path, ["alpha", "beta"], {})
    try:
        cli = lab.cli(tmp_path / "project")
        lines = [f"{lab[name].address} python={sys.executable}" for name in ("alpha", "beta")]
        (cli.folder / "hosts.txt").write_text("\n".join(lines) + "\n")
        (cli.folder / own[1]).write_text("open('made.txt', 'w').write('done')\n")
        cli(*attach)
        assert "ok: 2 ranks on 2 hosts" in cli(*run).out
        cli(*own)
        cli(*fetch)
        assert len([*cli.folder.glob("job-2/*/made.txt")]) == 2
        cli(*detach)
        assert lab.traces("alpha") == lab.traces("beta") == []
    finally:
        lab.machines.stop()

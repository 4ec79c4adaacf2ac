"""A batch system behind SSH: the same verbs, from a machine that has none of its commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.core import keys
from tests.attach.conftest import ONE_SITE, Site
from tests.e2e.cli import Cli


@pytest.fixture
def remote(site: Site, tmp_path: Path) -> Iterator[Cli]:
    """A person elsewhere, with a key that the login node lets in."""
    person = tmp_path / "person"
    (person / ".ssh").mkdir(parents=True, mode=0o700)
    public = keys.ensure(person / ".ssh" / "id_ed25519")
    there = site.lab.folder / "root" / ".ssh"
    there.mkdir(exist_ok=True, mode=0o700)
    (there / "authorized_keys").write_text(public + "\n")
    if not (site.login.folder / "sshd_config").exists():
        site.lab.machines.sshd("login")
    known = person / ".ssh" / "known_hosts"
    known.write_text(f"{site.login.address} {site.login.public_key}\n")
    config = person / ".ssh" / "config"
    key = f"IdentityFile {person}/.ssh/id_ed25519"  # OpenSSH does not look at HOME
    config.write_text(f"Host cluster\n  HostName {site.login.address}\n  User root\n  {key}\n")
    (tmp_path / "project").mkdir()
    cli = Cli(person / "state", tmp_path / "project", env={"HOME": str(person)})
    yield cli
    cli.end()
    for cluster in cli.json("list")["clusters"]:
        cli("detach", "--force", cluster["cluster"])
    assert list((site.lab.folder / "root").glob(".clusterctl/*")) == []


@ONE_SITE
def test_jobs_go_over_ssh(remote: Cli, site: Site) -> None:
    made = remote.json("attach", "far", f"--{site.system}", "cluster")
    [login] = made["nodes"]
    assert (login["role"], login["address"]) == ("login", "cluster")
    # As plain ssh would show it, with what ~/.bashrc prints.
    assert remote("ssh", "--", "echo in; hostname").out.endswith("\nin\nlogin\n")
    size = {"slurm": ["--nodes", "1"], "sge": ["-pe", "mpi", "2"]}[site.system]
    told = remote("run", "--interactive", *size, "uname", "-n", code=None)
    assert told.out.split()[-1:] in (["c1"], ["c2"]), told
    done = remote("run", *site.size(2), "--venv", sys.prefix, "reduce_all.py", "--no-table")
    assert "ok: 2 ranks on 2 hosts" in done.out
    remote.script("fail", '#!/bin/sh\n[ "$RANK" = 1 ] && exit 9; exec sleep 302\n').chmod(0o755)
    remote("run", *site.size(2), "fail", code=9)
    remote.script("long", "#!/bin/sh\nexec sleep 302\n").chmod(0o755)
    number = remote.detach(*site.size(2), "long")
    remote.until_state(number, "running")
    assert remote.json("status", "--live")["queues"]
    remote("cancel", number)
    assert remote.job(number)["state"] == "cancelled"


@ONE_SITE
def test_an_unknown_login_node_is_refused(remote: Cli, site: Site) -> None:
    (Path(remote.env["HOME"]) / ".ssh" / "known_hosts").write_text("")
    done = remote("attach", "far", f"--{site.system}", "cluster", code=4)
    assert "is not known; nothing was sent" in done.err
    assert remote.json("list")["clusters"] == []

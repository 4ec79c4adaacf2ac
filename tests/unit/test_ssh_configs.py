"""The ssh configurations that are rendered, as OpenSSH itself understands them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clusterctl import assets
from tests.conftest import Need
from tests.unit.making import cluster, node

NODES = cluster(
    node("launcher", "10.0.0.10"),
    node("worker-1", "10.0.0.11", via="launcher"),
    node("worker-2", "10.0.0.12", job_port=2222),
)
CONFIGS = {
    "ours": lambda: assets.render("client/ssh_config.j2", cluster=NODES),
    "between nodes": lambda: assets.render("bootstrap/ssh_config.j2", nodes=NODES.nodes),
    "attached": lambda: assets.render("client/attached_config.j2", cluster=NODES, home="/none"),
}


def effective(need: Need, config: Path, name: str) -> dict[str, str]:
    """What `ssh NAME` would do, by option."""
    argv = [need("ssh"), "-G", "-F", str(config), name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, cwd=config.parent)
    assert done.returncode == 0, done.stderr
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {option: value for option, _, value in pairs}


@pytest.mark.parametrize("which", CONFIGS)
@pytest.mark.parametrize("name", ["launcher", "worker-1", "10.0.0.12"])
def test_an_unknown_or_changed_host_key_is_refused(
    which: str, name: str, need: Need, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(CONFIGS[which]())
    options = effective(need, config, name)
    assert options["stricthostkeychecking"] == "true"
    assert options["userknownhostsfile"].split()[0] == "./known_hosts"
    assert options.get("verifyhostkeydns", "false") == "false"
    assert options.get("nohostauthenticationforlocalhost", "no") == "no"
    if which != "attached":
        assert options["globalknownhostsfile"] == "none", "only the keys that we were told"
        assert os.path.basename(options["identityfile"]) in ("user", "mesh")

"""Batch scripts in the forms that public clusters' documents have, handed in from elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attach.conftest import SITES, Site
from tests.e2e.cli import Cli
from tests.unit.tables import read_rows

pytestmark = [pytest.mark.all, pytest.mark.timeout(400)]

ROWS = {system: read_rows("public_scripts", system) for system in ("slurm", "sge")}
CASES = [
    pytest.param(str(site.values[0]), row, marks=site.marks, id=name)
    for site in SITES
    for name, row in ROWS[str(site.values[0])].items()
]

MODULES = """\
[ -n "$BASH_VERSION" ] || return 0
export MODULEPATH={site}/modules OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
module() {{
    case $1 in
    load) shift; for name; do PATH=$MODULEPATH/$name:$PATH; done ;;
    list) echo 'Currently Loaded Modules:' >&2 ;;
    esac
}}
export -f module
"""
"""What a login of bash finds at a site: a function, as Lmod has it."""

PROFILE = 'echo "Last login: today"\nPATH={site}/bin:{python}:$PATH\n'
"""Somebody's own."""

SITE: dict[str, str] = read_rows("public_scripts", "site")
"""Programs that documents call. Each looks at what it is given."""


@pytest.fixture
def furnished(site: Site) -> Iterator[Site]:
    """What documents expect of a site: modules, partitions, parallel environments, complexes."""
    lab, root = site.lab, site.lab.folder / "furnished"
    for name, text in SITE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for name, program in (
        ("anaconda3/2024.2/python", sys.executable),
        ("python/3.10.11/python", sys.executable),
        ("openmpi/4.1/mpirun", "/usr/bin/mpirun"),
    ):
        path = root / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(program)
    profile = lab.folder / "root" / ".bash_profile"
    profile.write_text(PROFILE.format(site=root, python=Path(sys.executable).parent))
    made = [profile]
    for machine in lab.machines.hosts.values():
        made.append(machine.folder / "etc/profile.d/modules.sh")
        made[-1].write_text(MODULES.format(site=root))
    if site.system == "slurm":
        for name in ("priority", "skx", "small-g"):
            lab.login.run("scontrol", "create", f"partition={name}", "nodes=c[1-2]", "state=UP")
        lab.login.run("scontrol", "update", "nodename=c[1-2]", "features=gpu")
    else:
        _furnish_grid_engine(site)
    yield site
    for path in made:
        path.unlink()
    for name in ("priority", "skx", "small-g") if site.system == "slurm" else ():
        lab.login.run("scontrol", "delete", f"partition={name}")


def _furnish_grid_engine(site: Site) -> None:
    login, file = site.login, site.lab.folder / "furnished" / "file"
    known = login.run("qconf", "-spl").split()
    template = login.run("qconf", "-sp", "mpi")
    for name, rule in (("mpi_2_tasks_per_node", "2"), ("smp", "$pe_slots")):
        if name not in known:
            text = re.sub(r"(pe_name +).*", rf"\g<1>{name}", template)
            file.write_text(re.sub(r"(allocation_rule +).*", rf"\g<1>{rule}", text))
            login.run("qconf", "-Ap", str(file))
            login.run("qconf", "-aattr", "queue", "pe_list", name, "main.q")
    complexes = login.run("qconf", "-sc")
    if "rmem" not in complexes:
        more = "mem mem MEMORY <= YES NO 0 0\nrmem rmem MEMORY <= YES NO 0 0\n"
        file.write_text(complexes + more)
        login.run("qconf", "-Mc", str(file))
        file.write_text("name project\noticket 0\nfshare 0\nacl NONE\nxacl NONE\n")
        login.run("qconf", "-Aprj", str(file))
        for node in ("c1", "c2"):
            login.run("qconf", "-mattr", "exechost", "complex_values", "mem=9G,rmem=9G", node)


@pytest.mark.parametrize(("site", "row"), CASES, indirect=["site"])
def test_a_script_of_a_document_runs_unedited(
    furnished: Site, remote: Cli, row: dict[str, Any]
) -> None:
    remote("attach", "far", f"--{furnished.system}", "cluster")
    for name, text in {**row.get("files", {}), "job.sbatch": row["script"]}.items():
        remote.script(name, text).chmod(0o755)
    native = ""
    if first := row.get("before"):
        number = remote("run", "--detach", first).job
        native = remote.json("jobs", str(number))["jobs"][0]["native_id"]
    words = [word.format(native=native) for word in row.get("words", ())]
    done = remote("run", *words, "job.sbatch", *row.get("args", ()), timeout=120)
    for pattern in row["says"]:
        assert re.search(pattern, done.out, re.MULTILINE), done

"""Text that runs elsewhere: all of it is sound sh; small scripts, run here."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core import assets
from clusterctl.core.model import CloudSpec
from clusterctl.jobs.submit import make_node_files, render_environment
from clusterctl.launch import launcher
from tests.unit.making import cluster, job, node, program, request, spec
from tests.unit.scripts import WEIRD
from tests.unit.tables import rows


def test_free_port() -> None:
    text = assets.render("bootstrap/free-port.sh.j2")
    ports = set()
    for _ in range(3):
        done = subprocess.run(["/bin/sh"], input=text, capture_output=True, text=True, check=True)
        port = int(done.stdout)
        ports.add(port)
        with socket.socket() as sock:
            sock.bind(("", port))
    assert all(20000 <= port < 30000 for port in ports)


def test_free_port_avoids_what_is_used(tmp_path: Path) -> None:
    """All but one port of its range are taken, in a /proc/net/tcp of ours."""
    table = tmp_path / "tcp"
    rows = (f"  1: 00000000:{port:04X} 00000000:0000 0A" for port in range(20000, 30000))
    table.write_text("\n".join(row for row in rows if ":6590 " not in row))
    text = assets.render("bootstrap/free-port.sh.j2").replace("/proc/net/tcp6", "")
    done = subprocess.run(
        ["/bin/sh"], input=text.replace("/proc/net/tcp", str(table)), capture_output=True, text=True
    )
    assert int(done.stdout) == 0x6590


@pytest.mark.parametrize(
    "value", [*WEIRD, "", "a\n\nb\n", "\\n", "%s", "$(id)", "*", "~", "\t"], ids=ascii
)
def test_environment_file(value: str) -> None:
    text = render_environment({"MINE": value, "NEXT": "1"}, {})
    show = ("/bin/sh", "-c", 'printf "%s|%s" "$MINE" "$NEXT"')
    done = subprocess.run(
        ["/bin/sh", "-c", text, "env", "rank", *show], capture_output=True, check=True
    )
    assert done.stdout.decode() == f"{value}|1"


@pytest.mark.parametrize(("user", "starts"), [("root", True), ("ana", False)])
def test_a_program_of_root_may_start_an_mpirun(user: str, starts: bool) -> None:
    """As clusterctl's own mpirun may: `run --once` starts programs that start ranks themselves."""
    nodes = [
        node(name, f"10.0.0.1{n}", user=user) for n, name in enumerate(["launcher", "worker-1"])
    ]
    where, what = cluster(*nodes), spec(env={"PRTE_ALLOW_RUN_AS_ROOT": "0"})
    plan = launcher.plan_launch("mpirun", request(where, what))
    env, _ = make_node_files(job(where, what), where, plan, {})["worker-1"]["env"]
    assert ("export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in env) is starts
    assert "export PRTE_ALLOW_RUN_AS_ROOT=0" in env


def files(root: str, **changes: Any) -> dict[str, str]:
    """Every sh script of a job under that root, by name."""
    nodes = [
        node(name, f"10.0.0.{10 + n}", root=f"{root}/{name}")
        for n, name in enumerate(["launcher", "worker-1", "worker-2"])
    ]
    where = cluster(*nodes)
    where = replace(where, spec=replace(where.spec, cloud=CloudSpec(idle=3600.0)))
    what = spec(program=program(*WEIRD), **changes)
    plan = launcher.plan_launch(what.launcher, request(where, what))
    one = replace(job(where, what), resumes=bool(what.resume_args))
    made = make_node_files(one, where, plan, {"TOKEN": "it's\n$secret"})
    return {
        f"{name}/{path}": text
        for name, group in made.items()
        for path, (text, _) in group.items()
        if path.endswith(".sh") or path == "env"
    }


@pytest.mark.parametrize("root", WEIRD, ids=ascii)
@rows("changes", "templates.scripts_are_sound")
def test_scripts_are_sound(root: str, changes: dict[str, Any]) -> None:
    scripts = files(f"/tmp/{root}", **changes)
    assert {name.partition("/")[2] for name in scripts} == {
        *("env", "rank.sh", "agent.sh", "launch.sh"),
    }
    for name, text in scripts.items():
        done = subprocess.run(["/bin/sh", "-n"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert "it's\n$secret" not in text or name.endswith("env")


def test_scripts_please_shellcheck(need: Callable[[str], str], tmp_path: Path) -> None:
    """Of a worker and the launcher, for each way to go on."""
    known: set[str] = set()
    for number, args in enumerate(("", "--resume {snapshot}", "--resume {folder}")):
        made = files("/tmp/root", retries=1, timeout=5, resume_args=args)
        for name, text in made.items():
            if not name.startswith("worker-2/") and text not in known:
                (tmp_path / f"{number}-{name.replace('/', '-')}").write_text(text)
        known |= set(made.values())
    argv = [need("shellcheck"), "-s", "sh", "-S", "warning", "-e", "SC1097", *tmp_path.iterdir()]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_an_undefined_name_is_an_error() -> None:
    with pytest.raises(Exception, match="undefined"):
        assets.render("job/inside.sh.j2", folder="/")

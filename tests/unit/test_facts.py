"""What nodes answer, as files in tests/cases/facts: a fact's name, an output, the fields it gives.

An `expected` without a field means that it keeps its default.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterctl.core.model import NodeFacts, Python
from clusterctl.machines import facts
from tests.unit.scripts import write_program
from tests.unit.tables import read_rows

CASES = sorted((Path(__file__).resolve().parents[1] / "cases" / "facts").glob("*.json"))


def plain(value: NodeFacts) -> Any:
    return json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_answer(path: Path) -> None:
    case = json.loads(path.read_text())
    found = facts.parse_facts(f"@@fact {case['fact']}\n{case['output']}@@fact end\n")
    assert plain(found) == {**plain(NodeFacts()), **case["expected"]}


def test_every_question_has_a_case() -> None:
    asked = {json.loads(path.read_text())["fact"] for path in CASES}
    assert set(facts.list_questions(())) - asked <= {"arch"}


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OMP_THREAD_LIMIT"])
def test_threads_that_a_start_file_sets_are_no_cores(name: str) -> None:
    """nproc believes them: the host of somebody with `export OMP_NUM_THREADS=1` had one core."""
    command = facts.list_questions(())["cores"]
    said = [
        subprocess.run(["sh", "-c", command], env={**os.environ, **more}, capture_output=True)
        for more in ({}, {"OMP_NUM_THREADS": "999"}, {name: "1"})
    ]
    assert len({done.stdout for done in said}) == 1


def ask(name: str, path: Path, *pythons: str, system: str = ":/usr/bin:/bin") -> NodeFacts:
    """The fact, from its real command in sh, with `path` before the system's own on PATH."""
    command = facts.list_questions(pythons)[name]
    done = subprocess.run(
        ["/bin/sh", "-c", f"last=''\n{{ {command}; }} 2>/dev/null"],
        capture_output=True,
        text=True,
        env={"PATH": f"{path}{system}", "HOME": str(path)},
        timeout=30,
    )
    return facts.parse_facts(f"@@fact {name}\n{done.stdout}@@fact end\n")


def fake(folder: Path, name: str, text: str, code: int = 0) -> Path:
    return write_program(folder / name, f"cat <<'SAID'\n{text}\nSAID\nexit {code}")


HYDRA = """\
HYDRA build details:
    Version:                                 4.0.2
    Release Date:                            Thu Apr  7 12:34:45 CDT 2022
    CC:                              gcc
"""


def test_mpich_is_recognised_from_what_it_really_prints(need: Any, tmp_path: Path) -> None:
    """It says its version on its second line. Unseen, people are told that there is no mpirun."""
    folder = tmp_path / "mpich" / "bin"
    fake(folder, "mpirun", HYDRA)
    for tool in ("cat", "head", "sed", "grep", "awk", "tail"):
        (folder / tool).symlink_to(need(tool))
    fake(tmp_path / "python" / "bin", "python3", "")
    found = ask("mpi", folder, system=f":{tmp_path}/python/bin").mpi
    assert found is not None
    assert (found.flavour, found.version, found.prefix) == ("mpich", "4.0.2", str(folder.parent))


def test_the_mpirun_beside_a_given_python_wins(tmp_path: Path) -> None:
    folder = tmp_path / "my venv" / "bin"
    python = fake(folder, "python", "")
    fake(folder, "mpirun", "mpirun (Open MPI) 5.0.11")
    fake(tmp_path / "system", "mpirun", "mpirun (Open MPI) 4.1.4")
    found = ask("mpi", tmp_path / "system", str(python)).mpi
    assert found is not None
    assert (found.version, found.prefix) == ("5.0.11", str(folder.parent))


def test_a_broken_nvidia_smi(tmp_path: Path) -> None:
    fake(tmp_path, "nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch", 18)
    assert ask("nvidia", tmp_path) == NodeFacts()


def test_this_machine_answers(tmp_path: Path) -> None:
    """Every command is sound sh, and what it prints here makes sense."""
    text = "".join(
        f"echo '@@fact {name}'\n{{ {command}; }} 2>/dev/null\n"
        for name, command in facts.list_questions(()).items()
    )
    done = subprocess.run(["/bin/sh", "-s"], input=text, capture_output=True, text=True, timeout=60)
    found = facts.parse_facts(done.stdout)
    assert found.hostname == os.uname().nodename
    assert found.arch == os.uname().machine
    assert 1 <= found.physical_cores <= (os.cpu_count() or 1)
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.tools["awk"].startswith("/")


def ask_python(python: str, folder: Path | None = None) -> Python:
    """What a node says of this Python, in its home folder."""
    question = facts.list_questions([python], only=True)["python"]
    done = subprocess.run(
        ["sh", "-c", question], cwd=folder, capture_output=True, text=True, timeout=60
    )
    found = facts.parse_facts(f"@@fact python\n{done.stdout}@@fact end\n").python
    assert found is not None, done.stderr
    return found


def test_a_module_in_the_current_folder_is_not_run(tmp_path: Path) -> None:
    """The home folder there may have a `json.py`."""
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')\n")
    assert ask_python(sys.executable, tmp_path).executable == sys.executable


def test_packages_are_found_however_they_were_installed(tmp_path: Path) -> None:
    """By pip, by distutils as Debian's are, as an egg, from a checkout; and one that is broken."""
    about = "Metadata-Version: 2.1\nName: {}\nVersion: {}\nSummary: Name: no\n\nVersion: 9\n"
    for path, name, version in read_rows("facts", "packages_are_found_however_they_were"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(about.format(name, version))
    (tmp_path / "site/broken-1.dist-info").mkdir()
    (tmp_path / "site/odd-1.dist-info").mkdir()
    (tmp_path / "site/odd-1.dist-info/METADATA").write_bytes(b"\xff\n")
    path = f"{tmp_path}/site:{tmp_path}/site/an.egg:{tmp_path}/nothing"
    exec = f'PYTHONPATH={path} exec {sys.executable} -S "$@"'
    python = write_program(tmp_path / "python", exec)
    found = ask_python(str(python))
    assert found.installed == "an==3 by-pip==1.0 linked==2.0+cpu pyyaml==5.3"


def test_the_same_packages_as_python_itself_finds() -> None:
    found = ask_python(sys.executable)
    known = {one.name.lower(): one.version for one in metadata.distributions()}
    assert found.packages == {name: known[name] for name in facts.PACKAGES if name in known}
    named = {re.sub("[-_.]+", "-", name): version for name, version in known.items()}
    assert dict(one.split("==") for one in found.installed.split()) == named


def test_of_two_versions_that_is_told_which_is_imported(tmp_path: Path) -> None:
    """As pip's `--user` puts a second one before that of the system."""
    for folder, version in (("first", "2.0"), ("second", "1.0")):
        info = tmp_path / folder / f"Odd_Name-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: Odd_Name\nVersion: {version}\n")
    exec = f'PYTHONPATH={tmp_path}/first:{tmp_path}/second exec {sys.executable} "$@"'
    python = write_program(tmp_path / "python", exec)
    found = ask_python(str(python))
    assert "odd-name==2.0" in found.installed.split()
    assert f"numpy=={found.packages['numpy']}" in found.installed.split()


def test_a_device_with_an_ipv6_address_is_not_alone() -> None:
    """Link-local addresses are on every device and do not count."""
    text = """[
        {"ifname": "eth0", "flags": ["UP"], "addr_info": [
            {"family": "inet", "local": "10.0.0.1", "prefixlen": 24, "scope": "global"},
            {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"}]},
        {"ifname": "eth1", "flags": ["UP"], "addr_info": [
            {"family": "inet", "local": "10.0.1.1", "prefixlen": 24, "scope": "global"},
            {"family": "inet6", "local": "fd00::1", "prefixlen": 64, "scope": "global"}]}]"""
    found = facts.parse_interfaces(text)["interfaces"]
    assert [(item.device, item.alone) for item in found] == [("eth0", True), ("eth1", False)]


OMPI_INFO = 'mca:pml:ucx:version:"mca:2.1.0"\nmca:pml:ucx:version:"component:5.0.8"\nother:x:1'
UCX_INFO = "# Memory domain: t\n#      Transport: tcp\n#         Device: eth0\n#  Type: network"


def test_what_the_transport_can_do_is_asked_beside_the_mpirun_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where there is a GPU or an RDMA device: elsewhere the answer would change nothing."""
    monkeypatch.setattr(facts, "FAST", "false")
    beside = tmp_path / "my venv" / "bin"
    python = fake(beside, "python", "")
    fake(beside, "ompi_info", OMPI_INFO)
    fake(beside, "ucx_info", UCX_INFO)
    fake(tmp_path / "system", "fi_info", "provider: efa\n    fabric: EFA-1")
    assert ask("components", tmp_path / "system", str(python)) == NodeFacts()
    monkeypatch.setattr(facts, "FAST", "true")
    assert ask("components", tmp_path / "system", str(python)).mpi_components == ("pml:ucx",)
    assert ask("ucx", tmp_path / "system", str(python)).ucx == ("tcp/eth0",)
    assert ask("fabrics", tmp_path / "system").fabrics == ("efa",)


def test_the_real_ompi_info(need: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "FAST", "true")
    folder = Path(need("ompi_info")).parent
    found = ask("components", folder).mpi_components
    assert {"pml:ob1", "btl:tcp", "btl:self"} <= set(found)

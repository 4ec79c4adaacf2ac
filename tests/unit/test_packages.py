"""The packages of a job: how they are resolved, how nodes get them.

uv is the real one, with wheels of the test's own. The nodes are folders of this machine, and a way
from one to another is a program that runs a command here.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import sysconfig
import venv
from base64 import b64encode
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from msgspec.structs import replace

from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.project import packages as project_packages
from clusterctl.project.program import resolve_program
from clusterctl.state.home import find_home
from tests import wheels
from tests.unit.calling import Call
from tests.unit.making import cluster
from tests.unit.packaged import (
    KEPT,
    PROJECT,
    Install,
    bring,
    here,
    index,
    install,
    project,
    python_of,
    resolve,
    run,
)
from tests.unit.tables import rows

__all__ = ["index", "install", "project"]


def test_a_node_gets_the_packages_beside_those_of_its_python(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("-r more.txt\n")
    Path("more.txt").write_text("demo>=1  # the newest\n")
    one = here("worker-1", tmp_path)
    packages = resolve("requirements.txt", one)
    bring(packages.digest, one)
    own = sysconfig.get_path("purelib")
    code = f"import demo, helper, sys; print(demo.VERSION, helper.VERSION, {own!r} in sys.path)"
    assert run(python_of(one), "-c", code) == "2.0 1.5 True\n"
    assert run(python_of(one).removesuffix("python") + "demo-version") == "2.0\n"


@pytest.mark.parametrize("system", [False, True])
def test_the_environment_sees_what_the_nodes_python_sees(
    system: bool, project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """Also where that is the Python of a virtual environment: what lies below it may be another
    version of something, or slow to start."""
    own = tmp_path / "own"
    venv.create(own, symlinks=True, system_site_packages=system)
    minor = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    (own / minor / "mine.py").touch()
    tools = {"tool": own / "bin" / "python", "stranger": "/bin/python3"}
    for name, python in tools.items():
        text = f"#!{python}\nimport demo, mine, sys\nprint(demo.VERSION, sys.argv[1])\n"
        (own / "bin" / name).write_text(text)
        (own / "bin" / name).chmod(0o755)
    Path("requirements.txt").write_text("demo\n")
    one = here("worker-1", tmp_path, executable=str(own / "bin" / "python"))
    install("requirements.txt", one)
    code = "import site; print(site.getsitepackages()[1:])"
    beneath = run(str(own / "bin" / "python"), "-c", code)
    assert run(python_of(one), "-c", f"import demo, mine; {code}") == beneath
    assert (beneath != "[]\n") == system
    commands = Path(python_of(one)).parent
    assert run(str(commands / "tool"), "x") == "2.0 x\n", "commands of the node's Python, too"
    assert not (commands / "stranger").exists(), "it is another Python's"


def test_all_nodes_get_them_at_once(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("demo\n")
    nodes = [here(f"worker-{number}", tmp_path) for number in range(1, 4)]
    said = install("requirements.txt", *nodes)
    assert sum(line.startswith("copying ") for line in said) == 1
    for one in nodes:
        assert run(python_of(one), "train.py") == "2.0\n"


def test_the_environment_is_made_in_the_container_of_a_node(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """The node's Python is there, behind a second sshd."""
    Path("requirements.txt").write_text("demo\n")
    one = replace(here("worker-1", tmp_path), job_port=2222, machine="i-1")
    install("requirements.txt", one)
    assert (tmp_path / "passed-on").read_text() == "worker-1\n"
    assert run(python_of(one), "train.py") == "2.0\n"


def test_a_node_that_has_them_is_left_alone(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("demo\n")
    one = here("worker-1", tmp_path)
    install("requirements.txt", one)
    shutil.rmtree(index)
    assert install("requirements.txt", one) == []


@pytest.fixture
def wheels_of_its_own(tmp_path: Path, index: Path) -> Path:
    """A folder of packages that only a file of the project names."""
    folder = tmp_path / "their wheels"
    wheels.make(folder, "private", "1.0")
    return folder


@rows("name, text", "packages.packages_are_fetched_from_where_the_file_says")
def test_packages_are_fetched_from_where_the_file_says(
    name: str,
    text: str,
    project: Path,
    wheels_of_its_own: Path,
    install: Install,
    tmp_path: Path,
) -> None:
    """Not only resolved there. Folders are those beside the file that names them."""
    (project / "wheels").symlink_to(wheels_of_its_own)
    (project / "more").mkdir()
    (project / "more" / "private.txt").write_text("--find-links=../wheels\nprivate\n")
    Path(name).write_text(text.format(url=(project / "wheels").as_uri()))
    worker = here("worker-1", tmp_path)
    install("", worker)
    assert run(python_of(worker), "-c", "import private; print(private.VERSION)") == "1.0\n"


def test_a_requirements_file_means_what_pip_makes_of_it(
    project: Path,
    index: Path,
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch's index, which so many name as an extra one, has old versions of other packages."""
    for place, wheel in (("usual", "demo-2.0"), ("usual", "helper-1.5"), ("extra", "demo-1.0")):
        name = f"{wheel}-py3-none-any.whl"
        page = tmp_path / place / wheel.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True)
        shutil.copy(index / name, page.parent)
        page.write_text(f'<a href="{name}">{name}</a>')
    (index / "uv.toml").write_text(f'index-url = "{(tmp_path / "usual").as_uri()}"\n')
    extra = (tmp_path / "extra").as_uri()
    Path("requirements.txt").write_text(f"--extra-index-url {extra}\ndemo>=1.5\n")
    one = here("worker-1", tmp_path)
    with monkeypatch.context() as strict:
        strict.setenv("UV_INDEX_STRATEGY", "first-index")
        with pytest.raises(UsageError, match=r"demo>=1\.5"):
            install("", one)
    install("", one)
    assert run(python_of(one), "train.py") == "2.0\n"


def test_a_hash_that_the_file_names_has_to_be_that_of_the_package(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    real = hashlib.sha256((index / "demo-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    lines = "demo==1.0 \\\n    --hash=sha256:{}\n"
    Path("requirements.txt").write_text(lines.format("0" * 64))
    with pytest.raises(LaunchError, match=r"requirements\.txt: .*hash.*demo==1\.0"):
        install("", here("worker-1", tmp_path))
    Path("requirements.txt").write_text(lines.format(f"{'0' * 64} --hash=sha256:{real}"))
    worker = here("worker-2", tmp_path)
    install("", worker)
    assert run(python_of(worker), "-c", "import demo; print(demo.VERSION)") == "1.0\n"


def test_a_job_that_is_run_again_gets_the_versions_that_it_had(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """Whatever its file says now, and also on nodes with another Python."""
    Path("requirements.txt").write_text("demo\n")
    packages = resolve("", here("worker-1", tmp_path / "first"))
    wheels.make(index, "demo", "3.0")
    Path("requirements.txt").write_text("demo==1.0\n")
    for number, has in enumerate((KEPT, {})):
        fresh = here("worker-1", tmp_path / str(number), packages=has)  # type: ignore[arg-type]
        bring(packages.digest, fresh)
        assert run(python_of(fresh), "train.py") == "2.0\n"
    assert set(project_packages.read_versions(packages.digest, fresh, find_home())) == {
        "demo==2.0",
        "helper==1.5",
    }


def test_equal_versions_make_one_environment(project: Path, index: Path, tmp_path: Path) -> None:
    """Whatever the file says beside them; the same text means the same versions."""
    one = here("worker-1", tmp_path)
    Path("requirements.txt").write_text("demo\n")
    first = resolve("", one)
    Path("requirements.txt").write_text("demo  # ours\nhelper\n")
    assert resolve("", one).digest == first.digest
    wheels.make(index, "demo", "3.0")
    assert resolve("", one).digest == first.digest
    Path("requirements.txt").write_text("-r more.txt\n")
    Path("more.txt").write_text("demo<3\n")
    assert resolve("", one).digest == first.digest
    Path("more.txt").write_text("demo\n")
    assert resolve("", one).digest != first.digest


class Private(SimpleHTTPRequestHandler):
    """An index for `user` with the password `s3cret`."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == f"Basic {b64encode(b'user:s3cret').decode()}":
            return super().do_GET()
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        return self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.txt"])
def test_the_password_of_an_index_stays_in_its_file(
    name: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "www").mkdir()
    wheels.make(tmp_path / "www" / "private", "private", "1.0")
    wheel = "private-1.0-py3-none-any.whl"
    (tmp_path / "www/private/index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    handler = partial(Private, directory=str(tmp_path / "www"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://user:s3cret@127.0.0.1:{server.server_port}"
        table = f'[[tool.uv.index]]\nurl = "{url}"\ndefault = true\n'
        text = f'{PROJECT}dependencies = ["private"]\n{table}'
        Path(name).write_text(text if name == "pyproject.toml" else f"-i {url}\nprivate\n")
        worker = here("worker-1", tmp_path)
        packages = resolve("", worker)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another"))  # as if uv had forgotten it
        bring(packages.digest, worker)
        assert run(python_of(worker), "-c", "import private; print(private.VERSION)") == "1.0\n"
        kept = [path.read_text() for path in find_home().packages.rglob("*.json")]
        assert any("private" in text for text in kept)
        assert not any("s3cret" in text for text in kept)
        Path(name).write_text(Path(name).read_text().replace("private", "absent", 1))
        with pytest.raises(ClusterctlError) as caught:
            resolve("", worker)
        assert "s3cret" not in caught.value.message
        server.shutdown()


def test_the_torch_of_the_nodes_is_kept(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("trainer\ntorch==2.13.0\nnvidia-cublas-cu12==12.1\n")
    wheels.make(index, "nvidia_cublas_cu12", "12.1")
    wheels.make(index, "torch", "2.13.0")
    one = here("worker-1", tmp_path)
    install("requirements.txt", one)
    found = {path.name for path in Path(python_of(one)).parents[1].glob("lib/*/site-packages/*")}
    assert "trainer" in found
    assert not {"torch", "nvidia_cublas_cu12"} & found


def test_a_package_that_does_not_fit_the_torch_of_the_nodes(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("outdated\n")
    with pytest.raises(UsageError, match=r"outdated depend on torch<2\.5") as caught:
        install("requirements.txt", here("worker-1", tmp_path))
    assert "\n" not in caught.value.message
    assert str(caught.value.hint).startswith("requirements.txt: correct the file")


def test_another_torch_of_a_job_is_used_instead_of_that_of_the_nodes(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """Only what does not fit is brought; one line names both versions."""
    wheels.make(index, "torch", "2.4.1")
    Path("requirements.txt").write_text("outdated\ndemo<2\n")
    one = here("worker-1", tmp_path)
    (lock,) = resolve("", one).locks.values()
    assert lock.note == "torch 2.4.1 of requirements.txt is used instead of the nodes' 2.13.0+cpu"
    assert lock.kept == ("mpi4py 4.1.0",)
    install("", one)
    assert run(python_of(one), "-c", "import torch; print(torch.VERSION)") == "2.4.1\n"


def test_an_invalid_script_block_is_that_of_its_script(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("train.py").write_text('# /// script\n# dependencies = ["demo"\n# ///\n')
    with pytest.raises(UsageError, match=r"train\.py"):
        install("", here("worker-1", tmp_path))


def test_another_python_of_the_nodes_brings_nothing_of_theirs(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """Found by its name there; where it is missing, nothing is downloaded."""
    wanted = project_packages.find_package_files(resolve_program("train.py", ()), "", "3.99")
    assert wanted is not None
    assert wanted.source == "--python 3.99"
    minor = ".".join(platform.python_version_tuple()[:2])
    Path("requirements.txt").write_text("demo==1.0\n")
    one, two = here("worker-1", tmp_path), here("worker-2", tmp_path)
    chosen = project_packages.choose_packages(cluster(one), minor)
    packages = resolve("requirements.txt", *chosen.nodes)
    missing = project_packages.choose_packages(cluster(one, two), "3.99")
    with pytest.raises(LaunchError, match=r"no python3.99 on worker-1, worker-2"):
        bring(packages.digest, *missing.nodes)
    assert not Path(one.root, "packages").exists()
    bring(packages.digest, *chosen.nodes)
    said = run(python_of(one), "-c", "import demo, sys; print(demo.VERSION, sys.version_info[:2])")
    assert said == f"1.0 ({minor.replace('.', ', ')})\n"
    (equipped,) = project_packages.equip_nodes(chosen, packages.digest).nodes
    assert equipped.python == python_of(one)


def test_a_job_says_which_python_it_uses(project: Path, call: Call, lab: None) -> None:
    said = call("run", "--dry-run", "--python", "3.12", "train.py")
    assert "# using the packages of --python 3.12 with python3.12 of the nodes" in said.out
    assert "/packages/" in said.out.split("# every rank")[1].split("\n")[1]
    assert "'3': expected a Python version" in call("run", "--python", "3", "train.py").err

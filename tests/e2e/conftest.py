"""One cluster for most tests, and others for those that break theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, Traces

MakeCli = Callable[..., Cli]


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state home of a cluster of two workers that every test leaves as it found it."""
    folder = tmp_path_factory.mktemp("shared")
    cli = Cli(folder / "state", folder)
    cli("up")
    traces = Traces.of(cli)
    yield cli.home
    cli("down", "--discard", timeout=120)
    assert traces.left() == []


@pytest.fixture
def cli(shared_home: Path, tmp_path: Path) -> Iterator[Cli]:
    """clusterctl with the shared cluster, in an empty folder. No job goes on after the test."""
    folder = tmp_path / "project"
    folder.mkdir()
    shared = Cli(shared_home, folder)
    yield shared
    shared.end()
    for number in shared.unfinished():
        shared("cancel", number, code=None)


@pytest.fixture
def cluster_id(cli: Cli) -> str:
    return str(cli.status()["id"])


@pytest.fixture
def make_cli(tmp_path: Path) -> Iterator[MakeCli]:
    """clusterctl with state homes of the test's own. All clusters in them go when it ends."""
    made: list[Cli] = []

    def make(home: str = "own-state", folder: str = "own-project", **options: object) -> Cli:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        made.append(Cli(tmp_path / home, tmp_path / folder, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for cli in made:
        cli.end()
        for cluster in cli.clusters():
            cli("down", "--force", cluster, timeout=120)


@pytest.fixture
def own(make_cli: MakeCli) -> Cli:
    """clusterctl with an empty state home."""
    return make_cli()

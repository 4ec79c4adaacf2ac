"""How two ranks are asked for, in the words of each batch system."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit import batch_here
from tests.unit.calling import Call


@pytest.mark.parametrize(("system", "size"), [("slurm", "--nodes 2"), ("sge", "-pe NAME 2")])
def test_attach_and_verify_ask_for_two_ranks_in_the_words_of_the_batch_system(
    system: str, size: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_here.install(system, tmp_path / "queue", monkeypatch)
    attached = call("attach", "lab", f"--{system}", "--workdir", str(tmp_path / "work"))
    assert f"clusterctl run -c lab {size} reduce_all.py" in attached.err
    refused = call("verify", "lab")
    assert refused.code == 2
    assert f"clusterctl run {size} reduce_all.py" in refused.err

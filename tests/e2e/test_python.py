"""The Python API on a real cluster: the examples of its guide, run as they stand there."""

from __future__ import annotations

import ast
import base64
import doctest
import io
import json
from typing import Any

import pytest

from clusterctl.actions.common import open_store
from tests.e2e.cli import ROOT, Cli

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]


def test_the_guide_is_true(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster that exists, which `with` leaves in peace."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(cli.home))
    monkeypatch.chdir(cli.folder)
    guide = str(ROOT / "docs" / "python.md")
    done = doctest.testfile(
        guide, module_relative=False, encoding="utf-8", optionflags=doctest.ELLIPSIS
    )
    assert done.attempted > 10
    assert done.failed == 0, "the differences are above"
    assert open_store().list_names() == ("default",)


@pytest.mark.all
def test_the_notebook_is_true(own: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells, one after the other, give what stands below them, and leave no cluster."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(own.home))
    monkeypatch.chdir(own.folder)
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = pictures = 0
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        parsed = ast.parse("".join(cell["source"]))
        last = parsed.body.pop()
        assert isinstance(last, ast.Expr), "each cell of it shows something"
        exec(compile(parsed, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        [output] = cell["outputs"]
        assert repr(value) == "".join(output["data"]["text/plain"])
        if picture := output["data"].get("image/png"):
            assert base64.b64decode(picture).startswith(b"\x89PNG")
            value.savefig(io.BytesIO())  # as the notebook would
        pictures += picture is not None
        shown += 1
    assert pictures == 1
    assert shown >= 5
    assert open_store().list_names() == ()

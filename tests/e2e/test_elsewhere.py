"""Other modes, and homes and folders with odd names."""

from __future__ import annotations

import json

import pytest

from tests.e2e.cli import Traces
from tests.e2e.conftest import MakeCli

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

ODD = 'a $HOME; "odd" *path* & #1 % \\ ünï'
ARGUMENTS = ["two words", "it's", "$HOME", "", "new\nline"]


def test_loopback_does_all_that_namespaces_do(make_cli: MakeCli) -> None:
    """As an ordinary user, or a plain container, gets it. One host in truth: mpirun forks, and
    everything a person does works the same."""
    loopback = make_cli(env={"CLUSTERCTL_LOCAL_MODE": "loopback"})
    assert loopback.json("up")["mode"] == "loopback"
    status = loopback.status("--live")
    assert all(node["live"].startswith("running") for node in status["nodes"])
    assert "loopback" in loopback("status").out
    assert loopback("ssh", "worker-2", "--", "echo here").out == "here\n"
    for ranks in (2, 4):
        loopback.script(
            "who.py",
            "import json, os, sys\n"
            "open('made-' + os.environ['RANK'], 'w').close()\n"
            "print(json.dumps([os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1:]]))",
        )
        done = loopback("run", "--ranks", ranks, "who.py", *ARGUMENTS)
        for rank in range(ranks):
            assert json.loads(done.of(rank)[0]) == [str(rank), str(ranks), ARGUMENTS]
        fetched = loopback.json("fetch", done.job)
        assert sorted(item["path"] for item in fetched["files"]) == [
            f"made-{rank}" for rank in range(ranks)
        ]
    for ranks, *words in ((4, "--backend", "mpi"), (2, "--launcher", "torchrun")):
        reduced = loopback("run", "--ranks", ranks, *words, "reduce_all.py", "--no-table")
        assert f"ok: {ranks} ranks" in reduced.out
        assert ("over mpi" if "mpi" in words else "over gloo") in reduced.out
    plan = loopback("run", "--dry-run", "reduce_all.py").out
    assert "one host" in plan


@pytest.mark.netns
def test_odd_paths_everywhere(make_cli: MakeCli) -> None:
    """A state home and a working folder with blanks, quotes, `$`, `;` and what not."""
    cli = make_cli(f"-state =[a]{{b}}|c<d> of {ODD}", f"work in {ODD}")
    cli("up")
    cli.script(
        f"sub {ODD}/prog {ODD}.py",
        "import json, os, sys\n"
        "open('made by ' + os.environ['RANK'], 'w').close()\n"
        "print(json.dumps(sys.argv), flush=True)",
    )
    script = f"sub {ODD}/prog {ODD}.py"
    done = cli("run", "--ranks", 4, script, *ARGUMENTS)
    for rank in range(4):
        assert json.loads(done.of(rank)[0])[1:] == ARGUMENTS
    assert len(cli.json("fetch", done.job)["files"]) == 4
    assert cli("run", "--launcher", "torchrun", script, *ARGUMENTS).code == 0
    assert "ok: 2 ranks" in cli("run", "reduce_all.py", "--no-table").out
    cli.script(f"{ODD}.c", '#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n')
    assert cli("run", f"{ODD}.c").of(1) == ["compiled"]
    cli.script("waits.py", "import time; print('on', flush=True); time.sleep(300)")
    running = cli.start("run", "waits.py")
    running.until("on", times=2)
    running.interrupt()
    assert "no processes of it found on" in running.wait(20).err
    cli("cp", script, f"worker-1:copied {ODD}")
    assert cli("ssh", "worker-1", "--", "test", "-f", f"copied {ODD}").code == 0
    traces = Traces.of(cli)
    cli("down", "--discard")
    assert traces.left() == []
    assert cli("logs", done.job, "--rank", 3).of(3) == done.of(3)

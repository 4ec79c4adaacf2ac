"""What jobs make: fetched from all nodes, carried over by retries and `rerun --resume`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.cli import Cli

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

MAKES = """
import os, pathlib
rank = os.environ["RANK"]
pathlib.Path("results dir/deep").mkdir(parents=True)
pathlib.Path("results dir/deep", f"of rank {rank}; $x").write_text(rank * 3)
pathlib.Path("shared-name.txt").write_text(f"rank {rank}")
pathlib.Path("staged-changed.txt").write_text(f"changed by {rank}")
pathlib.Path("new\\nline").write_bytes(bytes(range(256)))
pathlib.Path("empty").touch()
tool = pathlib.Path("tool.sh"); tool.write_text("#!/bin/sh\\n"); tool.chmod(0o755)
"""


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_without_a_number_the_last_job_is_meant(cli: Cli) -> None:
    cli.script("writes.py", "print('said'); open('made.txt', 'w').write('x')")
    number = cli("run", "-n", "1", "writes.py").job
    logs = cli("logs")
    assert logs.of(0) == ["said"]
    assert f"job {number}: writes.py" in logs.err
    assert f"job-{number}/worker-1/made.txt" in cli("fetch").out
    assert f"job {number} had already ended" in cli("cancel").out
    cli("logs", "-c", "nowhere", code=7)


def test_fetch_brings_what_is_new_or_changed_from_all_nodes(cli: Cli) -> None:
    cli.script("project/makes.py", MAKES)
    cli.script("project/staged-changed.txt", "before")
    cli.script("project/staged-same.txt", "before")
    done = cli("run", "project/makes.py")
    said = cli("fetch", done.job)
    got = files(cli.folder / f"job-{done.job}")
    expected: dict[str, bytes] = {".clusterctl-fetched": b""}
    for rank, node in (("0", "worker-1"), ("1", "worker-2")):
        expected |= {
            f"{node}/results dir/deep/of rank {rank}; $x": (rank * 3).encode(),
            f"{node}/shared-name.txt": f"rank {rank}".encode(),
            f"{node}/staged-changed.txt": f"changed by {rank}".encode(),
            f"{node}/new\nline": bytes(range(256)),
            f"{node}/empty": b"",
            f"{node}/tool.sh": b"#!/bin/sh\n",
        }
    assert got == expected
    assert os.access(cli.folder / f"job-{done.job}" / "worker-1" / "tool.sh", os.X_OK)
    assert f"job-{done.job}/worker-1/shared-name.txt\n" in said.out
    assert f"job-{done.job}/worker-1/new\\nline\n" in said.out
    listed = cli.json("fetch", done.job, "--to", "some where")
    assert files(cli.folder / "some where") == expected
    listed_names = {f"{item['node']}/{item['path']}" for item in listed["files"]}
    assert listed_names == set(expected) - {".clusterctl-fetched"}
    assert all(
        item["size"] == len(expected[f"{item['node']}/{item['path']}"]) for item in listed["files"]
    )


COUNTS_RUNS = """
import os, pathlib, sys
snapshot = pathlib.Path("snapshot-" + os.environ["RANK"])
before = int(snapshot.read_text()) if snapshot.exists() else 0
snapshot.write_text(str(before + 1))
print("run", before + 1, flush=True)
if before + 1 < int(sys.argv[1]):
    sys.exit(4)
"""


def test_rerun_is_fresh_and_resume_goes_on(cli: Cli) -> None:
    cli.script("counts.py", COUNTS_RUNS)
    first = cli("run", "counts.py", 3, code=4)
    assert [first.of(rank) for rank in (0, 1)] == [["run 1"]] * 2 or first.of(0) == ["run 1"]
    fresh = cli("rerun", first.job, code=4)
    assert fresh.of(0) == ["run 1"]
    second = cli("rerun", first.job, "--resume", code=4)
    assert second.of(0) == ["run 2"]
    third = cli("rerun", "--resume", second.job)
    assert third.of(0) == ["run 3"]
    jobs = cli.jobs()
    assert jobs[third.job]["rerun_of"] == second.job
    assert jobs[second.job]["rerun_of"] == jobs[fresh.job]["rerun_of"] == first.job
    outputs = cli.json("fetch", third.job)["files"]
    assert "snapshot-0" in [item["path"] for item in outputs]


def test_rerun_is_of_the_files_as_they_were(cli: Cli) -> None:
    """Same program, tree, options and arguments, even when the folder here has changed or gone."""
    script = cli.script("prints.py", "import os; print('old', os.environ['A'], flush=True)")
    done = cli("run", "--env", "A=b c", "--ranks", 1, "prints.py")
    script.write_text("print('new')")
    assert cli("rerun", done.job).of(0) == ["old b c"]
    script.unlink()
    again = cli("rerun", done.job, cwd=cli.folder.parent)
    assert again.of(0) == ["old b c"]
    assert cli.job(again.job)["ranks"] == 1


def test_history_and_logs_outlive_the_cluster(own: Cli) -> None:
    """After `down`: jobs with exit and duration, logs whole; fetch says why it cannot."""
    own("up")
    own.script("prints.py", "import sys\nfor n in range(2000): print(n)\nsys.exit(6)")
    done = own("run", "--ranks", 2, "prints.py", code=6)
    own.script("detached.py", "print('seen by nobody', flush=True); open('made', 'w').write('x')")
    detached = own.detach("detached.py")
    own.until_state(detached, "succeeded")
    gone = own.json("down", "--discard")
    assert [item["job"] for item in gone["unfetched"]] == [detached]
    jobs = own.jobs()
    assert (jobs[done.job]["state"], jobs[done.job]["program_exit_code"]) == ("failed", 6)
    assert jobs[done.job]["seconds"] > 0
    assert own("logs", done.job).of(1) == [str(n) for n in range(2000)]
    assert own("logs", detached).of(0) == ["seen by nobody"]
    assert own("logs", detached, "-f").of(1) == ["seen by nobody"]
    for verb in ("fetch", "rerun"):
        refused = own(verb, done.job, code=7)
        assert "→" in refused.err
    own("up")
    again = own("rerun", detached)
    assert again.of(0) == ["seen by nobody"]
    refused = own("rerun", "--resume", detached, code=7)
    assert "gone" in refused.err


def test_a_compiled_program_is_no_output_and_fetched_files_are_not_staged(cli: Cli) -> None:
    """The name begins with a dash, as it may."""
    cli.script(
        "-writes.c", '#include <stdio.h>\nint main(void) { return !fopen("out.txt", "w"); }\n'
    )
    done = cli("run", "-n", 1, "./-writes.c")
    assert cli("fetch", done.job).out == f"job-{done.job}/worker-1/out.txt\n"
    assert "stage: 1 file" in cli("run", "--dry-run", "./-writes.c").out
    (cli.folder / "file").touch()
    assert "is a file" in cli("fetch", done.job, "--to", "file", code=2).err

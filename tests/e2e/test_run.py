"""run: what reaches the program, what comes back from it, and how its end is told."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Need
from tests.e2e.cli import STUBBORN, Cli, of_job
from tests.terminal import Terminal
from tests.unit.tables import read_rows

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

WHO = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)"

ARGUMENTS = read_rows("run", "arguments")


def test_each_stream_is_tagged_and_goes_where_it_belongs(cli: Cli) -> None:
    """A rank's stdout is on stdout and its stderr on stderr, each line with the rank's number."""
    cli.script(
        "both.py",
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "print('out of', rank); print('err of', rank, file=sys.stderr)\n"
        "print('no newline', end='')",
    )
    done = cli("run", "both.py")
    for rank in (0, 1):
        assert done.of(rank) == [f"out of {rank}", "no newline"]
        assert done.of(rank, "err") == [f"err of {rank}"]
    assert "err of" not in done.out
    assert len(done.out.splitlines()) == 4
    assert f"job {done.job} succeeded" in done.err


def test_arguments_reach_the_program_unchanged(cli: Cli) -> None:
    """Blanks, quotes, `$`, newlines, empty ones, and what looks like an option of ours."""
    cli.script("echo.py", "import json, sys; print(json.dumps(sys.argv[1:]), flush=True)")
    done = cli("run", "echo.py", *ARGUMENTS)
    for rank in (0, 1):
        assert json.loads(done.of(rank)[0]) == ARGUMENTS
    again = cli("rerun", done.job)
    assert json.loads(again.of(0)[0]) == ARGUMENTS
    assert cli.job(done.job)["args"] == ARGUMENTS


def test_an_executable_and_a_script_without_suffix(cli: Cli) -> None:
    """Anything executable runs as it is, with its arguments and its folder."""
    path = cli.script("my binary", '#!/bin/sh\nprintf "%s|" "$@"; echo; exit 7\n')
    path.chmod(0o755)
    done = cli("run", "./my binary", "--flag", "a b", "$x", code=7)
    assert done.of(0) == ["--flag|a b|$x|"]
    path.chmod(0o644)
    refused = cli("run", "./my binary", code=2)
    assert "chmod" in refused.err


def test_a_command_of_the_nodes_runs_on_every_rank(cli: Cli) -> None:
    done = cli("run", "--", "sh", "-c", 'echo "$RANK of $WORLD_SIZE"; cat; exit "$1"', "sh", "0")
    assert (done.of(0), done.of(1)) == (["0 of 2"], ["1 of 2"])
    cli.script("ours.py", "import sys; print(sys.executable)")
    same = cli("run", "python", "ours.py")
    assert same.of(0) == cli("run", "--", "python", "-c", "import sys; print(sys.executable)").of(0)
    missing = cli("run", "--", "no-such-command", code=127)
    assert "no-such-command" in missing.err


def test_a_c_source_is_compiled_with_mpi(cli: Cli, need: Need) -> None:
    """`clusterctl run hello.c`, bundled; and one's own that talks over MPI."""
    need("cc")
    done = cli("run", "hello.c")
    assert len(done.out.splitlines()) >= 2
    need("mpicc")
    cli.script(
        "sum.c",
        "#include <math.h>\n#include <mpi.h>\n#include <stdio.h>\ndouble half(double);\n"
        "int main(int argc, char **argv) {\n"
        "  int rank, sum; MPI_Init(&argc, &argv); MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n"
        "  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);\n"
        '  printf("%s %.0f of rank %d\\n", argv[1], TWICE * half(sqrt(sum * sum)), rank);\n'
        "  return MPI_Finalize(); }\n",
    )
    cli.script("half.c", "double half(double x) { return x / 2; }\n")
    more = ("-e", "CPPFLAGS=-DTWICE=2", "--source", "half.c")
    done = cli("run", "--ranks", 4, *more, "sum.c", "the sum:")
    assert [done.of(rank) for rank in range(4)] == [[f"the sum: 6 of rank {r}"] for r in range(4)]
    cli.script("wrong.c", "int main( { return 0; }\n")
    wrong = cli("run", "wrong.c", code=6)
    assert "wrong.c" in wrong.err
    assert "error" in wrong.err


def test_the_programs_exit_code_is_passed_and_the_first_failing_rank_named(
    cli: Cli, cluster_id: str
) -> None:
    """Rank 1 fails; the others, deaf to SIGTERM and with deaf children, are gone within 10 s."""
    cli.script("stubborn.py", STUBBORN)
    running = cli.start("run", "--ranks", 4, "--env", "FAILS=2", "stubborn.py")
    running.until("ready", times=1)
    done = running.wait(15)
    assert done.code == 3
    assert "rank 2 on worker-2 exited 3" in done.err
    assert of_job(cluster_id, done.job) == []
    job = cli.job(done.job)
    assert job["state"] == "failed"
    assert job["failure"] == {"rank": 2, "node": "worker-2", "exit_code": 3}
    assert job["program_exit_code"] == 3
    assert set(job["survivors"].values()) == {0}


def test_not_one_line_is_lost(cli: Cli) -> None:
    """8 ranks print as fast as they can: every line arrives once and in order."""
    lines = 20_000
    cli.script(
        "many.py",
        "import os\n"
        "rank = os.environ['RANK']\n"
        f"print('\\n'.join(f'{{rank}} {{n}} of many' for n in range({lines})))",
    )
    done = cli("run", "--ranks", 8, "many.py", timeout=110)
    by_rank: dict[str, list[str]] = {}
    for line in done.out.splitlines():
        tag, _, text = line.partition(" ")
        by_rank.setdefault(tag, []).append(text)
    assert by_rank == {
        f"[{rank}]": [f"{rank} {n} of many" for n in range(lines)] for rank in range(8)
    }
    kept = cli("logs", done.job, "--rank", 5, timeout=60)
    assert kept.of(5) == by_rank["[5]"]


def test_odd_output_survives(cli: Cli) -> None:
    """Bytes that are not UTF-8, carriage returns, very long lines, empty lines, NUL."""
    cli.script(
        "odd.py",
        "import sys\n"
        "w = sys.stdout.buffer.write\n"
        "w(b'\\xff\\xfe\\n\\n[0] looks tagged\\nnul\\0nul\\n' + b'x' * 3_000_000 + b'\\nend')",
    )
    done = cli("run", "--ranks", 1, "odd.py")
    lines = done.of(0)
    assert lines[1:4] == ["", "[0] looks tagged", "nul\0nul"]
    assert lines[4] == "x" * 3_000_000
    assert lines[5:] == ["end"]


def test_progress_bars_are_seen_while_they_run(cli: Cli) -> None:
    """As tqdm draws them: a carriage return, the new state, no newline before the end."""
    opened = cli.folder / "go-on"
    cli.script(
        "bar.py",
        "import os, pathlib, sys, time\n"
        "def draw(percent):\n"
        "    sys.stderr.write(f'\\r{percent:3}%|' + '\u2588' * (percent // 10))\n"
        "    sys.stderr.flush()\n"
        "for percent in range(0, 51, 10): draw(percent); time.sleep(0.1)\n"
        f"while not pathlib.Path({str(opened)!r}).exists(): time.sleep(0.02)\n"
        "draw(100); print(file=sys.stderr)\n",
    )
    terminal = Terminal(
        [cli.python, "-m", "clusterctl", "run", "--ranks", "2", "bar.py"],
        cwd=cli.folder,
        env=cli.environment({"TERM": "xterm"}),
    )
    try:
        half, whole = "█" * 5, "█" * 10
        terminal.until(f"[0]  50%|{half}", f"[1]  50%|{half}", any_order=True)
        opened.touch()
        *_, first, second, end = terminal.wait()
        assert sorted((first, second)) == [f"[0] 100%|{whole}", f"[1] 100%|{whole}"]
        assert "succeeded" in end
    finally:
        terminal.close()
    assert "[0] 100%|" in cli("run", "bar.py").err


def gate(language: str, path: Path) -> str:
    """A program that prints, waits for a file, and prints again."""
    if language == "python":
        return (
            "import pathlib, sys, time\n"
            "print('first'); print('problem', file=sys.stderr)\n"
            f"gate = pathlib.Path({str(path)!r})\n"
            "while not gate.exists(): time.sleep(0.02)\n"
            "print('second')\n"
        )
    return (
        "#include <stdio.h>\n#include <unistd.h>\n"
        'int main(void) { printf("first\\n"); fprintf(stderr, "problem\\n");\n'
        f'  while (access("{path}", F_OK)) usleep(20000);\n'
        '  printf("second\\n"); return 0; }\n'
    )


@pytest.mark.parametrize("language", ["python", "c"])
def test_output_appears_while_the_program_runs(
    cli: Cli, tmp_path: Path, language: str, need: Need
) -> None:
    """Nobody waits for a buffer to fill: not with Python, not with C."""
    if language == "c":
        need("cc")
    assert "PYTHONUNBUFFERED" not in os.environ
    opens = tmp_path / "go"
    name = {"python": "talks.py", "c": "talks.c"}[language]
    cli.script(name, gate(language, opens))
    running = cli.start("run", name)
    running.until("first", times=2)
    running.until("problem", times=2)
    assert "second" not in running.out
    opens.touch()
    done = running.wait(30)
    assert done.code == 0
    assert done.of(1) == ["first", "second"]


@pytest.mark.netns  # each node a host of its own
def test_each_rank_knows_who_it_is(cli: Cli) -> None:
    """The variables that programs look for, under both launchers, are right on every rank, and
    all that comes after them arrives."""
    cli.script(
        "env.py",
        "import json, os\n"
        "names = 'RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT'.split()\n"
        "print(json.dumps([os.environ[n] for n in names] + [os.environ['OMP_NUM_THREADS']]))\n"
        "for n in range(5000): print(n)",
    )
    numbers = [str(n) for n in range(5000)]
    for launcher in ("mpirun", "torchrun"):
        done = cli("run", "--launcher", launcher, "--ranks-per-node", 2, "env.py")
        assert [done.of(rank)[1:] for rank in range(4)] == [numbers] * 4
        found = [json.loads(done.of(rank)[0]) for rank in range(4)]
        assert [row[:4] for row in found] == [
            [str(rank), str(rank % 2), "4", "2"] for rank in range(4)
        ]
        assert len({tuple(row[4:6]) for row in found}) == 1
        assert all(int(row[6]) >= 1 for row in found)


def test_variables_reach_all_ranks(cli: Cli) -> None:
    """--env NAME=VALUE, --env NAME, --env-file: with any characters, and over our own defaults."""
    odd = "a b 'c' \"d\" $E `f` \\ ünï ; * = #"
    cli.script("vars.env", "# a comment\n\nexport FROM_FILE='in quotes'\nEMPTY=\nEQUALS=a=b\n")
    cli.script(
        "env.py",
        "import json, os\n"
        "names = 'ODD LINES HERE FROM_FILE EMPTY EQUALS OMP_NUM_THREADS'.split()\n"
        "print(json.dumps([os.environ.get(n) for n in names]), flush=True)",
    )
    done = cli(
        *("run", "--env", f"ODD={odd}", "--env", "LINES=one\ntwo", "-e", "HERE"),
        *("--env-file", "vars.env", "--env", "OMP_NUM_THREADS=3", "env.py"),
        env={"HERE": "from here"},
    )
    expected = [odd, "one\ntwo", "from here", "in quotes", "", "a=b", "3"]
    assert [json.loads(done.of(rank)[0]) for rank in (0, 1)] == [expected, expected]


def test_json_of_run_is_lines_and_a_result(cli: Cli) -> None:
    """NDJSON: `rank`, `stream`, `line` for each line, the result last."""
    cli.script(
        "both.py",
        "import os, sys\n"
        "print('out'); print('err', file=sys.stderr); sys.exit(int(os.environ['RANK']) * 255)",
    )
    done = cli("run", "--json", "both.py", code=255)
    *lines, result = done.documents()
    assert sorted((row["rank"], row["stream"], row["line"]) for row in lines) == [
        (rank, stream, text)
        for rank in (0, 1)
        for stream, text in (("stderr", "err"), ("stdout", "out"))
    ]
    assert result["schema"] == 1
    assert (result["exit_code"], result["program_exit_code"]) == (255, 255)
    assert result["state"] == "failed"
    good = cli("run", "--json", "--ranks", 1, "both.py").documents()[-1]
    assert (good["exit_code"], good["program_exit_code"], good["state"]) == (0, 0, "succeeded")


def test_a_reader_that_leaves_is_no_traceback(cli: Cli) -> None:
    """`clusterctl run … | head -1` ends quietly."""
    cli.script("many.py", "for n in range(20000): print('line', n)")
    shell = 'set -o pipefail; "$@" | head -n 1'
    done = subprocess.run(
        ["bash", "-c", shell, "bash", cli.python, "-m", "clusterctl", "run", "many.py"],
        cwd=cli.folder,
        env=cli.environment(None),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "a bug in clusterctl" not in done.stderr


def test_run_in_the_very_moment_of_another(cli: Cli) -> None:
    """Two runs at the same moment: two jobs, both whole, and --quiet says nothing but the
    result."""
    cli.script("who.py", WHO)
    before = set(cli.jobs())
    both = [cli.start("run", "who.py"), cli.start("run", "--quiet", "who.py")]
    ended = [running.wait(60) for running in both]
    assert len(set(cli.jobs()) - before) == 2
    assert ended[1].err == ""
    for done in ended:
        assert (done.code, done.of(0), done.of(1)) == (0, ["rank 0 of 2"], ["rank 1 of 2"])


def test_a_line_of_mpirun_runs_as_it_says(cli: Cli) -> None:
    """On the nodes that it names, mapped by cores, over UCX although there is no RDMA."""
    words = ["-H", "worker-2:2,worker-1:1", "-mca", "pml", "ucx", "--map-by", "core", "-x", "A=1"]
    cli.script(
        "where.py",
        "import os; from mpi4py import MPI\n"
        "total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)\n"
        "print(total, os.environ['CLUSTERCTL_NODE'], os.environ['A'], os.environ['MASTER_ADDR'])",
    )
    done = cli("run", "mpirun", *words, "-x", "MASTER_ADDR=10.0.0.1", "python3", "where.py")
    assert "ignored: -x MASTER_ADDR=10.0.0.1\n" in done.err
    first = done.of(0)[0].split()[-1]
    assert done.of(0)[0].endswith(f"/worker-2 1 {first}")
    assert done.of(0) == done.of(1)
    assert done.of(2)[0].endswith(f"/worker-1 1 {first}")
    assert first != "10.0.0.1"


ABORTS = """
import signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
world.barrier()
if world.rank == 1:
    world.Abort(0)
time.sleep(300)
"""


def test_an_abort_with_exit_code_0_is_no_success(cli: Cli) -> None:
    """mpirun ends with 0, and so do ranks that save their work when they are told to end."""
    cli.script("aborts.py", ABORTS)
    done = cli("run", "aborts.py", code=6)
    assert "MPI_ABORT was invoked on rank 1" in done.err
    assert cli.job(done.job)["state"] == "failed"

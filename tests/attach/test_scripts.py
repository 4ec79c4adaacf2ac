"""Batch scripts of people's own, handed in as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attach.conftest import ONE_SITE, SITES, Site
from tests.e2e.cli import Cli, wait_for

ON_SLURM = pytest.mark.parametrize("site", SITES[:1], indirect=True)
HEAD = {"slurm": "#SBATCH", "sge": "#$"}


def write(cli: Cli, site: Site, name: str, lines: dict[str, list[str]], body: str) -> Path:
    head = [f"{HEAD[site.system]} {line}" for line in lines[site.system]]
    path = cli.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["#!/bin/bash", *head, body, ""]))
    return path


def test_a_script_runs_in_the_current_folder_with_its_arguments(cli: Cli, site: Site) -> None:
    """Its own output file is what is followed; nothing in its folder is touched."""
    lines = {"slurm": ["--nodes=2", "--output=%x-%j-%N.txt"], "sge": ["-cwd", "-pe mpi 2", "-j y"]}
    write(cli, site, "own/job.sh", lines, 'echo "given: $* $MINE"; pwd; echo made >here; exit 7')
    before = sorted(path.name for path in cli.folder.iterdir())
    more = {"slurm": ("--sbatch-arg", "--comment='a b'"), "sge": ("--qsub-arg", "-ac note=x")}
    words = ("-e", "MINE=x y", "--job-name", "mine", *more[site.system], "own/job.sh", "a b", "c")
    done = cli("run", *words, code=7)
    assert done.of(0) == ["given: a b c x y", str(cli.folder.resolve())]
    assert "its files are there" in cli("fetch", str(done.job)).err
    left = sorted({path.name for path in cli.folder.iterdir()} - {*before})
    assert left[0] == "here"
    assert left[1].startswith("mine")
    job = cli.json("jobs", str(done.job))["jobs"][0]
    assert (job["state"], job["program_exit_code"]) == ("failed", 7)
    assert job["finished"] >= job["started"]


def test_a_script_is_cancelled(cli: Cli, site: Site) -> None:
    lines = {"slurm": ["--output=out"], "sge": ["-cwd", "-o out", "-j y"]}
    write(cli, site, "job.sh", lines, "echo started; exec sleep 300")
    (cli.folder / "out").write_text("of an earlier job\n" * 9)
    number = cli("run", "--detach", "job.sh").job
    wait_for(lambda: "started" in cli("logs", str(number)).out, 60, "its output")
    cli("cancel", str(number))
    assert cli("logs", str(number)).out.splitlines()[0] == "[0] started"
    assert cli.json("jobs", str(number))["jobs"][0]["state"] == "cancelled"
    assert "sleep 300" not in site.login.run("ps", "-e", "-o", "args")


def test_parts_of_an_array(cli: Cli, site: Site) -> None:
    task = {"slurm": "SLURM_ARRAY_TASK_ID", "sge": "SGE_TASK_ID"}[site.system]
    lines = {"slurm": ["--array=1-3"], "sge": ["-cwd", "-t 1-3"]}
    write(cli, site, "job.sh", lines, f"echo task ${task}; [ ${task} != 2 ]")
    done = cli("run", "job.sh", code=1)
    assert f"job {done.job}: 3 tasks" in done.err
    assert cli("cancel", str(done.job)).out == f"job {done.job} had already ended: failed\n"
    assert [done.of(rank) for rank in range(3)] == [[f"task {n}"] for n in (1, 2, 3)]


def test_a_script_is_cancelled_outside_clusterctl(cli: Cli, site: Site) -> None:
    write(
        cli, site, "job.sh", {"slurm": ["-N1"], "sge": ["-cwd", "-j y"]}, "echo started; sleep 300"
    )
    running = cli.start("run", "job.sh")
    running.until("started")
    [job] = cli.json("jobs")["jobs"][-1:]
    end = {"slurm": "scancel", "sge": "qdel"}[site.system]
    site.login.run(end, job["native_id"])
    done = running.wait()
    assert (done.code, f"job {job['id']} was cancelled: " in done.err) == (130, True), done
    assert end in cli.json("jobs", str(job["id"]))["jobs"][0]["reason"]


@ON_SLURM
@pytest.mark.timeout(400)
@pytest.mark.all
@pytest.mark.parametrize("output", ["--nodes=1", "--output=log.txt"])
def test_a_requeued_script_keeps_what_it_has_printed(cli: Cli, site: Site, output: str) -> None:
    """Slurm would empty its file, and empties one that other jobs write to, as well."""
    (cli.folder / "log.txt").write_text("of an earlier job: 0\n" * 3)
    again = "$SLURM_RESTART_COUNT"
    body = f"for n in 1 2 3; do echo {again}: $n; done; [ {again} ] || sleep 300"
    write(cli, site, "job.sh", {"slurm": [output]}, body)
    number = str(cli("run", "--detach", "job.sh").job)
    wait_for(lambda: ": 3" in cli("logs", number).out, 60, "its output")
    site.login.run("scontrol", "requeue", cli.json("jobs", number)["jobs"][0]["native_id"])
    done = cli("logs", number, "-f", timeout=300)
    assert [line for line in done.of(0) if ": " in line and "slurmstepd" not in line] == [
        *(": 1", ": 2", ": 3"),
        *("1: 1", "1: 2", "1: 3"),
    ]
    assert cli.json("jobs", number)["jobs"][0]["state"] == "succeeded"


@ONE_SITE
def test_a_script_without_output(cli: Cli, site: Site) -> None:
    lines = {"slurm": ["--output=/dev/null"], "sge": ["-cwd", "-o /dev/null", "-j y"]}
    write(cli, site, "job.sh", lines, "echo unseen; exit 3")
    done = cli("run", "job.sh", code=3)
    assert "no output" in cli("logs", str(done.job)).err


@ON_SLURM
def test_a_script_that_calls_srun(cli: Cli, site: Site) -> None:
    path = cli.folder / "job.sh"
    path.write_text("#!/bin/sh\nsrun hostname\n")
    path.chmod(0o755)
    done = cli("run", "--nodes", "2", "./job.sh")
    assert sorted(done.of(0)) == ["c1", "c2"]


def test_what_can_never_run_is_refused_at_once(cli: Cli, site: Site) -> None:
    """Nothing is sent, and no job is on record."""
    before = cli.jobs()
    large, why = {"slurm": ("--nodes=9", "has 2 nodes"), "sge": ("-pe mpi 99", "offers 8")}[
        site.system
    ]
    write(cli, site, "job.sh", {site.system: [large]}, "true")
    assert why in cli("run", "job.sh", code=2).err
    assert why in cli("run", *large.replace("=", " ").split(), "--", "true", code=2).err
    words = ("--venv", "/opt/none", *site.size(2), "--", "true")
    assert "no such virtual environment" in cli("run", *words, code=2).err
    assert cli.jobs() == before


@ONE_SITE
def test_what_would_count_for_nothing_is_refused(cli: Cli, site: Site) -> None:
    lines = {"slurm": ["--nodes=2"], "sge": ["-cwd"]}
    write(cli, site, "job.sh", lines, "true")
    for words in (("--retries", "2"), ("--env-file", "secret"), ("--sweep", "a=1,2")):
        (cli.folder / "secret").write_text("A=b\n")
        assert words[0] in cli("run", *words, "job.sh", code=2).err
    (cli.folder / "pbs.sh").write_text("#!/bin/sh\n#PBS -l nodes=2\ntrue\n")
    assert "PBS" in cli("run", "pbs.sh", code=2).err
    (cli.folder / "plain.py").touch()
    assert "batch script" in cli("run", "--in-place", "plain.py", code=2).err
    given, passed = {
        "slurm": (["--nodes", "2", "--array", "1-9%2"], ["--nodes=2", "--array=1-9%2"]),
        "sge": (
            ["-pe", "mpi", "2", "--array", "1-9%2"],
            ["-pe", "mpi", "2", "-t", "1-9", "-tc", "2"],
        ),
    }[site.system]
    plan = cli.json("run", "--dry-run", "--in-place", *given, "job.sh", "x")
    assert plan["command"][-len(passed) - 2 :] == [*passed, "job.sh", "x"]
    emit = {"slurm": "sbatch", "sge": "qsub"}[site.system]
    assert "batch script already" in cli("run", "--emit", emit, "job.sh", code=2).err


def test_what_hides_the_number_of_a_job_is_refused(cli: Cli, site: Site) -> None:
    """With these, the queue's command waits for the job, or tells no number."""
    waits = {"slurm": ["--wait"], "sge": ["-sync y"]}
    write(cli, site, "waits.sh", waits, "sleep 300")
    write(cli, site, "job.sh", {"slurm": ["--nodes=1"], "sge": ["-cwd"]}, "sleep 300")
    argument, silent = {
        "slurm": ("--sbatch-arg", "--quiet"),
        "sge": ("--qsub-arg", "-verify"),
    }[site.system]
    assert waits[site.system][0] in cli("run", "waits.sh", code=2).err
    assert silent in cli("run", argument, silent, "./job.sh", code=2).err

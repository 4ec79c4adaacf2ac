"""The same verbs on a real Slurm and a real Grid Engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import pytest

from tests.attach.conftest import ONE_SITE, SITES, Program, Site
from tests.conftest import Need
from tests.e2e.cli import Cli, Running, wait_for

SAVES = """
[ ! -e "saved-$RANK" ] || { echo "resumed in attempt $CLUSTERCTL_ATTEMPT"; exit 0; }
trap 'echo x >"saved-$RANK"; echo saved; kill $! 2>/dev/null; exit 143' TERM
echo started
while :; do sleep 300 & wait; done
"""
"""A program that saves when it is warned, and goes on from there the next time.

Its sleep may be warned first, and must not be the end of it.
"""

EMITS = {"slurm": "sbatch", "sge": "qsub"}

LONG = "echo started; exec sleep 300"

ON_SLURM = pytest.mark.parametrize("site", SITES[:1], indirect=True)
ON_GRID_ENGINE = pytest.mark.parametrize("site", SITES[1:], indirect=True)


def test_ranks_meet_across_nodes(cli: Cli, site: Site) -> None:
    done = cli("run", "--json", *site.size(4), "reduce_all.py", "--max-bytes", "2097152")
    *lines, result = done.documents()
    said = [line["line"] for line in lines if line["rank"] == 0 and line["stream"] == "stdout"]
    assert "ok: 4 ranks on 2 hosts, each holds 6 = W(W-1)/2, over mpi" in said
    assert (result["state"], result["exit_code"]) == ("succeeded", 0)
    assert set(result["placement"]) == {"c1", "c2"}
    assert sorted(chain(*result["placement"].values())) == [0, 1, 2, 3]
    assert result["survivors"] == {"c1": 0, "c2": 0}


@ONE_SITE
def test_gloo_meets_on_the_right_device(cli: Cli, site: Site) -> None:
    words = ("--backend", "gloo", "reduce_all.py", "--no-table")
    said = cli("run", *site.size(2), *words).out
    assert "ok: 2 ranks on 2 hosts" in said
    assert "over gloo" in said


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
@ON_SLURM
def test_both_launchers_of_slurm(cli: Cli, site: Site, launcher: str) -> None:
    """Also from a shell whose settings for Slurm would keep ranks from starting."""
    env = {"SBATCH_EXPORT": "NONE", "SLURM_EXPORT_ENV": "NONE", "SRUN_EXPORT_ENV": "NONE"}
    env |= {"SBATCH_WAIT": "1", "SBATCH_OUTPUT": "/nowhere", "SLURM_JOB_ID": "1"}
    env |= {"SLURM_NTASKS": "9", "SQUEUE_FORMAT": "%T", "SLURM_LABELIO": "1"}
    env |= {"PRTE_MCA_ras": "slurm", "OMPI_MCA_plm": "slurm", "OMPI_MCA_ras": "slurm"}
    words = ("--launcher", launcher, *site.size(4), "reduce_all.py", "--no-table")
    done = cli("run", *words, env=env)
    assert "ok: 4 ranks on 2 hosts" in done.out
    assert "Sorry" not in done.out + done.err


@ON_SLURM
def test_ranks_wait_for_each_other(cli: Cli, site: Site) -> None:
    """By a fence of PMIx: what lets one through early at the end lets it through in MPI_Init too,
    and there it crashes others by its first message."""
    cli.script(
        "wait.py",
        "import pathlib, time\n"
        "from mpi4py import MPI\n"
        "late = pathlib.Path('late')\n"
        "if MPI.COMM_WORLD.Get_rank():\n"
        "    time.sleep(1)\n"
        "    late.touch()\n"
        "MPI.Finalize()\n"
        "print('waited' if late.exists() else 'left early')\n",
    )
    done = cli("run", "--launcher", "srun", *site.size(2), "wait.py")
    assert [done.of(rank) for rank in (0, 1)] == [["waited"]] * 2


def test_what_every_rank_is_told(cli: Cli, site: Site, program: Program) -> None:
    names = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT MASTER_ADDRESS MINE"
    )
    echo = " ".join(f"${name}" for name in names.split())
    done = cli("run", "-e", "MINE=it's $HOME", *site.size(4), program("tell", f'echo "{echo}"'))
    told = [done.of(rank)[0].split(" ", 7) for rank in range(4)]
    assert [row[0] for row in told] == list("0123")
    assert sorted(row[1] for row in told) == list("0011")
    assert {(row[2], row[3]) for row in told} == {("4", "2")}
    addresses = {machine.address for machine in site.lab.machines.hosts.values()}
    assert {row[4] for row in told} <= addresses
    assert len({row[4] for row in told}) == len({row[5] for row in told}) == 1
    assert {row[6] for row in told} == {row[4] for row in told}
    assert {row[7] for row in told} == {"it's $HOME"}


TOLD = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
    *("SLURM_NNODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_CPUS_PER_TASK"),
    "OMP_NUM_THREADS",
)


@ON_SLURM
def test_mpirun_tells_ranks_what_srun_tells_them(cli: Cli, site: Site, program: Program) -> None:
    """Programs take their number from it. Of three ranks, one has the second node alone."""
    name = program("tell", "\n".join(f'echo "{name}=${name}"' for name in TOLD))
    size = ("--nodes", "2", "--ranks", "3", "--cpus-per-task", "2")
    srun, mpirun = (cli("run", "--launcher", word, *size, name) for word in ("srun", "mpirun"))
    told = [srun.of(rank) for rank in range(3)]
    assert [lines[0] for lines in told] == [f"SLURM_PROCID={rank}" for rank in range(3)]
    assert [mpirun.of(rank) for rank in range(3)] == told


@ONE_SITE
def test_a_process_by_itself_has_all_cores_of_its_job(
    cli: Cli, site: Site, program: Program
) -> None:
    """And nothing tells it that it is a rank. Two ranks share what they have on a node."""
    name = program("tell", 'echo "$OMP_NUM_THREADS,$RANK$WORLD_SIZE$SLURM_PROCID$MASTER_ADDR"')
    all_cores, few = ["--exclusive"], ["--nodes", "1", "--ntasks-per-node", "2", "--exclusive"]
    if site.system == "sge":
        # On one host: the slots of a job that has just ended are taken for a moment longer.
        few = ["-pe", "fill", "4", "-l", "hostname=c1", "--ranks", "2"]
        all_cores = ["-l", "h_vmem=1G"]
    done = cli("run", *few, name)
    assert [done.of(rank)[0].partition(",")[0] for rank in (0, 1)] == ["2", "2"]
    done = cli("run", "--once", *all_cores, name)
    assert done.of(0) == ["4," if site.system == "slurm" else "1,"]
    if site.system == "slurm":  # without it, the mpirun that somebody starts there fails
        done = cli("run", "--once", *all_cores, "--", "printenv", "SLURM_TASKS_PER_NODE")
        assert done.of(0) != []


@ON_GRID_ENGINE
def test_people_may_have_csh(cli: Cli, site: Site, need: Need) -> None:
    """Grid Engine starts mpirun's daemons by the login shell, and mpirun writes for it."""
    passwd = site.lab.folder / "passwd"
    before = passwd.read_text()
    passwd.write_text(before.replace(":/bin/sh\n", f":{need('tcsh')}\n"))
    try:
        done = cli("run", "--launcher", "mpirun", *site.size(2), "--", "sh", "-c", "echo $RANK")
    finally:
        passwd.write_text(before)
    assert done.of(0) + done.of(1) == ["0", "1"]


@ONE_SITE
def test_a_source_file_is_compiled_in_the_job(cli: Cli, site: Site) -> None:
    done = cli("run", *site.size(2), "hello.c")
    assert "ok: 2 of 2 ranks answered" in done.of(0)
    assert cli.json("fetch", max(cli.jobs()))["files"] == []
    cli.script("broken.c", "int main(void) { return wrong; }\n")
    done = cli("run", *site.size(2), "broken.c", code=6)
    assert "wrong" in done.err


APPTAINER = """#!/bin/sh
# Does what the real one does with these options, but for the image's own files.
[ "$1" = exec ] || exit 2
shift
while :; do
    case $1 in
    --bind) [ -e "$2" ] || exit 255; shift 2 ;;
    --pwd) cd "$2" || exit 255; shift 2 ;;
    --nv | --rocm) shift ;;
    -*) echo "FATAL: unknown flag $1" >&2; exit 255 ;;
    *) break ;;
    esac
done
[ -f "$1" ] || { echo "FATAL: could not open image $1: no such file" >&2; exit 255; }
APPTAINER_CONTAINER=$1
export APPTAINER_CONTAINER
shift
exec "$@"
"""


@ON_SLURM
def test_ranks_in_a_container(cli: Cli, site: Site, program: Program) -> None:
    cli.script("mods/apptainer/bin/apptainer", APPTAINER).chmod(0o755)
    _modules(cli)
    image = cli.script("image.sif", "")
    name = program("tell", 'echo "$RANK in $APPTAINER_CONTAINER: $1"')
    env = {"MODULESHOME": str(cli.folder)}
    words = ["--module", "apptainer", *site.size(2), "--container"]
    done = cli("run", *words, image, name, "a b", env=env)
    assert done.of(0) + done.of(1) == [f"{rank} in {image}: a b" for rank in (0, 1)]
    assert "--container absent.sif" in cli("run", *words, "absent.sif", name, env=env, code=2).err


@ON_SLURM
def test_srun_starts_ranks_in_a_container(
    cli: Cli, site: Site, program: Program, need: Need, tmp_path: Path
) -> None:
    """Of pyxis, for which a plug-in stands that shows tasks the image and what is mounted."""
    plugin, image = tmp_path / "pyxis.so", tmp_path / "image"
    source = str(Path(__file__).parents[1] / "sim" / "pyxis.c")
    subprocess.run([need("gcc"), "-shared", "-fPIC", "-o", plugin, source], check=True, timeout=60)
    image.mkdir()
    (image / "marker").write_text("inside\n")
    stack = site.lab.folder / "slurm" / "plugstack.conf"
    stack.write_text(f"required {plugin}\n")
    try:
        cli("attach", "pyxis", "--slurm")
        name = program("tell", 'echo "$RANK $(cat /marker) $1 $MINE"; echo x >"out-$RANK"')
        words = ("-c", "pyxis", *site.size(2), "--container", str(image), "-e", "MINE=y z")
        done = cli("run", *words, name, "a b")
        assert [done.of(rank) for rank in (0, 1)] == [[f"{rank} inside a b y z"] for rank in (0, 1)]
        found = {row["path"] for row in cli.json("fetch", str(done.job))["files"]}
        assert found == {"out-0", "out-1"}
        _submit(cli, site, cli("run", *words, "--emit", "sbatch", name).out)
        assert "1 inside" in _all_text(cli.folder)
    finally:
        stack.unlink()


@ONE_SITE
def test_pushed_data_are_found_by_every_rank(cli: Cli, site: Site, program: Program) -> None:
    """Once, through the login node, whose disk the nodes share."""
    (cli.folder / "mine").mkdir()
    (cli.folder / "mine" / "a b.txt").write_text("here\n")
    assert len(cli.json("data", "push", "mine", "--name", "tiny")["data"][0]["pushed"]) == 1
    done = cli("run", *site.size(4), program("read", 'cat "$CLUSTERCTL_DATA/tiny/a b.txt"'))
    assert [done.of(rank) for rank in range(4)] == [["here"]] * 4
    missing = cli("run", *site.size(2), "train_mnist_ddp.py", "--epochs", 1, code=2)
    assert "clusterctl data get mnist" in missing.err


def test_a_job_waits_is_cancelled_and_leaves_nothing(
    cli: Cli, site: Site, program: Program
) -> None:
    first = cli.detach(*site.all_slots(), program("long", LONG))
    cli.until_state(first, "running")
    second = cli.detach(*site.all_slots(), "long")
    wait_for(lambda: cli.job(second)["reason"], 20, "the queue says why it waits")
    assert cli.job(second)["state"] == "queued"
    cli("cancel", second)
    assert cli.job(second)["state"] == "cancelled"
    assert cli.job(second)["started"] is None
    cli("cancel", first)
    assert cli.job(first)["state"] == "cancelled"
    wait_for(lambda: not _processes(site, "sleep 300"), 20, "ranks outlived their job")


STUBBORN = "trap '' TERM INT USR1 USR2; echo started; while :; do sleep 1; done"


@ONE_SITE
def test_cancelling_ends_what_ignores_it(cli: Cli, site: Site, program: Program) -> None:
    """It is looked for on the nodes of the job."""
    number = cli.detach(*site.size(2), program("stubborn", STUBBORN))
    wait_for(lambda: cli("logs", number).out.count("started") == 2, 60, "not every rank started")
    assert "no processes of it found on 2 nodes" in cli("cancel", number, timeout=90).out
    job = cli.job(number)
    assert (job["state"], job["survivors"]) == ("cancelled", {"c1": 0, "c2": 0})
    assert not _processes(site, "/bin/sh ./stubborn")


def test_a_time_limit_requeues_and_the_program_goes_on(
    cli: Cli, site: Site, program: Program
) -> None:
    # The warning comes 60 s before the limit, or up to a minute sooner on Slurm.
    # Of Grid Engine's, each attempt has six seconds: ranks have to be up by then on a busy machine.
    limit = ["--time", "00:01:06"] if site.system == "sge" else ["--time", "1"]
    name = program("saves", SAVES)
    done = cli("run", "--json", "--requeue", *limit, *site.size(2), name, timeout=110)
    *lines, result = done.documents()
    said = [line["line"] for line in lines if line["rank"] == 0]
    assert said == ["started", "saved", "resumed in attempt 2"]
    assert (result["state"], result["attempt"]) == ("succeeded", 2)


@ON_SLURM
def test_modules_are_loaded_on_the_nodes(cli: Cli, site: Site) -> None:
    tool = cli.script("mods/good/bin/tool", '#!/bin/sh\necho "tool for $RANK"\n')
    tool.chmod(0o755)
    _modules(cli)
    cli.script("uses", "#!/bin/sh\nexec tool\n").chmod(0o755)
    env = {"MODULESHOME": str(cli.folder)}
    done = cli("run", "--module", "good", *site.size(2), "uses", env=env)
    assert done.of(0) + done.of(1) == ["tool for 0", "tool for 1"]
    done = cli("run", "--module", "bad", *site.size(2), "uses", env=env, code=2)
    assert "the module bad cannot be loaded" in done.err


def _modules(cli: Cli) -> None:
    """Environment modules: a folder of commands each, below `mods`."""
    cli.script(
        "init/sh",
        'module() { [ "$1" = load ] && [ -d "$MODULESHOME/mods/$2" ] &&'
        " PATH=$MODULESHOME/mods/$2/bin:$PATH && export PATH; }\n",
    )


@ON_SLURM
@pytest.mark.timeout(400)
@pytest.mark.parametrize("code", [pytest.param(143, marks=pytest.mark.all), 0])
def test_a_preempted_job_comes_back(cli: Cli, site: Site, program: Program, code: int) -> None:
    """However its program says that it has saved."""
    saves = SAVES.replace("exit 143", f"exit {code}")
    number = cli.detach("--requeue", *site.all_slots(), program("saves", saves))
    # A rank that had not begun has nothing to go on from.
    wait_for(lambda: cli("logs", number).out.count("started") == 8, 60, "not every rank started")
    cli("run", "--partition", "urgent", *site.all_slots(), program("urgent", "echo now"))
    # Slurm may keep a job that it has put back for two minutes.
    done = cli("logs", number, "-f", timeout=240)
    assert done.of(0) == ["started", "saved", "resumed in attempt 2"]
    assert cli.job(number)["state"] == "succeeded"


@ONE_SITE
def test_a_job_ended_by_others_is_not_taken_for_running(
    cli: Cli, site: Site, program: Program
) -> None:
    number = cli.detach(*site.size(2), program("long", LONG))
    cli.until_state(number, "running")
    native = _native(cli, site, number)
    site.login.run(*(["scancel", native] if site.system == "slurm" else ["qdel", "-f", native]))
    cli.until_state(number, "cancelled", "lost", seconds=60)


@ONE_SITE
def test_outputs_come_back_and_go_on(cli: Cli, site: Site, program: Program) -> None:
    name = program("writes", 'cat out-* 2>/dev/null; echo "from $RANK" >"out-$RANK"')
    cli("run", *site.size(2), name)
    [number] = [n for n, job in cli.jobs().items() if job["program"] == "./writes"][-1:]
    cli("fetch", number)
    got = sorted((cli.folder / f"job-{number}").rglob("out-*"))
    assert [path.read_text() for path in got] == ["from 0\n", "from 1\n"]
    done = cli("rerun", "--resume", number)
    assert sorted(done.of(0)[:2]) == ["from 0", "from 1"]


def test_status_shows_partitions_and_queues(cli: Cli, site: Site) -> None:
    queue = {"slurm": "main", "sge": "main.q"}[site.system]
    assert queue in cli.json("status", "--live")["queues"]
    assert queue in cli("status", "--live").out


@ON_SLURM
@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        pytest.param(["--gres", "gpu:t4:2"], 2, marks=pytest.mark.all),
        (["--gpus", "4"], 4),
        (["--gpus-per-task", "1", "--ranks", "2"], 2),
    ],
    ids=["gres", "gpus", "gpus-per-task"],
)
@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_rank_per_gpu_finds_its_own_by_its_local_rank(
    cli: Cli, program: Program, options: list[str], ranks: int, launcher: str
) -> None:
    """As `torch.cuda.set_device(LOCAL_RANK)` needs it, however the GPUs are asked for."""
    name = program("tell", 'echo "$LOCAL_RANK $CUDA_VISIBLE_DEVICES"')
    done = cli("run", "--launcher", launcher, *options, name)
    told = [done.of(rank) for rank in range(ranks)]
    assert done.of(ranks) == []
    for (line,) in told:
        local, _, devices = line.partition(" ")
        assert int(local) < len(devices.split(",")), told


@ONE_SITE
def test_attaching_again_keeps_the_cluster(cli: Cli, site: Site) -> None:
    before = cli.status()["id"]
    assert cli.json("attach", "site", f"--{site.system}")["id"] == before


@ONE_SITE
def test_an_unshared_folder_is_noticed(cli: Cli, site: Site) -> None:
    """/run is each host's own."""
    options = ["--workdir", "/run/mine"]
    done = cli("attach", "other", f"--{site.system}", *options, code=2)
    assert "/run/mine/other-" in done.err
    assert "is not visible on the compute nodes" in done.err
    assert "--workdir" in done.err
    assert [c["cluster"] for c in cli.json("list")["clusters"]] == ["site"]


@ONE_SITE
def test_down_and_detach_know_each_other(cli: Cli, site: Site) -> None:
    assert "clusterctl detach site" in cli("down", "site", code=2).err
    cli("attach", "second", f"--{site.system}")
    root = Path(cli.status("second")["nodes"][0]["root"])
    assert root.is_dir()
    cli("detach", "second")
    assert not root.exists()
    assert root.parent.is_dir()


def _processes(site: Site, command: str) -> list[str]:
    found = []
    for name in ("c1", "c2"):
        said = site.lab.machines.hosts[name].run("ps", "-eo", "args")
        found += [line for line in said.splitlines() if line.strip() == command]
    return found


def _native(cli: Cli, site: Site, number: int) -> str:
    record = json.loads((site.home / "jobs" / str(number) / "job.json").read_text())
    return str(record["native_id"])


def _submit(cli: Cli, site: Site, script: str, code: int = 0, before: str = ":") -> None:
    """Waits until the job has ended. The user is root here, which mpirun refuses."""
    path, run = cli.script("job", script), cli.script("submit", "")
    root = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    submit = {"slurm": "sbatch --wait", "sge": f"qsub -sync y -v {root.replace(' ', ',')}"}
    words = f"{submit[site.system]} {path.name}"
    run.write_text(f"cd {cli.folder} && {before} && env {root} {words}; [ $? = {code} ]\n")
    site.login.run("sh", str(run), timeout=160)


@pytest.mark.parametrize("site", SITES, indirect=True)
def test_the_emitted_script_needs_no_clusterctl(cli: Cli, site: Site, program: Program) -> None:
    name = program("tell", 'echo "rank $RANK of $WORLD_SIZE: $1 $MINE $MY_TOKEN, at $MASTER_ADDR"')
    words = ["--emit", EMITS[site.system], "-e", "MINE=it's", "-e", "MY_TOKEN=secret"]
    script = cli("run", *words, *site.size(2), name, "a 'b' $HOME").out
    assert "secret" not in script.replace("MY_TOKEN", "")
    assert len(script.splitlines()) <= 40
    _submit(cli, site, script, before="export MY_TOKEN=token")
    wait_for(lambda: "rank 1 of 2" in _all_text(cli.folder), 10, "the script ran")
    said = _all_text(cli.folder)
    for rank in (0, 1):
        assert f"rank {rank} of 2: a 'b' $HOME it's token, at c" in said


@ONE_SITE
def test_an_emitted_script_says_how_to_get_a_bundled_program(cli: Cli, site: Site) -> None:
    emit = EMITS[site.system]
    done = cli("run", "--emit", emit, *site.size(2), "reduce_all.py", "--no-table")
    head, [copying] = (
        [line.partition(": ")[2] for line in text.splitlines() if "cp -r" in line]
        for text in (done.out, done.err)
    )
    assert head == [copying]
    _submit(cli, site, done.out, before=copying)
    found = [*cli.folder.glob("slurm-*.out"), *cli.folder.glob("reduce_all.o*")]
    wait_for(lambda: "ok: 2 ranks" in "".join(p.read_text() for p in found), 10, "it ran")
    assert "cp -r" not in cli("run", "--emit", emit, cli.script("mine.py", "pass\n")).err


def _all_text(folder: Path) -> str:
    """What the batch system has put beside the script."""
    found = [*folder.glob("slurm-*.out"), *folder.glob("tell.o*")]
    return "".join(path.read_text() for path in found)


POINT = """
[ "$1" = --lr ] && [ "$2" = "$CLUSTERCTL_SWEEP_LR" ] && [ "$WORLD_SIZE" = 1 ] || exit 9
echo "lr $2 point $CLUSTERCTL_POINT of $CLUSTERCTL_POINTS"
echo "$2" >model
[ "$2" != 0.2 ]
"""


def test_a_sweep_is_an_array(cli: Cli, site: Site, program: Program) -> None:
    """Failed points run again alone; each has a folder of its own."""
    name = program("train", POINT)
    done = cli("run", "--sweep", "lr=0.1,0.2,0.3", name, code=1, timeout=120)
    assert [done.of(number) for number in range(3)] == [
        [f"lr {lr} point {number} of 3"] for number, lr in enumerate(("0.1", "0.2", "0.3"))
    ]
    assert f"1 of 3 points did not succeed: {done.job}.1" in done.err
    record = cli.job(done.job)
    assert record["points"] == {"total": 3, "ended": 3, "failed": [1]}
    assert record["native_id"].isdecimal()
    assert cli("logs", f"{done.job}.2").out == "[2] lr 0.3 point 2 of 3\n"
    cli("fetch", done.job)
    found = (cli.folder / f"job-{done.job}").glob("*/points/*/*")
    assert {path.parent.name: path.read_text().strip() for path in found} == {
        "0": "0.1",
        "1": "0.2",
        "2": "0.3",
    }
    again = cli("rerun", done.job, "--failed", code=1, timeout=120)
    assert again.out == "[1] lr 0.2 point 1 of 1\n"
    tell = ("--", "sh", "-c", 'echo "$A_TOKEN ${SLURM_ARRAY_TASK_ID-$SGE_TASK_ID}"')
    well = cli("run", "-e", "A_TOKEN=x", "--array", "3,5", *tell, timeout=120)
    assert [well.of(number) for number in (3, 5)] == [["x 3"], ["x 5"]]
    assert list(site.home.parent.glob(".clusterctl/*/jobs/*")) != []
    for job in (done.job, again.job, well.job):  # nobody is left to need its secrets
        assert list(site.home.parent.glob(f".clusterctl/*/jobs/{job}/env")) == []


def test_an_array_is_cancelled_with_the_points_that_wait(
    cli: Cli, site: Site, program: Program
) -> None:
    name = program("long", LONG)
    number = cli.detach("--array", "5-9%1", name)
    cli.until_state(number, "running")
    wait_for(lambda: "started" in cli("logs", number).out, 30, "the first point")
    cli("cancel", number)
    job = cli.job(number)
    assert job["state"] == "cancelled"
    assert job["points"]["total"] == 5
    assert cli("logs", number).out == "[5] started\n"


COUNTS = """
for name in USR1 USR2 TERM; do trap "echo $name" "$name"; done
echo started
until [ -e {over} ]; do sleep 0.5; done
"""


def test_the_site_s_own_signal_reaches_every_rank_once(
    cli: Cli, site: Site, program: Program
) -> None:
    over = cli.folder / "over"
    counts = program("counts", COUNTS.format(over=over))
    number = cli.detach("--pass-signal", *site.size(2), counts)
    wait_for(lambda: cli("logs", number).out.count("started") == 2, 60, "not every rank started")
    native = _native(cli, site, number)
    if site.system == "slurm":  # as for its --signal=B:
        said = "USR1"
        site.login.run("scancel", "--batch", "--signal=USR1", native)
    else:  # 20 seconds before it ends a job
        said = "USR2"
        site.login.run("qdel", native)
    wait_for(lambda: cli("logs", number).out.count(said) == 2, 60, "not every rank was told")
    time.sleep(4)
    over.touch()
    done = cli("logs", number, "-f", code=None)
    assert done.of(0) == done.of(1) == ["started", said]


# -------------------------------------------------------------------------------------------------
# What people see of a real queue, and what becomes of jobs where it, or a client, falls silent.


def test_people_see_the_queues_number_and_its_reason(
    cli: Cli, site: Site, program: Program
) -> None:
    started = cli("run", "--detach", "--json", *site.all_slots(), program("long", LONG))
    first = started.document()
    native = first["native_id"]
    assert native == cli.job(first["id"])["native_id"] != ""
    assert f"({site.system} {native})" in started.err
    cli.until_state(first["id"], "running")
    second = cli.detach(*site.all_slots(), "long")
    third = cli.start("run", *site.all_slots(), "long")
    fourth = cli.start("logs", second, "-f")
    reason = {"slurm": r"(Resources|Priority)", "sge": "waiting"}[site.system]
    for running in (third, fourth):
        running.until("is in the queue:")
        assert re.search(rf"\({site.system} \d+\) is in the queue: {reason}\n", running.err)
    table = cli("jobs").out.splitlines()
    assert "queue id" in table[0]
    [row] = [line for line in table if line.split()[0] == str(second)]
    assert re.search(rf" {cli.job(second)['native_id']} +queued +{reason} ", row)


@ONE_SITE
def test_a_submit_outlives_its_client(cli: Cli, site: Site, program: Program) -> None:
    name = program("quick", "echo $RANK")
    slow, called, go = _in_the_way(cli, site, {"slurm": "sbatch", "sge": "qsub"}[site.system])
    running = cli.start("run", *site.size(2), name, env=slow)
    try:
        wait_for(called.exists, 30, "it hands the job in")
        number = max(cli.jobs())
        _kill(running)
        assert cli.job(number)["state"] == "queued"
        go.touch()
        cli.until_state(number, "succeeded")
    finally:
        go.touch()


@ONE_SITE
def test_a_job_that_streams_is_on_record_as_running(cli: Cli, site: Site, program: Program) -> None:
    """For those who cannot ask: the login node may be away."""
    running = cli.start("run", *site.size(2), program("long", LONG))
    running.until("started")
    path = site.home / "jobs" / str(running.now().job) / "job.json"
    wait_for(lambda: json.loads(path.read_text())["state"] == "running", 20, "it is on record")


def _in_the_way(cli: Cli, site: Site, command: str) -> tuple[dict[str, str], Path, Path]:
    """A PATH on which `command` waits, and two files: one comes when it is called, the other makes
    it go on."""
    folder = cli.folder / f"slow-{command}"
    folder.mkdir()
    called, go = folder / "called", folder / "go"
    real = site.login.run("sh", "-c", f"command -v {command}").strip()
    (folder / command).write_text(
        f'#!/bin/sh\ncase $* in *--test-only* | "-w v"*) exec {real} "$@" ;; esac\n: >"{called}"\n'
        f'until [ -e "{go}" ]; do sleep 0.1; done\nexec {real} "$@"\n'
    )
    (folder / command).chmod(0o755)
    path = site.login.run("printenv", "PATH").strip()
    return {"PATH": f"{folder}:{path}"}, called, go


def _kill(running: Running) -> None:
    """`kill -9` of clusterctl itself: what we started is nsenter, its parent."""
    parent = running.process.pid
    [child] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    running.wait()


# -------------------------------------------------------------------------------------------------
# A batch system behind SSH: the same verbs, from a machine that has none of its commands.


@ONE_SITE
def test_jobs_go_over_ssh(remote: Cli, site: Site) -> None:
    made = remote.json("attach", "far", f"--{site.system}", "cluster")
    [login] = made["nodes"]
    assert (login["role"], login["address"]) == ("login", "cluster")
    # As plain ssh would show it, with what ~/.bashrc prints.
    assert remote("ssh", "--", "echo in; hostname").out.endswith("\nin\nlogin\n")
    remote.script("job.sh", "#!/bin/sh\n#SBATCH -n 1\n#$ -cwd\n").chmod(0o755)
    assert "login node" in remote("run", "--in-place", "job.sh", code=2).err
    size = {"slurm": ["--nodes", "1"], "sge": ["-pe", "mpi", "2"]}[site.system]
    told = remote("run", "--interactive", *size, "--", "uname", "-n", code=None)
    assert told.out.split()[-1:] in (["c1"], ["c2"]), told
    done = remote("run", *site.size(2), "--venv", sys.prefix, "reduce_all.py", "--no-table")
    assert "ok: 2 ranks on 2 hosts" in done.out
    remote.script("fail", '#!/bin/sh\n[ "$RANK" = 1 ] && exit 9; exec sleep 302\n').chmod(0o755)
    remote("run", *site.size(2), "fail", code=9)
    remote.script("long", "#!/bin/sh\nexec sleep 302\n").chmod(0o755)
    log = site.login.folder / "sshd.log"
    before = log.read_text().count("Starting session: command")
    number = remote.detach(*site.size(2), "long")
    # Whether it could run, and then all the rest.
    assert log.read_text().count("Starting session: command") == before + 2
    remote.until_state(number, "running")
    assert remote.json("status", "--live")["queues"]
    remote("cancel", number)
    assert remote.job(number)["state"] == "cancelled"

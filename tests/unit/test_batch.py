"""Batch systems without one: heads of scripts, surveys as values, sizes, sites' answers."""

from __future__ import annotations

import json
import shlex
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.actions.run import describe_attempt, plan_job
from clusterctl.batch import sge, slurm
from clusterctl.batch.system import load_system
from clusterctl.core.job import IN_A_TERMINAL, Job, JobSpec, JobState, Placement
from clusterctl.core.model import Cluster, Role
from clusterctl.errors import UsageError
from clusterctl.launch import launcher
from clusterctl.machines.attached import load_site
from tests.unit.calling import Call
from tests.unit.making import cluster, job, node, program, request, spec
from tests.unit.scripts import write_program
from tests.unit.tables import read_rows, rows


def site(system: str) -> Cluster:
    login = node("login", "10.0.0.9", role=Role.LOGIN)
    return cluster(login, provider=system)


def made_for(system: str) -> Cluster:
    return cluster() if system == "direct" else site(system)


def batch_job(system: str, **changes: Any) -> Job:
    wanted = spec(**{"launcher": "auto", **changes})
    what, placement = load_system(system).resolve(wanted, site(system))
    made = job(None, spec(), scheduler=system, native_id="4711")
    return replace(made, spec=what, placement=placement, cluster_id="lab-1a2b")


@pytest.mark.parametrize("there", [True, False])
def test_a_container_sees_the_folder_for_data_sets(tmp_path: Path, there: bool) -> None:
    """Apptainer shows a program its home and the working directory, and no other folders."""
    fake = write_program(tmp_path / "bin" / "apptainer", 'printf "%s\\n" "$@"')
    data = tmp_path / "root" / "data sets"
    if there:
        data.mkdir(parents=True)
    what = spec(container="image.sif", launcher="auto", program=program("a b"))
    argv = launcher.plan_launch("batch", request(site("slurm"), what)).programs["login"]
    env = {"PATH": f"{fake.parent}:/usr/bin:/bin", "CLUSTERCTL_DATA": str(data)}
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    bound = ["--bind", str(data)] if there else []
    place = ["--bind", str(tmp_path), "--pwd", str(tmp_path)]
    words = [word for word in done.stdout.splitlines() if word not in ("--nv", "--rocm")]
    assert words == ["exec", *bound, *place, "image.sif", *argv[5:]]


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ("docker://debian:13", "debian:13"),
        ("docker://nvcr.io/nvidia/pytorch:24.01", "nvcr.io#nvidia/pytorch:24.01"),
        ("docker://team/image", "team/image"),
        ("/shared/x.sqsh", "/shared/x.sqsh"),
        ("x.sqsh", "/root/jobs/7/work/./x.sqsh"),
    ],
)
def test_pyxis_is_told_an_image_in_its_own_words(image: str, told: str) -> None:
    where = replace(site("slurm"), site_info={"pyxis": "yes"})
    login = replace(where.launcher, root="/root")
    where, system = replace(where, nodes=(login,)), slurm.Slurm()
    words = system.list_container(batch_job("slurm", container=image), where)
    assert words == [f"--container-image={told}", "--container-mounts=/root:/root"]
    assert not system.list_container(batch_job("slurm", container=image, modules=("a",)), where)
    with pytest.raises(UsageError, match="srun starts containers"):
        system.list_container(batch_job("slurm", container=image, once=True, ranks=1), where)


# ------------------------------------------------------------------------------------- directives


def test_every_line_of_the_seed() -> None:
    """The #SBATCH lines of access-multi-gpu's README, by Slurm's own names."""
    first, *others = read_rows("batch", "every_line_of_the_seed")
    native = dict(line.split("=") for line in (first, *others))
    made = batch_job("slurm", nodes=2, ranks_per_node=2, native=native)
    ours = ("output=batch.out", "open-mode=append", "nodes=2", "ntasks-per-node=2")
    lines = [first, *ours, *others, "no-requeue", "signal=B:USR1@60"]
    assert slurm.Slurm().directives(made.spec, made.id) == [f"--{line}" for line in lines]


def test_what_the_other_seed_asks_of_grid_engine() -> None:
    native = {"pe": "mpi 4", "l": "h_vmem=15G", "queue": "all.q", "project": "p"}
    made = batch_job("sge", native={**native, "mail-type": "BEGIN,END", "time": "1:00:00"})
    assert made.ranks == 4
    lines = sge.Sge().directives(made.spec, made.id)
    for line in ("-pe mpi 4", "-l h_vmem=15G", "-q all.q", "-P p", "-m be", "-l h_rt=1:00:00"):
        assert line in lines
    assert _plan(made)["warn_after"] == 3540


@pytest.mark.parametrize(("grace", "seconds"), [(5.0, 60), (119.5, 120)])
def test_a_job_is_warned_as_early_as_its_ranks_need_to_save(grace: float, seconds: int) -> None:
    slow = batch_job("slurm", native={"time": "1:00:00"}, grace=grace)
    assert f"--signal=B:USR1@{seconds}" in slurm.Slurm().directives(slow.spec, slow.id)
    slow = batch_job("sge", native={"time": "1:00:00"}, grace=grace)
    assert _plan(slow)["warn_after"] == 3600 - seconds


@rows("changes, grace, notice", "batch.a_notice_is_time_to_save")
def test_a_notice_is_time_to_save(changes: dict[str, Any], grace: float, notice: str) -> None:
    made = batch_job("slurm", **changes)
    assert made.spec.save_time == grace
    wanted = replace(request(), spec=made.spec, cluster=site("slurm"), placement=made.placement)
    assert launcher.plan_launch("batch", wanted).env["CLUSTERCTL_GRACE"] == notice


@rows("signal, directive", "batch.a_warning_reaches_the_script_which_alone_can_requeue")
def test_a_warning_reaches_the_script_which_alone_can_requeue(signal: str, directive: str) -> None:
    """Without `B:` Slurm signals the ranks and not the batch script."""
    made = batch_job("slurm", native={"signal": signal, "requeue": ""})
    assert directive in slurm.Slurm().directives(made.spec, made.id)


def test_ranks_and_gpus_of_a_job_are_dealt_out_together() -> None:
    """`--gpus 4` may be 1 and 3 on two nodes, whose ranks would be 2 and 2."""
    lines = slurm.Slurm().directives(batch_job("slurm", native={"gpus": "t4:4"}).spec, 7)
    assert {"--gpus-per-task=t4:1", "--ntasks=4"} <= set(lines)
    assert "--gpus=t4:4" not in lines


@rows("venv, here, python", "batch.a_venv_has_one_path_wherever_ranks_start")
def test_a_venv_has_one_path_wherever_ranks_start(
    venv: str, here: bool, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = site("slurm")
    login = replace(where.launcher, address="" if here else where.launcher.address)
    where = replace(where, nodes=(login,), site_info={"home": "/home/me"})
    assert where.launcher.here is here
    _, plan = plan_job(where, spec(venv=venv, launcher="auto"), number=7)
    assert plan.programs["login"][0] == python.format(here=tmp_path)
    assert plan.path == python.format(here=tmp_path).removesuffix("/python")


def test_a_job_that_is_open_in_a_terminal_is_not_being_submitted(call: Call) -> None:
    where = site("slurm")
    login = replace(where.launcher, address="")
    store = open_store()
    store.save(where := replace(where, nodes=(login,)))
    placed = (Placement(node="(queue)", first=0, count=1),)
    one = replace(job(where, spec()), reason=IN_A_TERMINAL, placement=placed)
    store.save_job(one)
    with store.mark_handing_in(one.id):
        said = call("cancel", str(one.id))
    assert (said.code, "is open in a terminal" in said.err) == (7, True), said


def _plan(made: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_files(made)["plan.json"])
    return found


def _files(made: Job) -> dict[str, str]:
    where = site(made.scheduler)
    wanted = replace(request(), spec=made.spec, cluster=where, placement=made.placement)
    plan = launcher.plan_launch("batch", wanted)
    return load_system(made.scheduler).script(made, where, plan)


@rows("system, native, word", "batch.an_option_that_cannot_be")
def test_an_option_that_cannot_be(system: str, native: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_system(system).resolve(spec(native=native), made_for(system))
    assert word in caught.value.message
    assert "---" not in caught.value.message
    assert "--pe" not in caught.value.message
    assert "--l " not in caught.value.message
    assert caught.value.hint


@rows("system, changes, word", "batch.an_option_of_a_stored_job_that_cannot_be")
def test_an_option_of_a_stored_job_that_cannot_be(
    system: str, changes: dict[str, Any], word: str
) -> None:
    """`rerun -c` may take it to a cluster of another kind."""
    with pytest.raises(UsageError) as caught:
        load_system(system).resolve(spec(**changes), made_for(system))
    assert caught.value.message.startswith(word)
    assert caught.value.hint


@rows("changes, attempt, said", "batch.why_a_job_begins_again")
def test_why_a_job_begins_again(changes: dict[str, Any], attempt: int, said: str) -> None:
    reason = changes.pop("reason", "")
    again = replace(batch_job("slurm", **changes), attempt=attempt, reason=reason)
    assert describe_attempt(again) == said


@rows("words, hint", "batch.short_options_of_a_batch_system")
def test_short_options_of_a_batch_system(
    call: Call, words: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").touch()
    said = call("run", *words)
    assert said.code == 2
    assert hint in said.err.partition("→")[2]


def test_options_that_begin_as_theirs_stay_ours(call: Call) -> None:
    store = open_store()
    store.save(site("sge"))
    assert call("run", "--dry-run", "-pe", "mpi", "2", "train.py", "-N", "2").code == 0


def test_an_image_that_is_not_copied_is_missed_before_the_queue(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    open_store().save(site("slurm"))
    line = ("run", "--dry-run", "--container", "image.sif", "train.py")
    assert call(*line).code == 2
    Path("image.sif").touch()
    assert call(*line).code == 0


@rows("system, words, told", "batch.a_dry_run_says_what_srun_is_told")
def test_a_dry_run_says_what_srun_is_told(
    call: Call, system: str, words: list[str], told: int
) -> None:
    open_store().save(site(system))
    said = call("run", "--dry-run", *words, "train.py")
    assert said.code == 0
    assert said.out.partition("# why")[2].count("SLURM_PMIX_FENCE=ring: ") == told


# ------------------------------------------------------------------------------------------ sizes


@rows("changes, size, ranks", "batch.sizes")
def test_sizes(changes: dict[str, Any], size: list[str], ranks: int) -> None:
    made = batch_job("slurm", **changes)
    assert slurm.list_size(made.spec) == size
    assert made.ranks == ranks


@rows("system, changes", "batch.sizes_that_contradict")
def test_sizes_that_contradict(system: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        load_system(system).resolve(JobSpec(program=spec().program, **changes), site(system))
    assert caught.value.hint


# ----------------------------------------------------------------------------------------- status

RAN = "queued 100.5\nrunning 110.0 1\nplaced 110.1 c1:2,c2:1,\n"


def status(system: str, text: str, number: int = 7) -> Job:
    made = replace(batch_job(system, nodes=0), state=JobState.QUEUED)
    return load_system(system).parse_status(made, f"@@job {number} 99\n{text}")


def test_a_running_job_has_its_nodes() -> None:
    found = status("slurm", RAN)
    assert (found.state, found.started, found.native_id) == (JobState.RUNNING, 110.0, "99")
    assert found.placement == (
        Placement(node="c1", first=0, count=2),
        Placement(node="c2", first=2, count=1),
    )


@rows("system, line, state, reason", "batch.what_the_queue_says")
def test_what_the_queue_says(system: str, line: str, state: str, reason: str) -> None:
    found = status(system, f"queued 100.5\n{line}\n")
    begins, _, holds = reason.partition("*")
    assert found.state is JobState(state)
    assert found.reason.startswith(begins)
    assert holds in found.reason
    assert bool(found.reason) == bool(reason)
    assert found.finished == (130.0 if found.state.ended else None)


def test_a_script_whose_name_grid_engine_does_not_take_is_named() -> None:
    said = "Unable to run job: Error reading answer list from qmaster"
    assert "--job-name" in load_system("sge").advise(said, site("sge"))


def test_slots_may_be_a_range() -> None:
    made = batch_job("sge", native={"pe": "mpi 2-6"})
    assert made.ranks == 6  # at most
    assert "-pe mpi 2-6" in load_system("sge").directives(made.spec, 7)


def test_other_numbers_of_ranks_than_gpus_are_told() -> None:
    slurm = load_system("slurm")
    shared = batch_job("slurm", native={"gpus-per-node": "2"}, ranks_per_node=4)
    assert "2 GPUs for 4 ranks per node" in slurm.warn_of_sharing(shared.spec, {})
    assert not slurm.warn_of_sharing(batch_job("slurm", native={"gpus-per-node": "2"}).spec, {})
    idle = batch_job("slurm", native={"gpus-per-node": "4"}, ranks_per_node=2)
    assert "4 GPUs for 2 ranks per node" in slurm.warn_of_sharing(idle.spec, {})
    script = "#!/bin/sh\n#SBATCH --gpus-per-node={} # a comment\n#SBATCH --ntasks-per-node 2\n"
    alone = batch_job("slurm").spec
    assert "4 GPUs for 2 ranks per node" in slurm.warn_of_script(alone, script.format(4))
    assert "1 GPU for 2 ranks per node" in slurm.warn_of_script(alone, script.format("a100:1"))
    assert not slurm.warn_of_script(alone, script.format(2))


@rows("resources, ranks, says", "batch.more_ranks_than_gpus_of_grid_engine")
def test_more_ranks_than_gpus_of_grid_engine(resources: str, ranks: int, says: str) -> None:
    """GPUs of some sites count once for a job, as its table of resources says."""
    table = "gpu gpu INT <= YES YES 0 0\nngpus ng INT <= YES JOB 0 0\n"
    info = load_site("sge").parse_site_info({"resources": table})
    asked = batch_job("sge", native={"pe": "mpi 4", "l": resources}, ranks=ranks).spec
    assert says in (found := load_system("sge").warn_of_sharing(asked, info))
    assert bool(says) == bool(found)


def test_a_requeued_job_waits_again() -> None:
    found = status("slurm", f"{RAN}stop 120 stopped\nqueue PENDING|BeginTime\n")
    assert (found.state, found.reason) == (JobState.QUEUED, "BeginTime")
    again = status("slurm", f"{RAN}stop 120 stopped\nrunning 130 2\nqueue RUNNING|None\n")
    assert (again.state, again.attempt, again.started) == (JobState.RUNNING, 2, 110.0)


def test_the_exit_file_wins_over_the_queue() -> None:
    ended = "exit 119 2 3 1\nlauncher 120 3\nstarted 120 3\nsurvivors 120 c1 0\nended 120\n"
    found = status("slurm", f"{RAN}{ended}gone COMPLETED|0:0|None|130\n")
    assert (found.state, found.program_exit_code, found.finished) == (JobState.FAILED, 3, 120.0)
    assert found.failure
    assert (found.failure.rank, found.failure.node) == (2, "c2")


def test_a_job_finds_its_own_part_of_a_survey() -> None:
    text = f"{RAN}@@job 8 100\nqueued 1\nqueue PENDING|Priority\n"
    assert status("slurm", text).state is JobState.RUNNING
    assert status("slurm", text, number=70).state is JobState.QUEUED


# ------------------------------------------------------------------------------------------ sites


def test_mpi_plugins_are_read_in_old_and_new_wording() -> None:
    new = (
        "MPI plugin types are...\n\tnone\n\tpmix\nspecific pmix plugin versions available: pmix_v4"
    )
    old = "srun: MPI types are...\nsrun: pmix\nsrun: none\n"
    for said, expected in ((new, "yes"), (old, "yes"), ("MPI plugin types are...\n\tpmi2", "")):
        assert load_site("slurm").parse_site_info({"mpi_plugins": said})["pmix"] == expected


@pytest.mark.parametrize("system", ["slurm", "sge"])
def test_slurm_gets_what_is_typed_for_srun(
    system: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    open_store().save(site(system))
    line = "srun -p gpu --gres=gpu:2 -N 2 --ntasks-per-node=2 python train.py"
    made = call("run", "--emit", "sbatch" if system == "slurm" else "qsub", *line.split()).out
    assert ("#SBATCH --nodes=2\n" in made) == (system == "slurm")
    assert ("#SBATCH --partition=gpu\n" in made) == (system == "slurm")
    assert ("#SBATCH --gres=gpu:2\n" in made) == (system == "slurm")


@rows("line, lines", "batch.lines_of_other_launchers_on_slurm")
def test_lines_of_other_launchers_on_slurm(
    line: str, lines: list[str], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without lines of a script, it is refused."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a.py"):
        write_program(Path(name), "")
    open_store().save(site("slurm"))
    said = call("run", "--emit", "sbatch", *line.split())
    assert said.code == (0 if lines else 2)
    assert [word for word in lines if f"#SBATCH {word}\n" not in said.out] == []


@rows("system, line, code, says", "batch.a_script_of_ones_own")
def test_a_script_of_ones_own(
    system: str,
    line: str,
    code: int,
    says: str,
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("job.sh", "exe.sh"):
        Path(name).write_text("#!/bin/sh\n#SBATCH -n 1\n#$ -cwd\ntrue\n")
    Path("exe.sh").chmod(0o755)
    open_store().save(site(system))
    said = call("run", "--dry-run", *shlex.split(line))
    assert (said.code, fnmatch(said.out + said.err, f"*{says}*")) == (code, True), said


@pytest.mark.parametrize(("system", "other"), [("slurm", "qsub"), ("sge", "sbatch")])
@pytest.mark.parametrize("words", ["--emit sh", "--emit {other}", "--launcher torchrun"])
def test_what_a_batch_system_does_not_do_is_refused(
    call: Call, system: str, other: str, words: str
) -> None:
    store = open_store()
    store.save(site(system))
    line = words.format(other=other).split()
    said = call("run", *line, "train.py")
    assert (said.code, line[0] in said.err) == (2, True), said
    assert not store.list_jobs()

"""Every input can be wrong: one clear line, the right exit code, nothing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.core.model import Phase
from tests.unit.calling import Call, judge, state
from tests.unit.making import cluster

BAD: list[tuple[str, int, str, str]] = [
    # command line (| separates words), exit code, what is wrong, what to do
    ("rnu", 2, "rnu", "run"),
    ("statsu", 2, "statsu", "status"),
    ("frobnicate", 2, "frobnicate", "--help"),
    ("--frobnicate", 2, "--frobnicate", "--help"),
    ("up|--wrokers|3", 2, "unknown option --wrokers", "did you mean --workers?"),
    ("attach", 2, "specify --hosts, --slurm or --sge", "clusterctl attach NAME --hosts FILE"),
    ("attach|--hosts|a|--slurm", 2, "--hosts and --slurm cannot be combined", "clusterctl attach"),
    ("up|--workers|0", 2, "--workers 0: must be at least 1", "--workers 2"),
    ("up|--gpu|g4dn|--disk|5", 2, "--disk 5: must be at least 8", "--disk 8"),
    ("up|--workers|-1", 2, "--workers -1", "--workers"),
    ("up|--workers|two", 2, "--workers 'two': expected a number", "2"),
    ("up|--workers|100000", 2, "100000", ""),
    ("up|--provider|locla", 2, "locla", "local"),
    ("up|--dry-run|--budget|0", 2, "--budget 0: must be 0.01 to 1,000,000", "20"),
    (
        "up|--dry-run|--budget|1e9",
        2,
        "--budget 1,000,000,000: must be 0.01 to 1,000,000",
        "20",
    ),
    (
        "up|--dry-run|--budget|inf",
        2,
        "--budget inf: must be 0.01 to 1,000,000",
        "20",
    ),
    (
        "up|--dry-run|--budget|nan",
        2,
        "--budget nan: must be 0.01 to 1,000,000",
        "20",
    ),
    ("up|--dry-run|--ttl|8", 2, "--ttl '8' has no unit", "8h or 8m"),
    ("up|--dry-run|--ttl|1h30", 2, "--ttl '1h30' ends without a unit", "1h30m"),
    ("up|--dry-run|--ttl|31d", 2, "--ttl '31d' is more than 30 days", "clusterctl extend --ttl"),
    ("up|--dry-run|--gpu|g5:1|--workers|3", 2, "--workers 3 cannot be combined", "as --gpu g5:N"),
    (
        "up|--dry-run|--gpu|g5|--cpu|t3.large|--workers|3",
        2,
        "--workers 3 cannot be combined with 2 groups",
        "as --gpu g5:N --cpu t3.large:N",
    ),
    ("up|--dry-run|--cpu|", 2, "--cpu '' must be NAME", "--cpu c7i.xlarge:4"),
    ("up|--dry-run|--vpc|", 2, "--vpc '' is empty", "check that the variable is set"),
    ("up|--dry-run|--gpu|g4dn|--subnet|", 2, "--subnet '' is empty", "leave it out"),
    ("check|--real|--region=", 2, "--region '' is empty", "leave it out"),
    ("up|--dry-run|--gpu|:2", 2, "--gpu ':2' must be NAME", "--gpu g4dn:4"),
    ("up|--dry-run|--provider|local|--spot", 2, "--spot works only with EC2", "ec2"),
    (
        "up|--spot|--budget|5|--region|mars-1|--efa|--image|x",
        2,
        "works only with Docker and EC2; the provider is local",
        "add --provider docker or ec2",
    ),
    ("up|--runtime|docker", 2, "--runtime works only with EC2", "leave it out"),
    ("check|-c|lab", 2, "--cluster has no effect", "leave it"),
    ("data|list|-c|lab", 2, "--cluster has no effect", "leave it"),
    ("data|list|mnist", 2, "unexpected argument 'mnist'", "data list --help"),
    ("data|fetch|mnist", 2, "unknown command 'data fetch'", "data --help"),
    ("data|lits", 2, "unknown command 'data lits'", "did you mean data list?"),
    ("data|list|--mirror|x", 2, "unknown option --mirror", "data list --help"),
    ("version", 2, "unknown command 'version'", "did you mean --version?"),
    ("image|bulid|cpu", 2, "unknown command 'image bulid'", "did you mean image build?"),
    ("image|lock", 2, "missing argument NAME", "image lock --help"),
    ("image|build|cpu|-c|lab", 2, "--cluster has no effect", "leave it out"),
    ("up|--dry-run|--provider|docker|--spot-fallback", 2, "--spot-fallback", "leave it out"),
    ("up|Upper", 2, "Upper", "a-z"),
    ("up|a;rm -rf b", 2, "a;rm -rf b", "a-z"),
    ("up|../../etc", 2, "../../etc", "a-z"),
    ("up|" + "x" * 31, 2, "x" * 31, "30"),
    ("up|9lives", 2, "9lives", "a-z"),
    ("up|--dry-run|", 2, "''", "name"),  # somebody's "$NAME" was empty
    ("down|", 2, "''", "name"),
    ("status|", 2, "''", "name"),
    ("up|a|b", 2, "b", "--help"),
    ("down|A_B", 2, "A_B", "a-z"),
    ("status", 7, "no cluster", "clusterctl up"),
    ("status|nope", 7, "nope", "clusterctl up"),
    ("status|-c|nope", 7, "nope", "clusterctl up"),
    ("ssh", 7, "no cluster", "clusterctl up"),
    ("cp|a|b", 7, "no cluster", "clusterctl up"),
    ("cp|a", 2, "missing argument TARGET", "cp --help"),
    ("run", 2, "nothing to run", "SCRIPT"),
    ("run|train.py", 7, "no cluster", "clusterctl up"),
    ("run|--ranks|0|train.py", 2, "--ranks 0: must be at least 1", "--ranks 2"),
    (
        "run|--sync|gs://bucket/c|train.py",
        2,
        "--sync 'gs://bucket/c': expected a folder of this machine or s3://BUCKET/PREFIX",
        "--sync s3://your-bucket/outputs",
    ),
    ("run|--ranks|many|train.py", 2, "--ranks 'many': expected a number", "--ranks 2"),
    ("run|-np|2|train.py", 2, "unknown option -np", "did you mean `-n 2`?"),
    ("up|-n|2", 2, "unknown option -n", "did you mean --workers?"),
    ("run|-N|2|train.py", 2, "unknown option -N", "did you mean --nodes?"),
    ("run|--env", 2, "option --env needs a value", "--help"),
    ("up|--spot=1", 2, "option --spot takes no value", "--help"),
    ("run|--retries|-1|train.py", 2, "--retries -1: must be at least 0", ""),
    ("run|--backend|nccll|train.py", 2, "nccll", "nccl"),
    ("run|--launcher|mpiexec|train.py", 2, "mpiexec", "mpirun"),
    ("run|--emit|bat|train.py", 2, "bat", "sbatch"),
    (
        "run|--partitions|gpu|train.py",
        2,
        "unknown option --partitions",
        "did you mean --partition?",
    ),
    ("logs", 7, "no jobs yet", "clusterctl run"),
    ("logs|-c|nope", 7, "no cluster named 'nope'", "clusterctl up"),
    ("logs|first", 2, "JOB 'first': expected a number", ""),
    ("logs|99", 7, "99", "clusterctl jobs"),
    ("logs|99|--rank|-1", 2, "--rank -1: must be at least 0", ""),
    ("cancel|99", 7, "99", "clusterctl jobs"),
    ("fetch|99", 7, "99", "clusterctl jobs"),
    ("rerun|99", 7, "99", "clusterctl jobs"),
    ("jobs|--what", 2, "--what", "--help"),
    ("list|extra", 2, "extra", "--help"),
    ("check|extra", 2, "extra", "--help"),
]
BAD_WITH_A_CLUSTER: list[tuple[str, int, str, str]] = [
    ("run|nope.py", 2, "nope.py", "bundled"),
    ("run|multinode_ddp_mpy.py", 2, "multinode_ddp_mpy.py", "multinode_ddp_mpi.py"),
    ("run|.", 2, "folder", "script"),
    ("run|--stage|nowhere|train.py", 2, "nowhere: no such folder", "check the path"),
    ("run|--stage|/|train.py", 2, "whole file system", "--stage"),
    ("run|--ranks|99|train.py", 6, "99 ranks", "--ranks"),
    ("run|--nodes|9|train.py", 6, "--nodes 9", "--workers 9"),
    ("run|--ranks|3|--ranks-per-node|2|train.py", 2, "--ranks 3", ""),
    ("data|push|nope", 2, "no data set or folder named 'nope'", "available"),
    ("run|--timeout|soon|train.py", 2, "soon", "30m"),
    ("run|--timeout|-5|train.py", 2, "-5", "30m"),
    ("run|--timeout|0|train.py", 2, "--timeout must be longer than zero", "30m"),
    ("run|--dry-run|--timeout||train.py", 2, "''", "30m"),
    ("run|--env|1X=2|train.py", 2, "1X", ""),
    ("run|--env|RANK=3|train.py", 2, "RANK cannot be set", "--ranks"),
    ("run|--env|CLUSTERCTL_WORLD_SIZE=3|train.py", 2, "CLUSTERCTL_WORLD_SIZE", "--ranks"),
    ("run|--env|PMIX_RANK=0|train.py", 2, "PMIX_RANK cannot be set", "--ranks"),
    ("run|--env|OMPI_COMM_WORLD_RANK=0|train.py", 2, "OMPI_COMM_WORLD_RANK cannot", "--ranks"),
    ("run|--env|PMI_RANK=0|train.py", 2, "PMI_RANK cannot be set", "--ranks"),
    ("run|--env|SLURM_LOCALID=0|train.py", 2, "SLURM_LOCALID cannot be set", "--ranks"),
    ("run|--env|UNSET_HERE|train.py", 2, "UNSET_HERE", "UNSET_HERE=VALUE"),
    ("run|--env-file|nowhere|train.py", 2, "nowhere cannot be read: No such", "check the path"),
    ("run|-c|nope|train.py", 7, "nope", "lab"),
    ("run|--launcher|torchrun|--ranks|3|train.py", 6, "torchrun", "--ranks-per-node"),
    ("run|--launcher|torchrun|--backend|mpi|train.py", 6, "torchrun", ""),
    ("run|--partition|gpu|train.py", 2, "--partition", ""),
    ("run|broken.py", 2, "broken.py", ""),
    ("ssh|worker-9|--|true", 7, "worker-9", "worker-1"),
    ("ssh|--timeout|0|worker-1", 2, "--timeout 0: must be 0.1 to", ""),
    ("cp|a|b", 2, "", "NODE:"),
    ("cp|worker-1:a|worker-2:b", 2, "", ""),
    ("cp|nowhere|worker-1:b", 2, "nowhere: no such file or folder", "check the path"),
    ("cp|worker-9:a|b", 7, "worker-9", "worker-1"),
    ("status|-c|nope", 7, "nope", "lab"),
    ("list|-c|nope", 7, "nope", "lab"),
    ("up|lab|-c|other", 2, "two cluster names given: 'lab' and --cluster 'other'", "only one"),
    ("down|lab|-c|other", 2, "two cluster names given: 'lab' and --cluster 'other'", "only one"),
    ("status|lab|-c|other", 2, "two cluster names given: 'lab' and --cluster 'other'", "only one"),
    ("detach|lab|-c|other", 2, "two cluster names given: 'lab' and --cluster 'other'", "only one"),
    (
        "extend|lab|-c|other|--ttl|4h",
        2,
        "two cluster names given: 'lab' and --cluster 'other'",
        "only one",
    ),
    (
        "attach|lab|-c|other|--hosts|train.py",
        2,
        "two cluster names given: 'lab' and --cluster 'other'",
        "only one",
    ),
    ("extend|--ttl|8", 2, "--ttl '8' has no unit", "8h or 8m"),
    ("extend|--ttl|721h", 2, "--ttl '721h' is more than 30 days", "clusterctl extend --ttl"),
    ("down|nope", 7, "nope", "lab"),
]


@pytest.mark.parametrize(("line", "code", "what", "hint"), BAD, ids=[row[0] for row in BAD])
def test_bad_input(line: str, code: int, what: str, hint: str, call: Call) -> None:
    judge(call(*line.split("|")), code, what, hint)
    assert state() == []


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("line", "code", "what", "hint"),
    BAD_WITH_A_CLUSTER,
    ids=[row[0] for row in BAD_WITH_A_CLUSTER],
)
def test_bad_input_with_a_cluster(line: str, code: int, what: str, hint: str, call: Call) -> None:
    before = [name for name in state() if "lock" not in name]
    judge(call(*line.split("|")), code, what, hint)
    after = [name for name in state() if "lock" not in name and name != "clusterctl.log"]
    assert after == before
    assert open_store().read_cluster("lab") == cluster()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("status|--json", 7),
        ("run|--json", 2),
        ("up|--json|--workers|0", 2),
        ("up|--json|Upper", 2),
        ("ssh|--json|worker-1", 7),
        ("logs|--json|99", 7),
        # found by the parser, before a verb has begun
        ("logs|first|--json", 2),
        ("up|--workers|two|--json", 2),
        ("status|--json|--frobnicate", 2),
        ("cp|a|--json", 2),
    ],
)
def test_errors_are_json_too(line: str, code: int, call: Call) -> None:
    said = call(*line.split("|"))
    assert said.code == code
    document = said.document
    assert document["schema"] == 1
    assert document["error"]["code"] == code
    assert document["error"]["message"] in said.err
    assert document["error"]["hint"]


def test_several_clusters(call: Call) -> None:
    store = open_store()
    for name in ("one", "two"):
        store.save(cluster(name=name))
    said = call("status")
    judge(said, 2, "one, two", "--cluster")


@pytest.mark.parametrize(
    "line", ["ssh", "ssh|worker-1|--|hostname", "ssh|--json|--|true", "cp|train.py|worker-1:"]
)
def test_a_cluster_whose_keys_are_lost(line: str, call: Call) -> None:
    """As `gc --adopt` finds it: machines by their tags, and nothing else."""
    open_store().save(cluster(phase=Phase.CREATING, mode_reason="us-east-1, adopted"))
    said = call(*line.split("|"))
    assert said.code == 4
    assert "the SSH keys of cluster 'lab' are lost" in said.err
    assert "clusterctl down lab" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_a_cluster_of_which_only_the_tags_are_left(option: str, call: Call) -> None:
    """`up` would record an end that no machine has, before it found that it cannot go on."""
    open_store().save(cluster(phase=Phase.CREATING, mode_reason="us-east-1, adopted"))
    before, there = open_store().read_cluster("lab"), state()
    said = call("up", "lab", option)
    judge(said, 3, "cluster lab was adopted", "clusterctl down lab")
    assert open_store().read_cluster("lab") == before
    assert set(state()) - set(there) <= {"clusterctl.log"}


def test_a_cluster_that_is_not_ready(call: Call) -> None:
    open_store().save(cluster(phase=Phase.CREATING))
    judge(call("run", "train.py"), 7, "creating", "clusterctl up lab")


@pytest.mark.parametrize(
    "line", ["up|lab|--workers|3", "up|lab|--provider|docker", "extend|--ttl|4h"]
)
@pytest.mark.parametrize("provider", ["hosts", "slurm", "sge"])
def test_what_means_nothing_for_an_attached_cluster(provider: str, line: str, call: Call) -> None:
    open_store().save(cluster(provider=provider, identity=""))
    said = call(*line.split("|"))
    judge(said, 2, "'lab' was attached", "clusterctl detach lab")
    assert f"clusterctl attach lab --{provider}" in said.err


def test_an_attached_cluster_that_is_not_ready(call: Call) -> None:
    open_store().save(cluster(provider="hosts", identity="", phase=Phase.DELETING))
    judge(call("run", "train.py"), 7, "deleting", "clusterctl detach lab")


@pytest.mark.usefixtures("lab")
def test_a_damaged_record(call: Call) -> None:
    path = open_store().locate_folder("lab") / "cluster.json"
    path.write_text("{")
    for verb in (["status"], ["run", "train.py"], ["ssh"], ["up", "lab"]):
        judge(call(*verb), 7, str(path), "clusterctl down lab")
        assert path.read_text() == "{"


@pytest.mark.parametrize(
    "line", ["up", "down", "status", "jobs", "list", "run|train.py", "check"], ids=str
)
def test_a_home_that_cannot_be_written(line: str, call: Call, tmp_path: Path) -> None:
    """Verbs that only read find nothing there; the others say one line."""
    (tmp_path / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTERCTL_HOME", str(tmp_path / "file" / "state"))
        said = call(*line.split("|"))
    assert "Traceback" not in said.err
    assert said.code in ({2} if line in ("up", "down") else {0, 2, 3, 7}), said


def test_a_mistake_in_the_settings(call: Call) -> None:
    Path("clusterctl.toml").write_text('[run]\nbakend = "mpi"\n')
    judge(call("status"), 2, "clusterctl.toml", "run.backend")
    assert call("--help").code == call("--version").code == 0


@pytest.mark.parametrize("text", ["[run]\nranks = 'many'", "[up]\nworkers = 'two'", "json = 3"])
def test_a_wrong_kind_of_value_in_the_settings(text: str, call: Call) -> None:
    Path("clusterctl.toml").write_text(text)
    for line in (["run", "train.py"], ["up", "--dry-run"]):
        said = call(*line)
        assert said.code in (0, 2, 3, 7)
        assert "Traceback" not in said.err


@pytest.mark.parametrize("where", ["file", "variable"])
def test_a_name_on_the_command_line_goes_before_one_in_the_settings(
    where: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        open_store().save(cluster(name=name))
    if where == "file":
        Path("clusterctl.toml").write_text('cluster = "one"\n')
    else:
        monkeypatch.setenv("CLUSTERCTL_CLUSTER", "one")
    assert call("status", "--json").document["cluster"] == "one"
    assert call("status", "two", "--json").document["cluster"] == "two"


@pytest.mark.parametrize("name", ["com,ma", "co:lon", "new\nline", "bell\x07"])
def test_a_state_home_that_nodes_cannot_use_is_refused_before_anything_is_there(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home = tmp_path / name
    monkeypatch.setenv("CLUSTERCTL_HOME", str(home))
    said = call("up")
    assert said.code == 2
    assert "set CLUSTERCTL_HOME to another folder" in said.err
    assert not home.exists()

"""Which options mean something where: one table for command lines, settings and stored jobs.

Every option of every verb has a row. An option without limits works wherever its verb does; one
with limits is refused (exit 2) where it would have no effect; a setting is ignored there, with a
note. Circumstances are words: a provider (`local`, `ec2`), what runs jobs (`direct`, `slurm`), what
is to be done (`emit`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

LEAVE_OUT = "leave it out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """`only`: one of these circumstances has to hold; None: any will do. `never`: none of these
    may. `says` goes on after the option's name; `instead` is the hint by circumstance, where one is
    better than `hint`."""

    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()
    says: str
    hint: str = LEAVE_OUT
    instead: Mapping[str, str] = field(default_factory=dict)

    def holds(self, circumstances: Collection[str]) -> bool:
        """Whether the option means something in these."""
        wanted = self.only is None or not self.only.isdisjoint(circumstances)
        return wanted and self.never.isdisjoint(circumstances)

    def advice(self, circumstances: Collection[str]) -> str:
        """What to do about it."""
        found = (text for word, text in self.instead.items() if word in circumstances)
        return next(found, self.hint)


def limit(verb: str, option: str, circumstances: Collection[str]) -> Limit | None:
    """Why the option (as it is written: `--spot`, `-pe`) has no effect there; None where it has."""
    limits = OPTIONS[verb][option]
    return next((item for item in limits if not item.holds(circumstances)), None)


def _only(*words: str, says: str, hint: str = LEAVE_OUT) -> Limit:
    return Limit(only=frozenset(words), says=says, hint=hint)


def _never(*words: str, says: str, hint: str = LEAVE_OUT) -> Limit:
    return Limit(never=frozenset(words), says=says, hint=hint)


def _on_sge(instead: str) -> Limit:
    return Limit(only=frozenset({"slurm"}), says="works only with Slurm", instead={"sge": instead})


def _data(*what: str) -> Limit:
    return Limit(
        only=frozenset(what),
        says="works only with " + " and ".join(f"`data {word}`" for word in what),
        instead={"index": "write the options of its program after --"},
    )


EC2 = _only("ec2", says="works only with EC2", hint="add --provider ec2, or leave it out")
DOCKER = _only(
    "docker", says="works only with Docker nodes", hint="add --provider docker, or leave it out"
)
IMAGE = _only(
    *("docker", "ec2"),
    says="works only with Docker and EC2",
    hint="add --provider docker or ec2, or leave it out",
)
RUNTIME = Limit(
    only=frozenset({"ec2"}),
    says="works only with EC2",
    instead={"docker": "leave it out; --image chooses what the containers are made from"},
)
CONTAINERS = _never(
    "host", says="needs containers, and --runtime host has none", hint="leave one of the two out"
)

DIRECT = _only(
    "direct",
    says="has no effect with a batch system",
    hint="leave it out: the queue decides when a job starts",
)
BATCH = _only(
    *("slurm", "sge"),
    says="works only with Slurm and Grid Engine",
    hint="leave it out, or make a batch system known: `clusterctl attach NAME --slurm` or `--sge`",
)
SLURM = _only("slurm", says="works only with Slurm")
SGE = _only("sge", says="works only with Grid Engine")
NODES = Limit(
    only=frozenset({"direct", "slurm"}),
    says="has no effect with Grid Engine, which gives slots",
    instead={"sge": "ask for slots with -pe NAME SLOTS"},
)
STAGED = _never(
    "interactive",
    says="has no effect with --interactive, which stages and records nothing",
    hint="leave one of the two out",
)
SUPERVISED = _never(
    "emit",
    says="is not part of an emitted script, which runs without clusterctl",
    hint="leave it out, or run the job without --emit",
)

FREE: tuple[Limit, ...] = ()
MANNERS: dict[str, tuple[Limit, ...]] = {"--json": FREE, "--quiet": FREE, "--verbose": FREE}
"""Every verb takes these."""
COMMON: dict[str, tuple[Limit, ...]] = {"--cluster": FREE, **MANNERS}

OPTIONS: dict[str, dict[str, tuple[Limit, ...]]] = {
    "up": {
        **COMMON,
        "--provider": FREE,
        "--workers": FREE,
        "--ttl": FREE,
        "--yes": FREE,
        "--dry-run": FREE,
        "--gpu": (EC2,),
        "--cpu": (EC2,),
        "--instance-type": (EC2,),
        "--launcher-type": (EC2,),
        "--region": (EC2,),
        "--zones": (EC2,),
        "--spot": (EC2,),
        "--spot-fallback": (EC2,),
        "--ami": (EC2,),
        "--disk": (EC2,),
        "--efa": (EC2,),
        "--ssh-cidr": (EC2,),
        "--budget": (EC2,),
        "--boot-timeout": (EC2,),
        "--runtime": (RUNTIME,),
        "--image": (IMAGE, CONTAINERS),
        "--gpus": (DOCKER,),
    },
    "down": {**COMMON, "--fetch": FREE, "--discard": FREE, "--force": FREE, "--yes": FREE},
    "status": {**COMMON, "--live": FREE},
    "list": COMMON,
    "ssh": {
        **COMMON,
        "--timeout": (
            _only("json", says="works only with --json", hint="add --json, or leave it out"),
        ),
    },
    "cp": {**COMMON, "--timeout": FREE},
    "attach": {
        **COMMON,
        "--hosts": FREE,
        "--slurm": FREE,
        "--sge": FREE,
        "--workdir": FREE,
        "--user": (_never("here", says="has no effect: this machine is the login node"),),
        "--identity": (_never("here", says="has no effect: this machine is the login node"),),
        "--bootstrap": (
            _only(
                "hosts",
                says="works only with --hosts",
                hint="leave it out: nothing is installed on a batch system's machines",
            ),
        ),
    },
    "detach": {**COMMON, "--force": FREE, "--yes": FREE},
    "extend": {**COMMON, "--ttl": FREE, "--yes": FREE},
    "gc": {
        **MANNERS,
        "--adopt": FREE,
        "--region": FREE,
        "--dry-run": FREE,
        "--yes": FREE,
        "--cluster": (
            _never("adopt", says="does not go with --adopt, which names the cluster itself"),
        ),
    },
    "image": {
        **MANNERS,
        "--cluster": (_only(says="has no effect: images are built on this machine"),),
        "--push": (_only("build", says="works only with `image build`"),),
        "--base": (_only("build", says="works only with `image build`"),),
    },
    "run": {
        **COMMON,
        "--json": (
            _never(
                "terminal",
                says="does not go with --interactive, whose output goes to the terminal",
                hint="leave one of the two out, or add --dry-run",
            ),
        ),
        "--dry-run": FREE,
        "--interactive": (
            _only(
                *("slurm", "sge"),
                says="works only with Slurm and Grid Engine",
                hint="`clusterctl ssh` opens a shell on a node of this cluster",
            ),
        ),
        "--ranks": (
            _never(
                "interactive sge",
                says="has no effect with --interactive on Grid Engine",
                hint="ask for slots with -pe NAME SLOTS",
            ),
        ),
        "--ranks-per-node": (NODES,),
        "--nodes": (NODES,),
        "-m": (STAGED,),
        "--backend": (STAGED,),
        "--launcher": (STAGED,),
        "--env": (STAGED,),
        "--env-file": (STAGED,),
        "--stage": (STAGED,),
        "--source": (STAGED,),
        "--emit": (STAGED,),
        "--detach": (STAGED, SUPERVISED),
        "--timeout": (STAGED, SUPERVISED),
        "--retries": (STAGED, SUPERVISED),
        "--allow-cpu": (STAGED,),
        "--now": (DIRECT, SUPERVISED),
        "--module": (BATCH, STAGED),
        "--venv": (BATCH, STAGED),
        "--container": (BATCH, STAGED),
        "-pe": (SGE,),
        "-l": (SGE,),
        "--queue": (SGE,),
        "--project": (SGE,),
        "--account": (BATCH,),
        "--job-name": (BATCH,),
        "--mail-type": (BATCH,),
        "--mail-user": (BATCH,),
        "--time": (BATCH,),
        "--requeue": (
            BATCH,
            SUPERVISED,
            _never("interactive", says="has no effect with --interactive: a terminal ends once"),
        ),
        "--partition": (_on_sge("--queue NAME"),),
        "--mem": (_on_sge("-l h_vmem=SIZE (for each slot)"),),
        "--mem-per-cpu": (_on_sge("-l h_vmem=SIZE (for each slot)"),),
        "--gpus": (_on_sge("-l gpu=N, or what your site calls it"),),
        "--gpus-per-node": (_on_sge("-l gpu=N, or what your site calls it"),),
        "--cpus-per-task": (_on_sge("-pe NAME SLOTS with --ranks N"),),
        "--constraint": (SLURM,),
        "--exclude": (SLURM,),
        "--exclusive": (SLURM,),
        "--gpu-bind": (SLURM,),
        "--gpus-per-task": (SLURM,),
        "--gres": (SLURM,),
        "--mem-per-gpu": (SLURM,),
        "--nodelist": (SLURM,),
        "--qos": (SLURM,),
        "--reservation": (SLURM,),
        "--signal": (SLURM, SUPERVISED),
    },
    "jobs": COMMON,
    "logs": {**COMMON, "--follow": FREE, "--rank": FREE},
    "cancel": COMMON,
    "fetch": {**COMMON, "--to": FREE},
    "rerun": {
        **COMMON,
        "--resume": FREE,
        "--env": FREE,
        "--env-file": FREE,
        "--detach": FREE,
    },
    "data": {
        **MANNERS,
        "--json": (
            _never("index", says="has no effect with `data index`, whose program writes a file"),
        ),
        "--mirror": (_data("get"),),
        "--name": (_data("push"),),
        "--no-push": (_data("get"),),
        "--cluster": (
            _data("get", "push"),
            _never("no-push", says="has no effect with --no-push", hint="leave one of the two out"),
        ),
    },
    "check": {
        **MANNERS,
        "--cluster": (
            _only(
                says="has no effect: `check` looks at this machine",
                hint="leave it out; `clusterctl status --live` looks at a cluster",
            ),
        ),
    },
}

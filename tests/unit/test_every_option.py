"""Every option of every verb has an effect where it is taken, or is refused there.

The options are those of `clusterctl/options/`. Each is given once in each scene: a verb with a kind
of cluster and a way to use it. Where the table takes it, the outcome has to differ from that of the
same line without it; where the table does not, the line is refused, and nothing happens.

The outcome is what the line prints and what reaches the action. `up` and `run` are asked for their
plan: that of the real provider, and of the real launcher or batch system.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import (
    access,
    attach,
    bench,
    check,
    compare,
    data,
    doctor,
    down,
    images,
    init,
    jobs,
    lifetime,
    machine_images,
    metrics,
    report,
    rerun,
    status,
    top,
    verify,
)
from clusterctl.actions.common import open_store
from clusterctl.cli import clusters, run
from clusterctl.core.job import JobState
from clusterctl.core.model import Cluster, ClusterSpec, Role
from clusterctl.core.text import read_toml
from clusterctl.errors import ProviderError, UsageError
from clusterctl.insight.metrics import MetricPoint
from clusterctl.machines import providers
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.protocol import Cloud, ProviderPlan, Resource
from clusterctl.options.kinds import Option, Verb
from clusterctl.options.verbs import VERBS, find_limit
from tests.unit.calling import Call, Said, state
from tests.unit.making import charge, cluster, job, node, spec
from tests.unit.scripts import write_program


def options(verb: str) -> dict[str, Option[Any]]:
    """The verb's options, as they are written."""
    return {option.flag: option for option in VERBS[verb].options().values() if option.flags}


# ------------------------------------------------------------------------------------------ scenes

UNSEEN = {"--json", "--quiet", "--verbose", "--yes"}
"""Taken everywhere, by scripts above all: how something is said, and consent beforehand."""

ATTACHED = ("hosts", "slurm", "sge")
MADE = ("local", "docker", "ec2")
URL = "https://example.org/train.bin"
SIZE = {"slurm": ("--nodes", "2"), "sge": ("-pe", "mpi", "4")}
EMIT = {"slurm": "sbatch", "sge": "qsub"}


@dataclass(frozen=True)
class Scene:
    """A command line that works. `circumstances`: see `clusterctl.options.kinds`."""

    verb: str
    words: tuple[str, ...] = ()
    provider: str = "local"
    circumstances: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return "-".join((self.verb, self.provider, *sorted(self.circumstances)))

    def line(self, *option: str) -> tuple[str, ...]:
        if self.verb in ("run", "launch", "bench scaling"):  # `-m MODULE` ends its options
            return (*self.verb.split(), *self.words[:-1], *option, self.words[-1])
        return (*self.verb.split(), *option, *self.words)


def scenes() -> list[Scene]:
    made = [
        Scene("up", ("--dry-run", "--json", "--provider", name), name, frozenset({name}))
        for name in MADE
    ]
    host = ("--dry-run", "--json", "--provider", "ec2", "--runtime", "host")
    made.append(Scene("up", host, "ec2", frozenset({"ec2", "host"})))
    for name in (*MADE, "hosts"):
        direct = frozenset({"direct"})
        made.append(Scene("run", ("--dry-run", "--json", "train.py"), name, direct))
    emitted = ("--emit", "sh", "--json", "train.py")
    made.append(Scene("run", emitted, circumstances=direct | {"emit", "emit direct"}))
    for name, size in SIZE.items():
        plan, emitted = ("--dry-run", "--json"), ("--emit", EMIT[name], "--json")
        terminal = ("--interactive", "--dry-run", "--json")
        made += [
            Scene("run", (*size, *words, "train.py"), name, frozenset({name, *ways}))
            for words, ways in (
                (plan, ()),
                (emitted, ("emit", f"emit {name}")),
                (terminal, ("interactive", f"interactive {name}")),
            )
        ]
    for name in (*MADE, *ATTACHED):
        made += [
            Scene("status", (), name),
            Scene("list", (), name),
            Scene("ssh", ("worker-1", "--", "true"), name),
            Scene("ssh", ("--json", "worker-1", "--", "true"), name, frozenset({"json"})),
            Scene("cp", ("train.py", "worker-1:"), name),
            Scene("forward", ("6006",), name),
            Scene("detach" if name in ATTACHED else "down", (), name),
            Scene("jobs", (), name),
            Scene("verify", (), name),
            Scene("diff", ("7", "7"), name),
            Scene("report", (), name),
            Scene("top", ("7",), name),
            *(Scene(verb, ("7",), name) for verb in ("logs", "cancel", "fetch", "rerun", "doctor")),
            Scene("logs", ("--metrics", "7"), name, frozenset({"metrics"})),
            Scene("data get", ("mnist",), name),
            Scene("data get", ("--no-push", "mnist"), name, frozenset({"no-push"})),
            Scene("data push", ("mnist",), name),
            Scene("data get", (URL,), name, frozenset({"url"})),
        ]
    made += [Scene("extend", ("--ttl", "4h"), name) for name in MADE]
    made += [Scene("bench allreduce", (), name) for name in (*MADE, "hosts")]
    scaling = ("--ranks", "1,2", "train.py")
    made += [Scene("bench scaling", scaling, name, direct) for name in (*MADE, "hosts")]
    made += [Scene("stop", (), "ec2"), Scene("start", (), "ec2")]
    return [
        *made,
        Scene("launch", ("train.py",), circumstances=frozenset({"local", "direct"})),
        Scene("attach", ("--hosts", "train.py"), circumstances=frozenset({"hosts"})),
        *(
            Scene("attach", (f"--{name}", login), name, frozenset({name, *here}))
            for name in SIZE
            for login, here in (("me@login", ()), ("", ("here",)))
        ),
        Scene("gc", ("--yes",)),
        Scene("gc", ("--adopt", "lab-9", "--yes"), circumstances=frozenset({"adopt"})),
        Scene("image build", ("cpu",)),
        Scene("image ami"),
        Scene("image ami", ("cpu",), circumstances=frozenset({"kind", "making"})),
        Scene("image ami", ("--remove", "cpu"), circumstances=frozenset({"kind", "remove"})),
        *(Scene(verb) for verb in ("data list", "data index")),
        Scene("check"),
        Scene("check", ("--real",), circumstances=frozenset({"real"})),
        Scene("cost"),
        Scene("ssh-config"),
        Scene("init"),
        Scene("allow", ("203.0.113.7/32",), "ec2"),
    ]


VALUES: dict[str, list[str]] = read_toml(Path(__file__).with_name("options.toml"))

OTHER: dict[tuple[str, str], tuple[str, ...]] = {
    ("direct", "--launcher"): ("torchrun",),
    ("sge", "--launcher"): ("srun",),
    ("direct", "--ranks"): ("4",),
    ("slurm", "--ranks"): ("4",),
    ("gc", "--cluster"): ("nope",),
    ("ec2", "--runtime"): ("host",),
}
"""Where the value has to be another: by circumstance or verb."""

WAYS = {"--emit", "--interactive"}
"""Make another scene of one, or are refused beside the way that it has."""


def given(scene: Scene, option: str) -> tuple[str, ...]:
    if options(scene.verb)[option].is_flag:
        return (option,)
    others = (OTHER.get((word, option)) for word in (*sorted(scene.circumstances), scene.verb))
    return (option, *next((value for value in others if value), VALUES[option]))


# ------------------------------------------------------------------------------------------ stages


def silent(region: str) -> Any:
    raise ProviderError("AWS did not answer")


class Planned(Cloud):
    """A provider of machines that cost money, whose plan is all that it was asked for."""

    features = Ec2Provider.features
    find_usual_region = Ec2Provider.find_usual_region
    find_ids = Ec2Provider.find_ids
    find_owner = Ec2Provider.find_owner
    _connect = property(lambda self: silent)
    check_pausing = Ec2Provider.check_pausing
    stop = Ec2Provider.stop
    find: Any
    adopt: Any
    remove: Any

    def list_regions(self) -> tuple[str, ...]:
        return ("us-east-1",)

    def plan(self, spec: ClusterSpec, *rest: Any, **more: Any) -> ProviderPlan:
        return ProviderPlan(mode="ec2", mode_reason="", one_host=False, lines=(repr(spec),))


ACTIONS = {
    lifetime: "allow extend stop",
    bench: "measure_allreduce measure_scaling",
    check: "check run_real_check",
    data: "get push list_data write_index download_on_nodes",
    compare: "compare_jobs",
    doctor: "diagnose",
    down: "take_down",
    images: "build",
    jobs: "read_logs cancel fetch",
    machine_images: "list_images remove_images make_image",
    metrics: "follow",
    access: "open_shell execute copy forward install uninstall include",
    rerun: "rerun",
    init: "write make_text",
    status: "read_status",
    top: "watch",
    verify: "measure",
}
"""What lines come to, by module."""


def stage(scene: Scene, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Clusters `lab` and `other` of the scene's provider, with a job; returns the list of what
    reaches the actions."""
    reached: list[str] = []
    store = open_store()
    if scene.verb not in ("up", "attach", "gc", "launch"):
        for name in ("lab", "other"):
            store.save(replace(recorded(scene.provider, name), **money(scene, name)))
        monkeypatch.setenv("CLUSTERCTL_CLUSTER", "lab")
    where = recorded(scene.provider, "lab")
    kept = job(cluster(), spec(), state=JobState.SUCCEEDED, started=1.0, finished=2.0)
    kept = replace(kept, cluster=where.name, cluster_id=where.id)
    store.save_job(kept)
    if scene.verb == "jobs":
        store.save_job(replace(kept, id=8, purpose="verify"))
    for name in ("mine.env", "key"):
        Path(name).write_text("MINE=2\n")
    Path("requirements.txt").write_text("six\n")
    Path("more").mkdir()
    fake = write_program(folder / "bin" / "docker", "echo 27.0")
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setitem(providers.PROVIDERS, "ec2", f"{__name__}:Planned")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    left = (
        Resource("instance", "i-1", "lab-9", "lab"),
        Resource("instance", "i-2", "other-9", "other"),
    )
    monkeypatch.setattr(Planned, "find", lambda self, region: left, raising=False)
    monkeypatch.setattr(Planned, "adopt", recorder("adopt", reached), raising=False)
    monkeypatch.setattr(Planned, "remove", recorder("remove", reached, None), raising=False)
    if scene.verb == "start":  # which is an `up`
        monkeypatch.setattr(clusters, "up", part("up", scene, reached))
    if scene.verb == "launch":  # its parts have scenes of their own: what it gives them counts
        for module, name in ((clusters, "up"), (run, "run"), (clusters, "down")):
            monkeypatch.setattr(module, name, part(name, scene, reached))
    for name in ("attach_hosts", "attach_site"):
        monkeypatch.setattr(attach, name, recorder(name, reached))
    for module, names in ACTIONS.items():
        for name in names.split():
            if (scene.verb, name) != ("list", "read_status"):
                monkeypatch.setattr(module, name, recorder(name, reached))
    monkeypatch.setattr(report, "make", recorder("make", reached, "a page"))
    points = [MetricPoint(0, {"loss": 1.0})]
    monkeypatch.setattr(metrics, "collect_metrics", recorder("collect_metrics", reached, points))
    return reached


def money(scene: Scene, name: str) -> dict[str, Any]:
    """What a cluster has cost, where that is what the verb is about."""
    if scene.verb != "cost":
        return {}
    since = time.time() - 7200
    spent = charge(hourly=float(len(name)), since=since)
    return {"id": f"{name}-1", "charges": (spent.end_at(since + 3900),)}


def recorder(name: str, reached: list[str], *answer: Any) -> Callable[..., Any]:
    """Notes what it is given, and goes no further unless there is an answer."""

    def note(*words: Any, **more: Any) -> Any:
        values = [word.values if isinstance(word, Verb) else word for word in words]
        plain = [value for value in (*values, *more.items()) if not unfit(value)]
        reached.append(f"{name} {plain}")
        if answer:
            return answer[0]
        raise UsageError("that is as far as this test goes")

    return note


def part(name: str, scene: Scene, reached: list[str]) -> Callable[..., None]:
    """Notes with what options another verb is called."""

    def note(given: Verb, console: Any, **more: Any) -> None:
        reached.append(f"{name} {given.apply_limits(scene.circumstances, print).values}")

    return note


def unfit(value: Any) -> bool:
    """Callables and stores differ from call to call, and say nothing."""
    last = value[1] if isinstance(value, tuple) and len(value) == 2 else value
    return callable(last) or " object at 0x" in repr(last)


def recorded(provider: str, name: str) -> Cluster:
    made = cluster(provider=provider, name=name, identity=None if provider in MADE else "")
    if provider in SIZE:
        made = cluster(node("login", role=Role.LOGIN), provider=provider, name=name, identity="")
    own = {"root": f"/home/me/.clusterctl/{name}", "python": f"/opt/{name}/bin/python"}
    return replace(made, nodes=tuple(replace(node, **own) for node in made.nodes))


def outcome(said: Said, reached: list[str]) -> tuple[object, ...]:
    """The same for the same line: without names that are drawn by lot, and without clock times."""
    varies = re.compile(r"RANK_[0-9a-f]{16}|\d\d:\d\d:\d\d UTC")
    out, err = (varies.sub("VARIES", text) for text in (said.out, said.err))
    seen = (said.code, out, err, *reached)
    reached.clear()
    return seen


def new(before: list[str]) -> set[str]:
    """What has come to be in the state home, beside the log of a line that failed."""
    return set(state()) - {*before, "clusterctl.log"}


def test_every_verb_has_a_scene() -> None:
    assert {scene.verb for scene in scenes()} == set(VERBS)


@pytest.mark.parametrize("scene", scenes(), ids=str)
def test_every_option_has_an_effect_or_is_refused(
    scene: Scene, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reached = stage(scene, monkeypatch, tmp_path)
    plain = outcome(call(*scene.line()), reached)
    assert plain == outcome(call(*scene.line()), reached)
    assert plain[0] == 0 or len(plain) > 3, plain
    wrong = []
    for option in options(scene.verb).keys() - UNSEEN - set(scene.words):
        if option == "--dry-run" and "--emit" in scene.words:
            continue  # a script is printed, and nothing is done, with or without it
        words = scene.line(*given(scene, option))
        before = state()
        said = call(*words)
        limit = find_limit(scene.verb, option, scene.circumstances)
        if {"--dry-run", "--emit"}.intersection(words) and new(before):
            wrong.append(f"{' '.join(words)}: only to be shown, and something was done")
        if limit:
            begins = f"clusterctl: {option} {limit.says}"
            refused = said.code == 2 and (option in WAYS or said.err.startswith(begins))
            if not refused or reached:
                wrong.append(f"{' '.join(words)}: not refused: {said} {reached}")
            if new(before):
                wrong.append(f"{' '.join(words)}: refused, and something was done")
            continue
        named = said.code == 2 and option in said.err  # for its value, or beside another one
        if not (said.code in (0, 3) or reached or named or option in WAYS):
            wrong.append(f"{' '.join(words)}: failed: {said.err}")
        elif outcome(said, reached) == plain:
            wrong.append(f"{' '.join(words)}: {option} has no effect")
        reached.clear()
    assert not wrong, "\n".join(wrong)

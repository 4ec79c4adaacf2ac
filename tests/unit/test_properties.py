"""What holds for all inputs: quoting, names, host files, records, options, and what other programs
print. The examples are the same in each run."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shlex
import string
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterctl.actions import status
from clusterctl.actions.common import check_name
from clusterctl.agent import messages as agent_messages
from clusterctl.batch import direct, verdict
from clusterctl.batch.system import load_system
from clusterctl.core import keys, stacks
from clusterctl.core.job import JobState
from clusterctl.core.text import read_toml
from clusterctl.errors import ProviderError, RecordError, UsageError
from clusterctl.insight import messages, metrics, node_views, top, verify
from clusterctl.jobs import fetch, records
from clusterctl.jobs.submit import render_environment
from clusterctl.launch.hostfile import parse_hosts
from clusterctl.machines import bootstrap, deadlines, facts, networks, registry
from clusterctl.machines.attached import SgeProvider, SlurmProvider
from clusterctl.machines.docker import containers
from clusterctl.machines.ec2 import api, refusals
from clusterctl.machines.local import layout
from clusterctl.options.kinds import Option
from clusterctl.options.verbs import VERBS
from clusterctl.project import packages as project_packages
from clusterctl.project import tree as project_tree
from clusterctl.state.home import Home
from clusterctl.state.store import Store
from clusterctl.terraform import folder as terraform_folder
from clusterctl.terraform.binary import TerraformError, parse_version
from tests.unit.making import job, spec

QUICK = settings(
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
FEW = settings(QUICK, max_examples=15)

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).map(lambda name: f"V{name}")
STRANGE = "²٣\u2028\x85\x1c"
"""Digits and ends of lines to Python, and to nobody else."""


def lines(*words: str) -> st.SearchStrategy[str]:
    """Nearly what a parser expects: these words, numbers and anything else, in lines."""
    token = st.one_of(
        st.sampled_from((*words, "0", "1", "-1", "1.5", "nan", "9" * 400, "", *STRANGE)), TEXT
    )
    line = st.lists(token, max_size=6).map(" ".join)
    return st.lists(line, max_size=8).map("\n".join)


def refused_in_one_line(error: UsageError) -> None:
    assert "\n" not in error.message
    assert error.hint


# ------------------------------------------------------------------------------------- quoting


@FEW
@given(st.dictionaries(NAMES, TEXT, max_size=20), st.lists(TEXT, max_size=10))
def test_variables_and_arguments_reach_a_program_unchanged(
    variables: dict[str, str], words: list[str]
) -> None:
    environment = render_environment(variables, {})
    program = ["/usr/bin/env", "-0"]
    with tempfile.NamedTemporaryFile("w", newline="") as file:
        file.write(environment)
        file.flush()
        done = subprocess.run(
            ["/bin/sh", file.name, "rank", *program], capture_output=True, check=True, env={}
        )
    found = dict(item.split(b"=", 1) for item in done.stdout.split(b"\0")[:-1])
    assert {name: found[name.encode()].decode() for name in variables} == variables
    assert shlex.split(direct.render_command_line(tuple(words))) == words


# --------------------------------------------------------------------------------------- names


@QUICK
@given(st.one_of(TEXT, st.text(string.ascii_lowercase + string.digits + "-", max_size=40)))
def test_a_name_is_safe_everywhere_or_refused(name: str) -> None:
    try:
        assert check_name(name) == name
    except UsageError as error:
        refused_in_one_line(error)
        return
    assert shlex.quote(name) == name
    assert Path("/home", name).name == name
    assert not name.startswith("-")
    assert len(name) <= 30


# ----------------------------------------------------------------------------------- host files


@QUICK
@given(
    lines(
        "node[1-3]", "node[3-1]", "10.0.0.1", "me@host", "slots=2", "slots=", "port=22", "[all]",
        "ansible_host=x", "role=launcher", "# note", "=", "[", "\\",
    )
)  # fmt: skip
def test_a_host_file_is_read_or_its_line_named(text: str) -> None:
    try:
        nodes = parse_hosts(text, "hosts")
    except UsageError as error:
        refused_in_one_line(error)
        return
    assert len({node.name for node in nodes}) == len(nodes)


@QUICK
@given(st.lists(st.integers(1, 64), min_size=1, max_size=20))
def test_a_host_file_says_what_was_written(slots: list[int]) -> None:
    text = "".join(f"host-{number} slots={count}\n" for number, count in enumerate(slots))
    hosts = parse_hosts(text, "hosts")
    assert [(host.name, host.slots) for host in hosts] == [
        (f"host-{number}", count) for number, count in enumerate(slots)
    ]


# -------------------------------------------------------------------------------------- records


@FEW
@given(st.dictionaries(NAMES, TEXT), st.lists(TEXT), st.sampled_from(JobState), TEXT)
def test_a_record_comes_back_as_it_was(
    env: dict[str, str], words: list[str], state: JobState, reason: str
) -> None:
    ran = job(None, spec(env=env), state=state, reason=reason)
    ran = replace(ran, spec=replace(ran.spec, program=replace(ran.spec.program, args=tuple(words))))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Home(Path(folder)))
        store.save_job(ran)
        assert store.read_job(7) == ran


BYTES = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            (b"a", b"/", b"..", b"\0", b"\n", b"\xff", b"diff --git a/.env b/.env\n", b"+TOKEN=1\n",
             b"@@ -1 +1 @@\n", b"--- a/x\n", b"+++ b/x\n", b"+" * 3000, b"GIT binary patch\n")
        ), max_size=8,
    ).map(b"".join),
)  # fmt: skip
"""Nearly what git prints."""


@FEW
@given(printed=BYTES)
def test_whatever_git_prints_is_read_or_refused(printed: bytes) -> None:
    """A program of that name prints it for each question."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        tools, tree = Path(folder) / "tools", Path(folder) / "tree"
        tools.mkdir()
        tree.mkdir()
        (tree / "a").touch()
        (tools / "said").write_bytes(printed)
        (tools / "git").write_text('#!/bin/sh\nexec cat "${0%git}said"\n')
        (tools / "git").chmod(0o755)
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        found = records.read_git(tree)
        assert found.patch_bytes in (0, len(printed))
        with suppress(UsageError):
            staged = project_tree.find_tree(tree)
            for name in staged.files:
                staged.root.joinpath(name)


LOGINS = st.sampled_from(("auths", "credHelpers", "credsStore", "registry.test", "auth"))


@QUICK
@given(
    st.recursive(
        st.none() | st.integers() | TEXT | st.just("dTpw"),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(LOGINS, inner, max_size=3),
        max_leaves=8,
    ).map(json.dumps)
    | st.just("[" * 5000)
    | TEXT
)
def test_what_docker_login_has_saved_is_read_or_refused_in_one_line(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (Path(folder) / "config.json").write_text(text)
        patch.setenv("DOCKER_CONFIG", folder)
        patch.setenv("PATH", folder)  # without credential helpers
        try:
            assert (login := registry.find_saved_login("registry.test")) is None or login.basic
        except UsageError as error:
            refused_in_one_line(error)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)


@QUICK
@given(st.data())
def test_a_record_with_anything_in_it_is_read_or_one_clear_error(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Home(Path(folder)))
        store.save_job(job())
        path = store.locate_job_folder(7) / "job.json"
        raw = msgspec.json.decode(path.read_bytes())
        key = data.draw(st.sampled_from([*raw]))
        changed = {**raw, key: data.draw(JSON)}
        text = os.fsencode(repr(changed)) if data.draw(st.booleans()) else b""
        path.write_bytes(text or msgspec.json.encode(changed))
        try:
            found = store.read_job(7)
        except RecordError:
            [line] = store.list_damage()
            assert line.startswith(f"the record {path} ")
            assert "\n" not in line
        else:
            assert found.id == raw["id"] or key == "id"


# -------------------------------------------------------------------------------------- options

CHECKED = [
    (path, option)
    for path, verb in VERBS.items()
    for option in verb.options().values()
    if not option.is_flag
]


@QUICK
@given(
    st.sampled_from(CHECKED),
    st.one_of(
        TEXT,
        st.lists(st.sampled_from([*"0123456789smhd.,:=-+ e", *STRANGE, "nan", "inf", "all"])).map(
            "".join
        ),
    ),
)
def test_a_value_is_read_or_refused_in_one_line(chosen: tuple[str, Option[Any]], text: str) -> None:
    _, option = chosen
    given_: Any = (text,) if option.many else (text, text) if option.words > 1 else text
    try:
        option.read(given_, option.flag or option.metavar)
    except UsageError as error:
        refused_in_one_line(error)


# ------------------------------------------------------------------- what other programs print


def read_state(text: str) -> object:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "terraform.tfstate").write_text(text)
        return terraform_folder.list_resources(Path(folder), "lab")


def list_copies(text: str) -> object:
    """What a note of copies on this machine says."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ".worker-1.json").write_text(text)
        return fetch.list_stored(Path(folder))


FOREIGN: dict[str, Callable[[str], object]] = {
    "state": lambda text: verdict.judge(job(state=JobState.RUNNING), text),
    "slurm": lambda text: load_system("slurm").parse_status(job(state=JobState.RUNNING), text),
    "sge": lambda text: load_system("sge").parse_status(job(state=JobState.RUNNING), text),
    "facts": facts.parse_facts,
    "terraform": lambda text: terraform_folder.parse_event(text.encode()),
    "nvidia-smi": verify.read_nvidia_smi,
    "rocm-smi": verify.read_rocm_smi,
    "show": lambda text: node_views.read_look("worker-1", text),
    "show_stacks": node_views.read_spied,
    "py-spy": lambda text: stacks.parse_stacks(text, "/work"),
    "idle agent": bootstrap.parse_idle_agent,
    "deadline": lambda text: deadlines.parse_answer(text.splitlines()),
    "load": status.read_live,
    "show_use": lambda text: top.read_top("worker-1", text),
    "hang note": lambda text: stacks.read_hang_notes(
        b64encode(gzip.compress(text.encode())).decode()
    ),
    "metrics": lambda text: [
        *(reader := metrics.Reader()).read(0, text.encode()),
        *reader.finish(),
    ],
    "uv": lambda text: [project_packages.split_lock(text)],
    "end of an instance": lambda text: api.read_instance(
        {"InstanceId": "i-1", "State": {"Name": "terminated"}, "StateTransitionReason": text}
    ),
    "ip": lambda text: (
        networks.parse_taken(text, ""),
        networks.parse_taken("", text),
        networks.find_own(text, "eth0"),
    ),
    "site": lambda text: [
        provider.parse_site_info(dict.fromkeys(provider.questions, text))
        for provider in (SlurmProvider(), SgeProvider())
    ],
    "Terraform's diagnostics": lambda text: (
        refusals.from_terraform([text]),
        refusals.is_transient([text]),
        refusals.is_repeated([text]),
    ),
    "ranks": messages.find_known_message,
    "known_hosts": lambda text: keys.find_keys(text, ["host", "[host]:22"]),
    "agent list": lambda text: fetch.parse_outputs("worker-1", os.fsencode(text)),
    "mirrored": lambda text: fetch.parse_mirror("launcher", os.fsencode(text)),
    "copies": list_copies,
    "docker inspect": lambda text: containers.parse_containers(text),
    "Terraform's state": read_state,
    "agent follow": lambda text: agent_messages.read_header(text.encode()),
    "docker-credential": registry.parse_helped,
    "terraform version": parse_version,
    "ip -j link": networks.parse_links,
    "sshd": layout.parse_version,
    "mpirun": direct.drop_known_remarks,
}
"""Parsers; their words are in foreign.toml."""

WORDS: dict[str, list[str]] = read_toml(Path(__file__).with_name("foreign.toml"))


def repeat(word: str) -> str:
    """`⟦x*9⟧` as it is meant."""
    while found := re.search(r"⟦([^⟦⟧]*)\*(\d+)⟧", word):
        word = word.replace(found[0], found[1] * int(found[2]))
    return word


SAYS_WHY = (RecordError, ProviderError, TerraformError)
"""One of these is right, too: the program cannot go on without the answer."""


@pytest.mark.parametrize("name", FOREIGN)
def test_whatever_another_program_prints_is_no_crash(name: str) -> None:
    parse, words = FOREIGN[name], [repeat(word) for word in WORDS[name]]

    @QUICK
    @given(st.one_of(TEXT, lines(*words), st.sampled_from(words)))
    def fuzz(text: str) -> None:
        with suppress(*SAYS_WHY):
            parse(text)

    fuzz()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ("manifests", "platform", "os", "architecture", "digest", "config", "layers", "size",
             "product", "attributes", "usagetype", "terms", "OnDemand", "priceDimensions",
             "pricePerUnit", "USD")
        ), inner, max_size=3,
    ),
    max_leaves=12,
)  # fmt: skip
"""Nearly what a registry, or AWS's price list, answers."""


@QUICK
@given(st.fixed_dictionaries({"folder": JSON, "nodes": JSON, "files": JSON}) | JSON)
def test_a_damaged_note_of_what_was_fetched_is_none_or_one_clear_error(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        home.make(home.jobs / "7")
        (home.jobs / "7" / "fetched.json").write_text(json.dumps(value))
        assert isinstance(records.read_fetched(home, job()).nodes, tuple)
        with suppress(RecordError):
            assert isinstance(records.find_files(home, job()), dict)


@QUICK
@given(st.lists(st.one_of(JSON.map(json.dumps), TEXT, st.just("[" * 5000)), max_size=3))
def test_a_price_is_a_sum_of_money_or_unknown(rows: list[str]) -> None:
    with suppress(ValueError):
        price = api.find_highest_price(rows)
        assert price is None or 0 < price < math.inf

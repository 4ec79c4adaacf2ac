"""What holds for all inputs: quoting, names, host files, records, options, and what other programs
print. The examples are the same in each run."""

from __future__ import annotations

import os
import shlex
import string
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl import assets, options
from clusterctl.actions import check_name
from clusterctl.bootstrap import facts
from clusterctl.errors import RecordError, UsageError
from clusterctl.job_model import JobState
from clusterctl.options.verbs import VERBS
from clusterctl.providers.hosts import hostfile
from clusterctl.schedulers import direct, load_batch, verdict
from clusterctl.state import Home, Store
from clusterctl.terraform import events
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
    environment = assets.render("job/env.j2", variables=sorted(variables.items()), path="")
    program = ["/usr/bin/env", "-0"]
    with tempfile.NamedTemporaryFile("w", newline="") as file:
        file.write(environment)
        file.flush()
        done = subprocess.run(
            ["/bin/sh", file.name, "rank", *program], capture_output=True, check=True, env={}
        )
    found = dict(item.split(b"=", 1) for item in done.stdout.split(b"\0")[:-1])
    assert {name: found[name.encode()].decode() for name in variables} == variables
    assert shlex.split(direct.command_line(tuple(words))) == words


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
        "[a:children]", "[a:vars]", "ansible_host=x", "role=launcher", "# note", "=", "[", "\\",
    )
)  # fmt: skip
def test_a_host_file_is_read_or_its_line_named(text: str) -> None:
    try:
        hosts = hostfile.parse(text, "hosts")
        nodes = hostfile.nodes(hosts)
    except UsageError as error:
        refused_in_one_line(error)
        return
    assert len({node.name for node in nodes}) == len(nodes)


@QUICK
@given(st.lists(st.integers(1, 64), min_size=1, max_size=20))
def test_a_host_file_says_what_was_written(slots: list[int]) -> None:
    text = "".join(f"host-{number} slots={count}\n" for number, count in enumerate(slots))
    hosts = hostfile.parse(text, "hosts")
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
        assert store.job(7) == ran


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
        path = store.job_folder(7) / "job.json"
        raw = msgspec.json.decode(path.read_bytes())
        key = data.draw(st.sampled_from([*raw, "traits"]))
        changed = {**raw, key: data.draw(JSON)}
        text = os.fsencode(repr(changed)) if data.draw(st.booleans()) else b""
        path.write_bytes(text or msgspec.json.encode(changed))
        try:
            found = store.job(7)
        except RecordError:
            [line] = store.damage()
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
def test_a_value_is_read_or_refused_in_one_line(
    chosen: tuple[str, options.Option[Any]], text: str
) -> None:
    _, option = chosen
    given_: Any = (text,) if option.many else (text, text) if option.words > 1 else text
    try:
        option.read(given_, option.flag or option.metavar)
    except UsageError as error:
        refused_in_one_line(error)


# ------------------------------------------------------------------- what other programs print

FOREIGN: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "state": (
        lambda text: verdict.judge(job(state=JobState.RUNNING), text),
        ("running", "launcher", "started", "exit", "survivors", "ended", "stop", "placed", "hung",
         "dead", "absent", "full", "state=failed", "code=3", "worker-1:2,", "cancelled", "?"),
    ),
    "slurm": (
        lambda text: load_batch("slurm").parse_status(job(state=JobState.RUNNING), text),
        ("@@job 7 12", "@@job", "@@job ² 1",
         "@@job 7 1\nunsubmitted ²", "queue PENDING|Priority", "queue", "gone",
         "unsubmitted", "|"),
    ),
    "sge": (
        lambda text: load_batch("sge").parse_status(job(state=JobState.RUNNING), text),
        ("@@job 7 12", "@@job", "@@job ² 1",
         "@@job 7 1\nunsubmitted ²", "queue qw|", "queue Eqw|x", "gone", "unsubmitted",
         "failed", "|"),
    ),
    "facts": (
        facts.parse,
        ("@@fact nvidia\n", "@@fact amd\n", "@@fact interfaces\n", "@@fact python\n", "{", "[",
         "@@fact mpi\n", "@@fact cores\n", "@@fact physical_cores\n", "@@fact tools\n",
         "@@fact ucx\n", "@@fact interfaces\n" + "[" * 5000,
         '[{"ifname": "eth0", "addr_info": [{}]}]', "mpirun (Open MPI) 5.0.11", ","),
    ),
    "terraform": (
        lambda text: events.parse(text.encode()),
        ('{"type": "diagnostic", "diagnostic": {}}', '{"type": "outputs", "outputs": 1}',
         '{"type": "apply_start", "hook": {"resource": {"addr": ""}, "elapsed_seconds": 1e999}}',
         '{"type": "planned_change", "change": []}', "[" * 5000, "{", "null",
         '{"type": "apply_complete", "hook": {"resource": {"addr": 1}, "elapsed_seconds": '
         + "9" * 400 + "}}"),
    ),
    "mpirun": (direct.remarks, ("-" * 30, "Primary job terminated normally", "\0", "\r")),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_whatever_another_program_prints_is_no_crash(name: str) -> None:
    parse, words = FOREIGN[name]

    @QUICK
    @given(st.one_of(TEXT, lines(*words), st.sampled_from(words)))
    def fuzz(text: str) -> None:
        parse(text)

    fuzz()

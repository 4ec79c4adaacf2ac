"""Metrics that programs print: which lines count, and what is made of them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from clusterctl.actions.common import open_store
from clusterctl.core.job import Job, JobState
from clusterctl.core.text import read_toml
from clusterctl.insight import metrics
from clusterctl.insight.metrics import MetricPoint, Reader
from clusterctl.jobs import records
from clusterctl.jobs.fetch import locate_copies
from tests.unit.calling import Call
from tests.unit.making import cluster, job, program, spec


def line(**values: object) -> bytes:
    return json.dumps({"clusterctl": values}).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"clusterctl": 0.2}',
        b'{"clusterctl": [1]}',
        b'{"clusterctl": {"loss": 0.2}, "other": 1}',
        b'{"clusterctl": {"loss": 0.2}',
        b'the line is {"clusterctl": {"loss": 0.2}}',
        b'{"clusterctl": {"x": ' + b"[" * 30_000 + b"]" * 30_000 + b"}}",
    ],
)
def test_other_lines_are_no_metrics(text: bytes) -> None:
    assert metrics.parse_metrics(text) is None


TABLE = read_toml(Path(__file__).with_name("metric_lines.toml"))
PLACES = [asdict(place) for place in metrics.load_line_table().places]


@pytest.mark.parametrize("row", [*PLACES, *TABLE["metrics"]], ids=lambda row: row["line"])
def test_lines_for_people_are_metrics(row: dict[str, Any]) -> None:
    reader = Reader()
    (point,) = reader.read(0, f"starting\n{row['line']}\n".encode()) + reader.finish()
    assert list(point.values) == list(row["values"])
    expected = pytest.approx(list(row["values"].values()), nan_ok=True)
    assert list(point.values.values()) == expected


@pytest.mark.parametrize("text", TABLE["nothing"]["lines"])
def test_prose_and_tracebacks_are_no_metrics(text: str) -> None:
    reader = Reader()
    assert reader.read(0, f"{text}\n".encode()) + reader.finish() == []


@pytest.mark.parametrize("before", ["", "step 1: loss 0.5\n"])
def test_what_other_programs_print_is_no_curve(before: str) -> None:
    found = {}
    for text in TABLE["nothing"]["output"].splitlines():
        reader = Reader()
        reader.read(0, before.encode())
        found[text] = reader.read(0, f"{text}\n".encode()) + reader.finish()
    assert {text: points for text, points in found.items() if points} == {}


def test_a_heading_says_the_epoch_of_what_follows() -> None:
    """As Keras and PyTorch's tutorials print it. Other ranks have their own."""
    reader, bar = Reader(), b"9/9 [====] - 1s - loss: "
    reader.read(0, b"Epoch 1/2\n" + bar + b"0.5\nEpoch 2/2\n----------\n")
    found = reader.read(0, bar + b"0.25\n Accuracy: 64.5%\n")
    assert [dict(point.values) for point in found] == [
        {"epoch": 2, "step": 9, "loss": 0.25},
        {"epoch": 2, "accuracy": 64.5},
    ]
    assert reader.read(1, bar + b"0.25\n") == [
        MetricPoint(1, {"step": 9, "loss": 0.25}, meant=False)
    ]


def test_what_a_rank_prints_for_clusterctl_counts_alone() -> None:
    reader, text = Reader(), b"Epoch 0 | Loss: 0.5\n"
    assert reader.read(0, text + line(epoch=0, loss=0.5) + b"\n" + text) == [
        MetricPoint(0, {"epoch": 0, "loss": 0.5})
    ]
    assert reader.read(0, b"Epoch 1 | Loss: 0.4\n") == []
    early = Reader().read(0, text)
    assert metrics.drop_repeated([*early, MetricPoint(0, {"loss": 1})]) == (
        MetricPoint(0, {"loss": 1}),
    )


def said(rank: int, **values: float) -> MetricPoint:
    """What a line for people says."""
    return MetricPoint(rank, values, meant=False)


def test_a_bar_is_drawn_again_and_again() -> None:
    reader, bar = Reader(), b"1/9 [00:01<00:09, 9it/s, loss=0.5]"
    assert len(reader.read(0, bar + b"\r" + bar + b"\rhel", "stderr")) == 1
    assert reader.read(0, b"step 2 loss", "stdout") == []
    assert reader.read(0, b"lo\n", "stderr") == []
    assert reader.read(0, b" 3\n", "stdout") == [
        MetricPoint(0, {"step": 2, "loss": 3}, meant=False)
    ]


def test_only_numbers_count() -> None:
    text = line(step=3, loss=0.25, name="x", flag=True, none=None, **{"a\x1b[2J": 1, "n" * 65: 1})
    assert metrics.parse_metrics(text) == {"step": 3, "loss": 0.25}
    found = metrics.parse_metrics(b' {"clusterctl": {"loss": NaN, "large": 1e999}}\r')
    assert found is not None
    assert list(found) == ["loss"]
    assert math.isnan(found["loss"])


def test_a_metric_named_rank_does_not_hide_who_printed_it() -> None:
    assert metrics.parse_metrics(b'{"clusterctl": {"rank": 99, "step": 1}}') == {"step": 1}


def test_lines_come_in_pieces_from_several_ranks() -> None:
    reader = Reader()
    one, other = line(step=1, loss=0.5), line(step=2, loss=0.4)
    assert reader.read(0, b"hello\n" + one[:9]) == []
    assert reader.read(1, other + b"\n") == [MetricPoint(1, {"step": 2, "loss": 0.4})]
    assert reader.read(0, one[9:] + b"\n" + other) == [MetricPoint(0, {"step": 1, "loss": 0.5})]
    assert reader.finish() == [MetricPoint(0, {"step": 2, "loss": 0.4})]
    assert reader.finish() == []


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    reader = Reader()
    for _ in range(40):
        reader.read(0, b"x" * 10_000)
    assert reader.read(0, b"\n" + line(loss=1) + b"\n") == [MetricPoint(0, {"loss": 1})]


POINTS = (
    MetricPoint(0, {"loss": 0.5, "time": 100.0, "epoch": 0, "epochs": 4}),
    MetricPoint(0, {"loss": 0.25, "time": 110.0, "epoch": 1, "epochs": 4, "accuracy": math.nan}),
    MetricPoint(1, {"epoch": 0, "loss": 0.75}),
)


def test_a_table_has_a_column_for_each_name() -> None:
    assert metrics.to_csv(POINTS) == (
        "rank,epoch,loss,epochs,accuracy,time\n"
        "0,0,0.5,4,,100.0\n0,1,0.25,4,nan,110.0\n1,0,0.75,,,\n"
    )
    assert metrics.to_json(POINTS[1])["accuracy"] is None


def test_curves_and_last_values() -> None:
    assert metrics.find_series(POINTS, "loss") == {0: [(0, 0.5), (1, 0.25)], 1: [(0, 0.75)]}
    assert metrics.find_last(POINTS, "loss") == 0.25
    assert metrics.find_last(POINTS, "nothing") is None


def test_a_training_that_begins_again_replaces_what_it_had_printed() -> None:
    points = [
        MetricPoint(0, {"step": s, "loss": v}) for s, v in ((1, 9), (2, 8), (3, 7), (2, 6), (3, 5))
    ]
    assert metrics.find_series(points, "loss") == {0: [(1, 9), (2, 6), (3, 5)]}


def test_steps_may_be_counted_anew_in_each_epoch() -> None:
    places = ((0, 1), (0, 9), (1, 1), (1, 9), (2, 1), (1, 9))
    points = [MetricPoint(0, {"epoch": e, "step": s, "loss": e}) for e, s in places]
    assert [x for x, _ in metrics.find_series(points[:-1], "loss")[0]] == [1, 9, 10, 18, 19]
    assert [x for x, _ in metrics.find_series(points, "loss")[0]] == [1, 9, 10, 18]


def test_how_long_a_step_takes_and_the_training_still_will() -> None:
    assert metrics.compute_step_seconds(POINTS[:2]) == 10
    assert metrics.estimate_seconds_left(POINTS[:2], now=110) == 20
    assert metrics.estimate_seconds_left(POINTS[:2], now=115) == 15
    assert metrics.estimate_seconds_left(POINTS[:2], now=500) == 0
    assert metrics.compute_step_seconds(POINTS[2:]) is None
    assert metrics.estimate_seconds_left(POINTS[2:], now=1) is None
    done = MetricPoint(0, {"step": 8, "steps": 8, "time": 120.0})
    assert metrics.estimate_seconds_left([done], now=130) == 0


def printed(number: int = 7, **ranks: bytes) -> None:
    """A job that has ended, with what its ranks wrote to stdout."""
    store = open_store()
    store.save_job(job(id=number, state=JobState.SUCCEEDED, started=1.0, finished=2.0))
    folder = store.home.make(store.locate_job_folder(number) / "out" / "worker-1")
    for name, data in ranks.items():
        (folder / f"{name.replace('_', '-')}.out").write_bytes(data)
    (folder.parent / ".complete").touch()


def test_logs_shows_them(call: Call) -> None:
    printed(8, rank_0=b"iter 1: loss 2.5, time 12.00ms\n")
    (open_store().locate_job_folder(8) / "out/worker-1/rank-1.err").write_text("step 2: loss 3")
    assert call("logs", "8", "--metrics").out == (
        "[0] step 1  loss 2.5  time_ms 12\n[1] step 2  loss 3\n"
    )
    text = b"starting\n" + line(step=1_234_567, loss=0.123456789, time=5.5) + b"\nend\n"
    printed(rank_0=text, rank_1=b"nothing\n")
    assert call("logs", "7", "--metrics").out == "[0] step 1234567  loss 0.123457\n"
    assert call("logs", "7", "--metrics", "--csv").out.splitlines() == [
        "rank,step,loss,time",
        "0,1234567,0.123456789,5.5",
    ]
    first, last = map(json.loads, call("logs", "7", "--metrics", "--json").out.splitlines())
    assert first == {"rank": 0, "step": 1234567, "loss": 0.123456789, "time": 5.5}
    assert (last["id"], last["state"]) == (7, "succeeded")
    said = call("logs", "7", "--metrics", "--rank", "1")
    assert (said.code, said.out) == (0, "")
    assert "no metrics" in said.err
    said = call("logs", "7", "--metrics", "--csv", "--rank", "1")
    assert (said.code, said.out) == (0, "rank\n")
    assert "no metrics found in job 7" in said.err


def write_events(folder: Path, *steps: dict[str, float], tensors: bool = False) -> Path:
    """As torch's SummaryWriter does; `tensors`: as TensorFlow 2 and Keras do."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for number, values in enumerate(steps):
        for tag, value in values.items():
            plain = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            summary = scalar_pb(tag, value) if tensors else plain
            writer.add_event(Event(wall_time=100.0 + number, step=number, summary=summary))
    writer.close()
    return next(folder.iterdir())


def note_fetched(job: Job, folder: Path) -> None:
    places = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    records.note(open_store().home, job, ("worker-1",), folder, places)


def test_event_files_of_tensorboard_count_beside_lines_for_people(
    call: Call, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    printed(7, rank_0=b"step 1: loss 9\n", rank_1=b"step 1: loss 8\n")
    write_events(tmp_path / "worker-1/logs/train", {"loss": 0.5}, {"loss": 0.25})
    damaged = write_events(tmp_path / "worker-1/logs/val", {"acc": 0.75}, {"acc": 1}, tensors=True)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    (tmp_path / "worker-1/events.out.tfevents.junk").write_bytes(b"x" * 99)
    (tmp_path / "worker-1/notes.txt").write_text("step 1: loss 7")
    note_fetched(open_store().read_job(7), tmp_path)
    found = call("logs", "7", "--metrics", "--csv").out.splitlines()
    assert found == [
        "rank,step,loss,logs/train/loss,logs/val/acc,time",
        "0,1,9,,,",
        "0,0,,0.5,,100.0",
        "0,1,,0.25,,101.0",
        "0,0,,,0.75,100.0",
        "1,1,8,,,",
    ]
    printed(8, rank_0=line(step=1, loss=3) + b"\n")
    note_fetched(open_store().read_job(8), tmp_path)
    assert call("logs", "8", "--metrics").out == "[0] step 1  loss 3\n"


def test_event_files_of_points_and_of_copies(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    store = open_store()
    what = spec(sweep=("lr=1,2",))
    store.save_job(job(cluster(), what, id=9, state=JobState.SUCCEEDED))
    copies = locate_copies(store.locate_job_folder(9))
    file = write_events(copies / "worker-1/points/1/runs", {"Loss/train": 0.5})
    path, size = str(file.relative_to(copies / "worker-1")), file.stat().st_size
    (copies / ".worker-1.json").write_text(json.dumps({"when": 1, "files": [[path, size, 1]]}))
    assert "Loss/train" in call("jobs", "9").out
    (row,) = [
        p
        for p in call("jobs", "9", "--json").document["jobs"][0]["points"]["table"]
        if p["metrics"]
    ]
    assert (row["point"], row["metrics"]["Loss/train"]) == (1, 0.5)


def test_documents_show_no_secrets(call: Call) -> None:
    """A value is one by the name of its option or variable, or by its form."""
    words = ("--token", "hunter 2", "--url=https://me:pw99@example.org", "--lr", "0.1")
    what = spec(program=program(*words), env={"SEED": "7", "MINE": "ghp_" + "x" * 20})
    open_store().save_job(job(cluster(), what, id=7, state=JobState.SUCCEEDED))
    said = call("jobs", "--json")
    assert not re.search("hunter|pw99|ghp_x", said.out)
    assert "--token" in said.out
    assert said.document["jobs"][0]["env"]["SEED"] == "7"

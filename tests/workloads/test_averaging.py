"""Parameter averaging in one process: the ranks are threads, and MPI is what they need of it."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trainlib import data, models, parameter_averaging, snapshots
from trainlib.errors import Diverged, StartError, UsageError
from trainlib.ranks import Ranks
from trainlib.rows import Batch, Dataset, Split

Message = tuple[int, int, int]
"""From, to, tag."""


class Aborted(Exception):
    """Another rank has failed: mpirun would have ended this one."""


@dataclass
class Network:
    """What was sent and not yet received; None: nothing more will be."""

    size: int
    boxes: dict[Message, Queue[np.ndarray | None]] = field(default_factory=dict)
    aborted: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def box(self, source: int, target: int, tag: int) -> Queue[np.ndarray | None]:
        with self.lock:
            box = self.boxes.setdefault((source, target, tag), Queue())
            if self.aborted:
                box.put(None)
            return box

    def abort(self) -> None:
        with self.lock:
            self.aborted = True
            for box in self.boxes.values():
                box.put(None)

    def mpi(self, rank: int) -> Any:
        """`mpi4py.MPI` as one rank sees it."""

        def wait_for_all(requests: Iterable[Callable[[], None]]) -> None:
            for complete in requests:
                complete()

        return SimpleNamespace(
            COMM_WORLD=Communicator(self, rank),
            Request=SimpleNamespace(Waitall=wait_for_all),
            MAX=max,
            THREAD_SERIALIZED=2,
            Query_thread=lambda: 2,
            Is_initialized=lambda: True,
            Is_finalized=lambda: False,
            Finalize=lambda: None,
        )


@dataclass
class Communicator:
    network: Network
    rank: int

    def Get_size(self) -> int:
        return self.network.size

    def Get_rank(self) -> int:
        return self.rank

    def Barrier(self) -> None: ...

    def allgather(self, value: Any) -> list[Any]:
        """As if all ranks said the same."""
        return [value] * self.network.size

    def allreduce(self, value: Any, op: Any) -> Any:
        return value

    def bcast(self, value: Any, root: int) -> Any:
        return value

    def Send(self, array: np.ndarray, target: int, tag: int) -> None:
        assert 0 <= target < self.network.size
        self.network.box(self.rank, target, tag).put(array.copy())

    def Recv(self, array: np.ndarray, source: int, tag: int) -> None:
        message = self.network.box(source, self.rank, tag).get(timeout=60)
        if message is None:
            raise Aborted
        assert array.dtype == message.dtype, "MPI moves bytes"
        array[...] = message

    def Isend(self, array: np.ndarray, target: int, tag: int) -> Callable[[], None]:
        """The memory is read as late as MPI may read it."""
        return lambda: self.Send(array, target, tag)

    def Irecv(self, array: np.ndarray, source: int, tag: int) -> Callable[[], None]:
        return lambda: self.Recv(array, source, tag)


ROWS = 24
EPOCHS = 2


def options(**changes: Any) -> Namespace:
    chosen = {
        "nepochs": EPOCHS,
        "lr": 0.1,
        "momentum": 0.9,
        "seed": 3,
        "shard": False,
        "metrics": False,
    }
    return Namespace(**{**chosen, "batch_size": ROWS, **changes})


def dataset(rows: torch.Tensor, labels: torch.Tensor) -> Dataset:
    return Dataset("rows", 10, Split(rows, labels), Split(rows, labels))


def random_rows() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, 6, generator=generator)
    return dataset(rows, torch.randint(10, (ROWS,), generator=generator))


def equal_rows() -> Dataset:
    """They have no order: a worker makes the same steps whichever it gets."""
    one = random_rows().train.select(torch.zeros(ROWS, dtype=torch.int64), ROWS)
    return dataset(*next(iter(one)))


def train(
    workers: int,
    rows: Dataset,
    chosen: Namespace,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[torch.nn.Linear, list[Any]]:
    """The master's model at the end, and the weights and the bias that it had in the beginning."""
    network = Network(workers + 1)
    models = []
    for rank in range(workers + 1):
        torch.manual_seed(rank)  # the master's weights have to win
        models.append(torch.nn.Linear(6, 10))
    began = [tensor.detach().clone() for tensor in models[0].parameters()]

    def start(role: Any, rank: int) -> None:
        session = SimpleNamespace(
            mpi=network.mpi(rank), ranks=Ranks(rank, workers + 1, rank, workers + 1, "mpirun")
        )
        try:
            role(session, models[rank], rows, chosen, range(chosen.nepochs))
        except BaseException as error:
            network.abort()
            if rank == 0 or not isinstance(error, Aborted):
                raise

    threads = [
        threading.Thread(target=start, args=(parameter_averaging.run_worker, rank), daemon=True)
        for rank in range(1, workers + 1)
    ]
    for thread in threads:
        thread.start()
    try:
        start(partial(parameter_averaging.run_master, clock=clock), 0)
    finally:
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert all(box.empty() for box in network.boxes.values())
    return models[0], began


def epoch(parts: list[Any], batches: list[Batch], lr: float, momentum: float) -> list[Any]:
    """SGD by hand for a linear classifier: momentum begins at 0; cross-entropy's gradient is
    softmax minus one-hot."""
    weight, bias = parts
    speeds = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for rows, labels in batches:
        slope = (torch.softmax(rows @ weight.T + bias, 1) - torch.eye(10)[labels]) / len(rows)
        for number, gradient in enumerate((slope.T @ rows, slope.sum(0))):
            speeds[number] = momentum * speeds[number] + gradient
        weight, bias = weight - lr * speeds[0], bias - lr * speeds[1]
    return [weight, bias]


def accuracy(parts: list[Any], split: Split) -> tuple[float, float]:
    """Mean cross-entropy, and how many of the rows are right."""
    logits = split.inputs @ parts[0].T + parts[1]
    losses = torch.logsumexp(logits, 1) - logits[torch.arange(len(logits)), split.targets]
    return losses.mean().item(), (logits.argmax(1) == split.targets).double().mean().item()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("shard", [False, True])
def test_the_mean_of_one_step_each_is_the_step_of_all_rows(workers: int, shard: bool) -> None:
    rows = random_rows()
    batch = ROWS // workers if shard else ROWS
    model, parts = train(workers, rows, options(shard=shard, batch_size=batch))
    for _ in range(EPOCHS):
        parts = epoch(parts, [(rows.train.inputs, rows.train.targets)], 0.1, 0.9)
    for found, expected in zip(model.parameters(), parts, strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(("shard", "steps"), [(True, 2), (False, 6)])
def test_a_worker_keeps_its_momentum_within_an_epoch(shard: bool, steps: int) -> None:
    """Three workers make all steps each, or a third of them, and forget it for the next epoch."""
    rows = equal_rows()
    model, parts = train(3, rows, options(shard=shard, batch_size=4))
    batch = next(iter(rows.train.select(torch.arange(4), 4)))
    for _ in range(EPOCHS):
        parts = epoch(parts, [batch] * steps, 0.1, 0.9)
    for found, expected in zip(model.parameters(), parts, strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("shard", [False, True])
def test_the_master_prints_what_was_learned(
    shard: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ticks = count(step=2.0)  # an epoch takes two seconds
    rows = random_rows()
    chosen = options(shard=shard, batch_size=ROWS // 2 if shard else ROWS, metrics=True)
    _, parts = train(2, rows, chosen, clock=lambda: next(ticks))
    head, *printed = capsys.readouterr().out.splitlines()
    lines, told = printed[::2], [json.loads(line)["clusterctl"] for line in printed[1::2]]
    for word in ("2 workers", "rows (24 + 24 rows", "Seed: 3"):
        assert word in head
    assert len(lines) == EPOCHS
    trained, tested = rows.train, rows.test
    for number, line in enumerate(lines):
        before = accuracy(parts, trained)[0]
        parts = epoch(parts, [(trained.inputs, trained.targets)], 0.1, 0.9)
        loss, right = accuracy(parts, tested)
        title, *figures = line.split(" | ")
        assert title == f"Epoch {number}"
        values = dict(figure.split(": ") for figure in figures)
        assert float(values["Loss"]) == pytest.approx(before, rel=1e-4)
        assert float(values["Validation loss"]) == pytest.approx(loss, rel=1e-4)
        assert float(values["Accuracy"]) == pytest.approx(right, abs=1e-4)
        assert values["Throughput"] == f"{ROWS / 2 if shard else ROWS:.1f} samples/s"
        assert {name: value for name, value in told[number].items() if name != "time"} == {
            "epoch": number,
            "epochs": EPOCHS,
            "loss": pytest.approx(before, rel=1e-4),
            "validation_loss": pytest.approx(loss, rel=1e-4),
            "validation_accuracy": pytest.approx(right, abs=1e-4),
            "samples_per_second": pytest.approx(ROWS / 2 if shard else ROWS),
            "seconds": pytest.approx(2.0),
        }


def test_weights_that_are_no_numbers_end_the_training() -> None:
    rows = random_rows()
    with pytest.raises(Diverged) as caught:
        train(1, rows, options(lr=math.inf))
    assert "epoch 0" in caught.value.what
    assert "--lr below inf" in caught.value.todo
    assert not caught.value.everywhere  # the workers know nothing of it


class Recorder(torch.nn.Module):
    """A classifier that notes the rows it is given, and the noise of torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 10)
        self.rows: list[list[float]] = []
        self.noise: list[float] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.rows.append(rows.flatten().tolist())
        self.noise.append(torch.rand(()).item())
        made: torch.Tensor = self.linear(rows)
        return made


def recorded(rank: int, number: int, **changes: Any) -> Recorder:
    """What worker `rank` of three sees of 24 rows in one epoch."""
    rows = torch.arange(float(ROWS)).view(-1, 1) / 32
    model = Recorder()
    ranks = Ranks(rank, 4, rank, 4, "mpirun")
    made = dataset(rows, torch.zeros(ROWS, dtype=torch.int64))
    loss, count = parameter_averaging.train_worker(model, made, options(**changes), ranks, number)
    assert count == sum(map(len, model.rows))
    assert loss > 0
    return model


def test_each_row_is_in_one_shard() -> None:
    shards = [recorded(rank, 0, shard=True, batch_size=4).rows for rank in (1, 2, 3)]
    assert [[len(batch) for batch in batches] for batches in shards] == [[4, 4]] * 3
    dealt = sorted(row for batches in shards for batch in batches for row in batch)
    assert dealt == [number / 32 for number in range(ROWS)]


def test_a_seed_gives_the_same_numbers_in_every_release() -> None:
    """Worker i of W has stream e * W + i of the seed in epoch e."""
    rows = torch.arange(float(ROWS)).view(-1, 1) / 32
    split = Split(rows, torch.zeros(ROWS, dtype=torch.int64))
    for rank, number in ((1, 0), (3, 0), (2, 5)):
        stream = number * 3 + rank - 1
        found = recorded(rank, number)
        torch.manual_seed(data.mix(3, stream))
        assert found.noise[0] == torch.rand(()).item()
        batch = next(iter(data.iterate_batches(split, ROWS, 0, 1, 3, stream)))
        assert found.rows[0] == batch[0].flatten().tolist()
        dealt = next(iter(data.iterate_batches(split, 4, rank - 1, 3, 3, number)))
        sharded = recorded(rank, number, shard=True, batch_size=4)
        assert sharded.rows[0] == dealt[0].flatten().tolist()
        assert sharded.noise[0] == found.noise[0]


def start_as(patch: pytest.MonkeyPatch, rank: int, network: Network) -> None:
    """Makes this process that rank, as mpirun and mpi4py do."""
    for name, value in (("RANK", rank), ("SIZE", network.size)):
        patch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
        patch.setenv(f"OMPI_COMM_WORLD_LOCAL_{name}", str(value))
    module = network.mpi(rank)
    patch.setitem(sys.modules, "mpi4py", SimpleNamespace(rc=SimpleNamespace(), MPI=module))
    patch.setitem(sys.modules, "mpi4py.MPI", module)
    patch.setattr(sys, "excepthook", sys.excepthook)  # restored afterwards


@pytest.fixture
def same_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # without a snapshot
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


SNAPSHOT = Path("snapshot.pt")
DIGITS = {"dataset": "digits", "data": None, "snapshot": SNAPSHOT, "nepochs": 1, "batch_size": 100}


def first_weights() -> torch.Tensor:
    digits = data.load_digits()
    torch.manual_seed(3)
    return parameter_averaging.flatten(
        models.build("averaging_cnn", digits.train.shape, digits.image, 10)
    )


@dataclass
class Answers:
    """Two workers that answer each epoch, as long as their master asks."""

    network: Network
    sent: dict[int, list[torch.Tensor]] = field(default_factory=lambda: {1: [], 2: []})

    def start(self) -> None:
        size = first_weights().numel()  # not in the threads: the master draws its weights meanwhile
        for rank, sign in ((1, -1), (2, 1)):
            threading.Thread(target=self.answer, args=(rank, sign, size), daemon=True).start()

    def answer(self, rank: int, sign: int, size: int) -> None:
        worker = self.network.mpi(rank).COMM_WORLD
        weights = np.empty(size, np.float32)
        while True:
            try:
                worker.Recv(weights, 0, 1)
            except Aborted:
                return
            self.sent[rank].append(torch.from_numpy(weights.copy()))
            worker.Send(np.full_like(weights, sign), 0, 2)
            worker.Send(np.array([0.25 * rank, 10.0]), 0, 3)


def as_master(patch: pytest.MonkeyPatch, **changes: Any) -> Answers:
    """The master's training with two workers; returns what they were sent."""
    network = Network(3)
    start_as(patch, 0, network)
    workers = Answers(network)
    workers.start()
    try:
        assert parameter_averaging.run(options(**{**DIGITS, **changes})) == 0
    finally:
        network.abort()
    return workers


@pytest.mark.usefixtures("same_threads")
def test_rank_0_sends_its_weights_and_takes_the_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = first_weights()
    sent = as_master(monkeypatch).sent
    assert all(torch.equal(sent[rank][0], first) for rank in (1, 2))
    # The mean of the weights is 0: all classes are as likely.
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"Epoch 0 | Loss: 0.375 | Validation loss: {math.log(10):.6g} |")


@pytest.mark.usefixtures("same_threads")
def test_a_training_goes_on_from_its_snapshot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not from one of other data, or of another model."""
    digits, other = data.load_digits(), Path("other.pt")
    model = models.build("averaging_cnn", digits.train.shape, digits.image, 10)
    parameter_averaging.fill(model, torch.full_like(parameter_averaging.flatten(model), 0.5))
    identity = {"data set": "digits", "model": models.signature(model)}

    def keep(**changes: str) -> None:
        state = {"model": model.state_dict()}
        snapshots.save(other, snapshots.Snapshot(1, state, {}, {**identity, **changes}, {}))

    def resume() -> Answers:
        return as_master(monkeypatch, nepochs=2, snapshot=other)

    keep(**{"data set": "mnist"})
    with pytest.raises(UsageError, match="data set"):
        resume()
    keep(model="another")
    with pytest.raises(UsageError, match="model"):
        resume()
    keep()
    sent = resume().sent
    assert [len(sent[rank]) for rank in (1, 2)] == [1, 1]
    assert (sent[1][0] == 0.5).all()
    assert capsys.readouterr().out.splitlines()[-1].startswith("Epoch 1 | ")
    assert not other.exists()
    assert not SNAPSHOT.exists()


@pytest.mark.usefixtures("same_threads")
def test_the_other_ranks_train_what_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    network = Network(2)
    SNAPSHOT.write_text("for rank 0 alone")
    start_as(monkeypatch, 1, network)
    first = first_weights()
    network.box(0, 1, 1).put(first.numpy())
    assert parameter_averaging.run(options(**DIGITS)) == 0
    trained = torch.from_numpy(network.box(1, 0, 2).get(timeout=1))
    assert 0 < (trained - first).abs().max() < 10
    loss, rows = network.box(1, 0, 3).get(timeout=1)
    assert (0 < loss < 5, rows) == (True, len(data.load_digits().train))
    assert SNAPSHOT.read_text() == "for rank 0 alone"
    assert torch.get_num_threads() == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.usefixtures("same_threads")
def test_data_are_looked_for_where_they_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    start_as(monkeypatch, 1, Network(2))
    with pytest.raises(UsageError, match="nowhere"):
        parameter_averaging.run(options(**{**DIGITS, "dataset": "mnist", "data": Path("nowhere")}))


@pytest.mark.usefixtures("same_threads")
def test_a_master_alone_is_refused() -> None:
    with pytest.raises(StartError, match="at least one worker") as caught:
        parameter_averaging.run(options(**DIGITS))
    assert "mpirun -np 2" in caught.value.todo
    assert caught.value.everywhere


@pytest.mark.usefixtures("same_threads")
def test_more_workers_than_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    start_as(monkeypatch, 1, Network(2000))
    with pytest.raises(UsageError, match="1999 ranks"):
        parameter_averaging.run(options(**DIGITS))

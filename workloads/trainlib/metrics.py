"""What is printed about a model, reduced over the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from trainlib.rows import Batch, Dataset
from trainlib.session import Session

#: Numbers in the inputs of one forward pass while testing. A GPU is idle with fewer, and with more
#: full of what ResNets make of small images, which they leave at full resolution: 5 GB.
_TEST_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 22}


@torch.inference_mode()
def evaluate(session: Session, model: torch.nn.Module, data: Dataset) -> str:
    """One line about the whole test split: accuracy, or mean squared error for regression.

    Each rank looks at every world-th row; all ranks have to call this.

    Args:
        model: The bare model, not its data-parallel wrapper, which would try to synchronise.
    """
    ranks = session.ranks
    total = torch.zeros((), dtype=torch.float64, device=session.device)
    model.eval()
    rows = choose_batch_rows(data, session.device)
    for inputs, wanted in take_part_of_test(data, ranks.rank, ranks.world, rows):
        output = model(inputs)
        if data.classes:
            total += (output.argmax(dim=1) == wanted).sum()
        else:
            total += ((output - wanted) ** 2).sum()
    model.train()
    summed = session.communicator.sum([total.item()])[0]
    count = len(data.test)
    if data.classes:
        return f"Test accuracy: {summed / count:.4f} ({summed:.0f}/{count})"
    return f"Test MSE: {summed / count:.6g}"


@torch.inference_mode()
def score(
    session: Session | None, model: torch.nn.Module, data: Dataset, batch_size: int | None = None
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy on the whole test split.

    Args:
        session: Each of its ranks looks at a part, and all have to call this; None: this one alone.
        model: Gives logits, or log-probabilities (whose cross-entropy is the same).
    """
    rank, world = (session.ranks.rank, session.ranks.world) if session else (0, 1)
    totals: torch.Tensor | None = None
    model.eval()
    size = batch_size or choose_batch_rows(data, session.device if session else torch.device("cpu"))
    for inputs, wanted in take_part_of_test(data, rank, world, size):
        output = model(inputs)
        loss = torch.nn.functional.cross_entropy(output, wanted, reduction="sum")
        part = torch.stack([loss.double(), (output.argmax(dim=1) == wanted).sum().double()])
        totals = part if totals is None else totals + part
    model.train()
    sums = [0.0, 0.0] if totals is None else [float(total) for total in totals.tolist()]
    if session is not None:
        sums = session.communicator.sum(sums)
    return sums[0] / len(data.test), sums[1] / len(data.test)


def take_part_of_test(data: Dataset, rank: int, world: int, batch_size: int) -> Iterable[Batch]:
    """This rank's part of the test split, every world-th row; nothing for the last ranks where
    there are fewer rows than ranks."""
    rows = torch.arange(len(data.test))[rank::world]
    return data.test.select(rows, batch_size) if len(rows) else ()


def choose_batch_rows(data: Dataset, device: torch.device) -> int:
    """How many test rows one forward pass takes."""
    return max(1, _TEST_NUMBERS[device.type] // math.prod(data.test.shape))

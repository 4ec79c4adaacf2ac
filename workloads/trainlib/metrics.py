"""What is printed about a model, reduced over the ranks."""

from __future__ import annotations

import torch

from trainlib.data import Dataset
from trainlib.session import Session

#: Rows of one forward pass while testing.
_TEST_ROWS = 4096


@torch.inference_mode()
def evaluate(session: Session, model: torch.nn.Module, data: Dataset) -> str:
    """One line about the whole test split: accuracy, or mean squared error for regression.

    Each rank looks at every world-th row; all ranks have to call this.

    Args:
        model: The bare model, not its data-parallel wrapper, which would try to synchronise.
    """
    ranks = session.ranks
    inputs = data.test.inputs[ranks.rank :: ranks.world].split(_TEST_ROWS)
    targets = data.test.targets[ranks.rank :: ranks.world].split(_TEST_ROWS)
    total = 0.0
    model.eval()
    for rows, wanted in zip(inputs, targets, strict=True):
        output = model(rows)
        if data.classes:
            total += float((output.argmax(dim=1) == wanted).sum().item())
        else:
            total += float(((output - wanted) ** 2).sum().item())
    model.train()
    summed = session.communicator.sum([total])[0]
    count = len(data.test)
    if data.classes:
        return f"Test accuracy: {summed / count:.4f} ({summed:.0f}/{count})"
    return f"Test MSE: {summed / count:.6g}"

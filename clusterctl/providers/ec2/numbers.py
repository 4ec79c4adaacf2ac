"""The numbers of workers that one call launched, as a tag has them: `9-264 300`. Pure.

EC2 gives each machine of a call an index: the machine with index 0 has the first of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.formats import fold_runs

TAG = "clusterctl:workers"
MOST_TEXT = 256
"""Characters of a tag's value."""


def write(numbers: Sequence[int]) -> str:
    return " ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in fold_runs(numbers)
    )


def read_node(text: str, index: int) -> str:
    """The name of the machine with this index; "" where the text is not ours."""
    try:
        for part in text.split():
            first, _, last = part.partition("-")
            count = int(last or first) - int(first) + 1
            if index < count:
                return f"worker-{int(first) + index}"
            index -= count
    except ValueError:
        pass
    return ""

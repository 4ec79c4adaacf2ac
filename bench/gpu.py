"""ResNet-50 on one GPU: the program's own step against a hand-tuned loop in one file, in one run.

    python bench/gpu.py --out bench/results/gpu.json

bf16, synthetic images of 224 x 224 pixels that lie on the GPU, channels last. The program's step is
that of `multinode_ddp_mpi_gpu.py --model resnet50 --dataset synthetic --image-size 224 --precision
bf16`, with and without --compile; the loop by hand comes plain, compiled, and as a CUDA graph. The
best of each counts. Without a GPU, --smoke only shows that everything runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workloads"))

import torch
from torch.nn import functional

from trainlib import data, models, optimizers
from trainlib.rows import Dataset
from trainlib.steps import Recipe, train_epoch

LIMIT = 0.95
Steps = Callable[[int], None]
"""Makes that many steps."""


def network(device: torch.device, size: int) -> torch.nn.Module:
    torch.manual_seed(0)
    model = models.resnet(50, (3, size, size), 10).to(device)
    return model.to(memory_format=torch.channels_last)


def program(dataset: Dataset, batch: int, size: int, compiled: bool) -> Steps:
    """What the trainer does with a model, an optimizer and batches."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network(device, size)
    optimizer = optimizers.make_sgd(model.parameters(), lr=0.01)
    stepper: Any = torch.compile(model, dynamic=False) if compiled else model
    recipe = Recipe(precision="bf16")
    rows = len(dataset.train)

    def steps(count: int) -> None:
        numbers = torch.arange(count * batch) % rows
        batches = dataset.train.select(numbers, batch)
        train_epoch(stepper, optimizer, functional.cross_entropy, batches, recipe)

    return steps


def by_hand(dataset: Dataset, batch: int, size: int, how: str) -> Steps:
    """`plain`, `compiled` or `graph`: one batch, normalised beforehand, again and again."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs, targets = next(dataset.train.select(torch.arange(batch), batch))
    inputs = inputs.to(memory_format=torch.channels_last)
    model = network(device, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    stepper: Any = torch.compile(model, dynamic=False) if how == "compiled" else model

    def one() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(stepper(inputs), targets)
        loss.backward()
        optimizer.step()

    def alone() -> None:
        optimizer.zero_grad()
        one()

    if how == "graph":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                alone()
        torch.cuda.current_stream().wait_stream(side)
        # backward() makes the gradients in the graph, in the graph's own memory.
        optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            one()
        again = graph.replay
    else:
        again = alone

    def steps(count: int) -> None:
        for _ in range(count):
            again()

    return steps


def main() -> int:
    options = parse()
    gpu = torch.cuda.is_available()
    if not gpu and not options.smoke:
        sys.exit("gpu.py: error: no GPU is visible; --smoke only shows that it runs")
    size, rows = (224, 1024) if not options.smoke else (32, 16)
    if options.smoke:
        options.batch, options.steps, options.rounds = 8, 1, 1
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if gpu else "cpu")
    dataset = data.make_synthetic_images(0, size, rows, 8).to(device)
    makers = list_makers(dataset, options.batch, size)
    found = measure(makers, options)
    ratio = compare(found)
    text = json.dumps(
        {
            "schema": 1,
            "benchmark": "gpu",
            "device": torch.cuda.get_device_name() if gpu else "cpu",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "batch": options.batch,
            "samples_per_s": found,
            "ratio": ratio,
            "limit": LIMIT,
        },
        indent=2,
    )
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    if options.smoke:
        return 0
    return 0 if ratio is not None and ratio >= LIMIT else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ResNet-50 on one GPU, ours and by hand.")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="small, on whatever there is")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    return parser.parse_args()


def list_makers(dataset: Dataset, batch: int, size: int) -> dict[str, Callable[[], Steps]]:
    """What is compared, by names that begin with `program` or `by hand`."""
    makers: dict[str, Callable[[], Steps]] = {
        "program": lambda: program(dataset, batch, size, False),
        "by hand": lambda: by_hand(dataset, batch, size, "plain"),
    }
    if torch.cuda.is_available():
        makers |= {
            "program --compile": lambda: program(dataset, batch, size, True),
            "by hand, compiled": lambda: by_hand(dataset, batch, size, "compiled"),
            "by hand, CUDA graph": lambda: by_hand(dataset, batch, size, "graph"),
        }
    return makers


def measure(
    makers: dict[str, Callable[[], Steps]], options: argparse.Namespace
) -> dict[str, float | None]:
    """Samples per second, the median of rounds in which all take turns; None: it does not run."""
    variants: dict[str, Steps] = {}
    for name, maker in makers.items():
        try:
            variants[name] = maker()
            variants[name](3)  # compiles, chooses kernels
        except RuntimeError as error:  # no compiler, say, or too little memory: the others count
            variants.pop(name, None)
            print(f"gpu.py: {name}: {str(error).splitlines()[0]}", file=sys.stderr)
    names = list(variants)
    rounds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rounds[name].append(time_steps(variants[name], options))
    return {
        name: round(statistics.median(rounds[name]), 1) if name in rounds else None
        for name in makers
    }


def time_steps(steps: Steps, options: argparse.Namespace) -> float:
    """Samples per second."""
    started = time.perf_counter()
    steps(options.steps)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return options.steps * options.batch / (time.perf_counter() - started)


def compare(found: dict[str, float | None]) -> float | None:
    """The best program ÷ the best loop by hand; None where a loop by hand did not run: against a
    hand that could not do its best nothing is shown."""
    if not all(found[name] for name in found if name.startswith("by hand")):
        return None
    best = {
        whose: max(value or 0.0 for name, value in found.items() if name.startswith(whose))
        for whose in ("program", "by hand")
    }
    return round(best["program"] / best["by hand"], 3)


if __name__ == "__main__":
    sys.exit(main())

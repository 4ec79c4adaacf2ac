"""TAGI's layers against cuTAGI's own, from its wheel on PyPI: moments, updates and speed.

    pip install --no-deps --target DIR pytagi==0.2.1
    LD_LIBRARY_PATH=DIR python bench/tagi_layers.py --pytagi DIR --out tagi_layers.json

It is linked to NCCL, which nothing here calls: a DIR/libnccl.so.2 with the names of its functions
does (tests/workloads/test_tagi.py makes one), and needs libmpi_cxx.so.40 of Open MPI 4.

For each network both libraries have the same weights, are given the same rows, and take four steps;
reported is the largest difference of the outputs' means and variances, relative to the largest of
them, and rows per second of processor time for networks of the digits and of MNIST.
tests/workloads/test_tagi.py checks the differences.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workloads"))

from trainlib.tagi import base, layers, models
from trainlib.tagi.output import compute_innovation

BATCH, STEPS, SIGMA_V = 16, 4, 0.5
LIMIT = 2e-5

Part = tuple[Any, ...]

#: Shape of the inputs, and layers: the name and what it takes.
NETWORKS: dict[str, tuple[tuple[int, ...], list[Part]]] = {
    "linear, ReLU": ((6,), [("linear", 6, 8), ("relu",), ("linear", 8, 3)]),
    "linear, MixtureReLU": ((6,), [("linear", 6, 8), ("mixture",), ("linear", 8, 3)]),
    "convolution": ((3, 8, 8), [("conv", 3, 4, 3, 1, 1), ("mixture",), ("linear", 256, 3)]),
    "convolution with a stride of 2": (
        (3, 8, 8),
        [("conv", 3, 4, 3, 2, 1), ("mixture",), ("linear", 64, 3)],
    ),
    "batch norm": (
        (3, 8, 8),
        [("conv", 3, 4, 3, 1, 1), ("mixture",), ("norm", 4), ("linear", 256, 3)],
    ),
    "average pool": (
        (3, 9, 9),
        [("conv", 3, 4, 3, 1, 1), ("relu",), ("pool", 3, 2), ("linear", 64, 3)],
    ),
    "residual block": (
        (3, 8, 8),
        [
            ("conv", 3, 4, 3, 1, 1),
            ("mixture",),
            ("block", [("conv", 4, 4, 3, 1, 1), ("mixture",), ("conv", 4, 4, 3, 1, 1)], None),
            ("linear", 256, 3),
        ],
    ),
    "residual block with a shortcut": (
        (3, 8, 8),
        [
            ("conv", 3, 4, 3, 1, 1),
            ("mixture",),
            (
                "block",
                [
                    *[("conv", 4, 8, 3, 2, 1), ("mixture",), ("norm", 8)],
                    *[("conv", 8, 8, 3, 1, 1), ("mixture",), ("norm", 8)],
                ],
                [("conv", 4, 8, 2, 2, 0), ("mixture",), ("norm", 8)],
            ),
            ("linear", 128, 3),
        ],
    ),
}


def ours(parts: list[Part]) -> layers.Sequential:
    """One layer for each part, as cuTAGI counts them."""

    def make(part: Part) -> base.Layer:
        name, *given = part
        if name == "block":
            main, shortcut = given
            return layers.Residual(ours(main), ours(shortcut) if shortcut else None)
        if name == "linear":
            return layers.Sequential(layers.Flatten(), layers.Linear(*given))
        if name == "conv":
            return models.convolution(*given)
        return {
            "relu": layers.ReLU,
            "mixture": layers.MixtureReLU,
            "norm": layers.BatchNorm2d,
            "pool": layers.AvgPool2d,
        }[name](*given)

    return layers.Sequential(*map(make, parts))


def theirs(parts: list[Part], shape: tuple[int, ...]) -> list[Any]:
    import pytagi.nn as nn

    made: list[Any] = []
    for name, *given in parts:
        if name == "block":
            main, shortcut = given
            blocks = [nn.LayerBlock(*theirs(one, ())) for one in (main, shortcut) if one]
            made.append(nn.ResNetBlock(*blocks))
        elif name == "conv":
            inputs, outputs, side, stride, padding = given
            size = {"in_width": shape[-1], "in_height": shape[-2]} if len(shape) == 3 else {}
            # 2: after the last row and column alone, the only one it takes with this stride.
            where = 2 if stride == 2 and padding else 1
            made.append(
                nn.Conv2d(inputs, outputs, side, False, stride, padding, padding_type=where, **size)
            )
            shape = ()
        else:
            kind = {
                "linear": nn.Linear,
                "relu": nn.ReLU,
                "mixture": nn.MixtureReLU,
                "norm": nn.BatchNorm2d,
                "pool": nn.AvgPool2d,
            }[name]
            made.append(kind(*given))
    return made


def take(network: layers.Sequential, parts: list[Part], state: Any, place: str = "{}") -> None:
    """Give our layers the weights in pytagi's `state_dict`."""
    kinds = {"linear": "Linear", "conv": "Conv2d", "norm": "BatchNorm2d"}
    for number, (part, layer) in enumerate(zip(parts, network.layers, strict=True)):
        if part[0] == "block":
            assert isinstance(layer, layers.Residual)
            for branch, which, below in (
                (layer.branch, "main", part[1]),
                (layer.shortcut, "shortcut", part[2]),
            ):
                if branch is not None:
                    take(branch, below, state, f"{which}.{number}.{{}}")  # type: ignore[arg-type]
        elif part[0] in kinds:
            values = [
                torch.tensor(one) for one in state[f"{kinds[part[0]]}.{place.format(number)}"]
            ]
            for parameter in layer.parameters():
                shape = parameter.mean.shape
                parameter.mean = values.pop(0).view(shape)
                parameter.var = values.pop(0).view(shape)


def compare(shape: tuple[int, ...], parts: list[Part]) -> float:
    """The largest relative difference of the outputs: in four steps, then in evaluation."""
    import pytagi
    from pytagi.nn import OutputUpdater, Sequential

    pytagi.manual_seed(1)
    outputs = int(parts[-1][2])
    generator = np.random.default_rng(0)
    rows = generator.random((STEPS, BATCH, *shape), dtype=np.float32)
    observed = generator.standard_normal((STEPS, BATCH, outputs), dtype=np.float32)
    other = Sequential(*theirs(parts, shape))
    # With one thread its batch norm takes the first batch whole; on GPUs it does not.
    other.set_threads(2)
    other(rows[0].flatten())  # makes the weights
    mine = ours(parts)
    take(mine, parts, other.state_dict())
    mine.forward(torch.from_numpy(rows[0]))  # the statistics of batch norm begin with the same rows
    updater = OutputUpdater("cpu")
    noise = np.full(BATCH * outputs, SIGMA_V**2, dtype=np.float32)
    off = 0.0

    def forward(x: np.ndarray) -> base.Moments:
        nonlocal off
        found = mine.forward(torch.from_numpy(x))
        expected = [np.array(one)[: BATCH * outputs] for one in other(x.flatten())]
        for one, value in zip(found, expected, strict=True):
            difference = np.abs(one.numpy().ravel() - value).max() / np.abs(value).max()
            off = max(off, float(difference))
        return found

    for x, y in zip(rows, observed, strict=True):
        found = forward(x)
        mine.backward(*compute_innovation(*found, torch.from_numpy(y), SIGMA_V), first=True)
        mine.step(BATCH)
        updater.update(other.output_z_buffer, y.flatten(), noise, other.input_delta_z_buffer)
        other.backward()
        other.step()
    mine.train(False)
    other.eval()
    forward(rows[0])
    return off


def resnet18() -> list[Part]:
    """cuTAGI's, for images of CIFAR-10."""

    def conv(inputs: int, outputs: int, side: int, stride: int) -> list[Part]:
        made = ("conv", inputs, outputs, side, stride, int(side == 3))
        return [made, ("mixture",), ("norm", outputs)]

    parts, channels = conv(3, 64, 3, 1), 64
    for stage in range(4):
        for block in range(2):
            wide, stride = 64 << stage, 2 if stage and not block else 1
            shortcut = conv(channels, wide, 2, 2) if stride == 2 else None
            main = [*conv(channels, wide, 3, stride), *conv(wide, wide, 3, 1)]
            parts.append(("block", main, shortcut))
            channels = wide
    return [*parts, ("pool", 4, 1), ("linear", 512, 11)]


SPEEDS: dict[str, tuple[tuple[int, ...], list[Part]]] = {
    "digits, 64-64-64-11": (
        (64,),
        [*[("linear", 64, 64), ("relu",)] * 2, ("linear", 64, 11)],
    ),
    "mnist, convolutions of 16 and 32 channels": (
        (1, 28, 28),
        [
            *[("conv", 1, 16, 4, 1, 1), ("relu",), ("pool", 3, 2)],
            *[("conv", 16, 32, 5, 1, 0), ("relu",), ("pool", 3, 2)],
            *[("linear", 512, 100), ("relu",), ("linear", 100, 11)],
        ],
    ),
    "cifar10, ResNet-18": ((3, 32, 32), resnet18()),
}


def speeds(shape: tuple[int, ...], parts: list[Part]) -> dict[str, float]:
    """Rows per second of processor time, forward, back and updated, in batches of 16."""
    from pytagi.nn import OutputUpdater, Sequential

    steps, times = (20, 5) if len(parts) < 12 else (1, 1)  # a ResNet takes minutes
    rows = np.random.default_rng(0).random((steps, BATCH, *shape), dtype=np.float32)
    goal = np.zeros((BATCH, 11), dtype=np.float32)
    mine, other, updater = ours(parts), Sequential(*theirs(parts, shape)), OutputUpdater("cpu")
    other.set_threads(1)
    noise = np.full(goal.size, SIGMA_V**2, dtype=np.float32)

    def one(x: np.ndarray) -> None:
        found = mine.forward(torch.from_numpy(x), None)
        mine.backward(*compute_innovation(*found, torch.from_numpy(goal), SIGMA_V), first=True)
        mine.step(BATCH)

    def another(x: np.ndarray) -> None:
        other(x.flatten())
        updater.update(other.output_z_buffer, goal.flatten(), noise, other.input_delta_z_buffer)
        other.backward()
        other.step()

    found = {}
    for name, step in (("ours", one), ("pytagi", another)):
        best = 0.0
        for _ in range(times):
            started = time.process_time()
            for x in rows:
                step(x)
            best = max(best, rows.shape[0] * BATCH / (time.process_time() - started))
        found[name] = round(best, 3)
    return {**found, "ratio": round(found["ours"] / found["pytagi"], 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description="TAGI's layers against cuTAGI's own.")
    parser.add_argument("--pytagi", type=Path, required=True, help="folder it is installed in")
    parser.add_argument("--out", type=Path, help="also write the JSON here, with the speeds")
    options = parser.parse_args()
    sys.path.insert(0, str(options.pytagi))
    torch.set_num_threads(1)
    with torch.inference_mode():
        document: dict[str, Any] = {
            "schema": 1,
            "benchmark": "tagi_layers",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "limit": LIMIT,
            "largest_relative_difference": {
                name: compare(*network) for name, network in NETWORKS.items()
            },
        }
        if options.out is not None:
            document["rows_per_cpu_s"] = {name: speeds(*one) for name, one in SPEEDS.items()}
            options.out.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document), flush=True)
    return int(max(document["largest_relative_difference"].values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

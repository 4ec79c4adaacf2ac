"""The networks of cuTAGI's DDP examples, and a small one for the digits.

Each ends in the units of the hierarchical softmax, and takes (B, C, H, W) or (B, features).
"""

from __future__ import annotations

from trainlib.tagi.base import Layer
from trainlib.tagi.layers import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    MixtureReLU,
    PadEnd,
    ReLU,
    Residual,
    Sequential,
)

_ACTIVATIONS: dict[str, type[Layer]] = {"relu": ReLU, "mixture": MixtureReLU}


def mlp(inputs: int, units: int, activation: str = "relu", gain: float = 1.0) -> Sequential:
    """inputs -> 64 -> 64 -> units."""
    act = _ACTIVATIONS[activation]
    return Sequential(
        Linear(inputs, 64, gain_w=gain, gain_b=gain),
        act(),
        Linear(64, 64, gain_w=gain, gain_b=gain),
        act(),
        Linear(64, units, gain_w=gain, gain_b=gain),
    )


def mnist_cnn(units: int, activation: str = "relu", gain: float = 1.0) -> Sequential:
    """Two convolutions of 16 and 32 channels, each pooled; for (B, 1, 28, 28)."""
    act = _ACTIVATIONS[activation]
    return Sequential(
        Conv2d(1, 16, 4, padding=1, gain_w=gain, gain_b=gain),
        act(),
        AvgPool2d(3, 2),
        Conv2d(16, 32, 5, gain_w=gain, gain_b=gain),
        act(),
        AvgPool2d(3, 2),
        Flatten(),
        Linear(32 * 4 * 4, 100, gain_w=gain, gain_b=gain),
        act(),
        Linear(100, units, gain_w=gain, gain_b=gain),
    )


def convolution(
    inputs: int, outputs: int, side: int, stride: int, padding: int, gain: float = 1.0
) -> Layer:
    """Without biases. With a stride of 2, cuTAGI pads after the last row and column alone."""
    if stride == 2 and padding:
        return Sequential(PadEnd(), Conv2d(inputs, outputs, side, stride, bias=False, gain_w=gain))
    return Conv2d(inputs, outputs, side, stride, padding, bias=False, gain_w=gain)


def resnet18(
    units: int, activation: str = "mixture", gain: float = 0.1, width: int = 64, side: int = 32
) -> Sequential:
    """ResNet-18 for (B, 3, side, side) as in cuTAGI: four stages of two residual blocks.

    Nothing follows the sum of a block. Where a stage halves the image, the shortcut is a
    convolution of 2 x 2.

    Args:
        gain: Of convolutions and the last layer; batch norm has 1.
        width: Channels of the first stage; each further stage has twice as many.
    """
    act = _ACTIVATIONS[activation]

    def conv(inputs: int, outputs: int, kernel: int, stride: int) -> list[Layer]:
        padding = 1 if kernel == 3 else 0
        made = convolution(inputs, outputs, kernel, stride, padding, gain)
        return [made, act(), BatchNorm2d(outputs)]

    layers: list[Layer] = conv(3, width, 3, 1)
    channels = width
    for stage in range(4):
        wide = width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            branch = Sequential(*conv(channels, wide, 3, stride), *conv(wide, wide, 3, 1))
            shortcut = Sequential(*conv(channels, wide, 2, 2)) if stride == 2 else None
            layers.append(Residual(branch, shortcut))
            channels = wide
    layers += [AvgPool2d(side // 8), Flatten(), Linear(channels, units, gain_w=gain, gain_b=gain)]
    return Sequential(*layers)

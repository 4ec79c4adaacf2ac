"""The networks of the bundled programs.

All of them map a batch of samples to logits (B, outputs); samples are rows of features or images
(channels, height, width). Image networks take rows too where the data set says what image a row is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from trainlib.errors import UsageError

#: `--model` of the DDP programs.
NAMES = ("mlp", "cnn", "resnet18", "resnet50")

#: Below this side (pixels) a ResNet begins with a 3x3 convolution, as the paper's for CIFAR-10 do:
#: the stem for ImageNet would leave nothing of a small image.
_LARGE = 64

#: What two 3x3 convolutions and a pooling leave one pixel of.
_SMALLEST = 6

Shape = tuple[int, ...]


def mlp(inputs: int, outputs: int, hidden: int = 64) -> nn.Module:
    """inputs -> hidden -> outputs with ReLU; maps (B, inputs) to (B, outputs)."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def build(name: str, sample: Shape, image: Shape | None, outputs: int) -> nn.Module:
    """The network of that name for these samples.

    Args:
        sample: Shape of one input: (features,) or (channels, height, width).
        image: What a row of features is as an image, None if it is none.

    Raises:
        UsageError: An image network for samples that are no images, or too small ones.
    """
    if name == "mlp":
        network = mlp(math.prod(sample), outputs)
        return network if len(sample) == 1 else nn.Sequential(nn.Flatten(), network)
    if image is None:
        raise UsageError(f"--model {name} needs images", "choose another --dataset, or --model mlp")
    makers: dict[str, Callable[[Shape, int], nn.Module]] = {
        "cnn": mnist_cnn,
        "averaging_cnn": averaging_cnn,
        "resnet18": lambda shape, count: resnet(18, shape, count),
        "resnet50": lambda shape, count: resnet(50, shape, count),
        "vgg16": vgg16,
    }
    network = makers[name](image, outputs)
    return network if len(sample) == 3 else nn.Sequential(nn.Unflatten(1, image), network)


def mnist_cnn(image: Shape, outputs: int) -> nn.Module:
    """Two 3x3 convolutions, one pooling, dropout and two linear layers; ends in log-probabilities.

    The network of pytorch/examples `mnist/main.py`, as in DistributedTraining of
    bu-rcs/access-multi-gpu. For MNIST the flat layer has 9,216 inputs.
    """
    channels, height, width = image
    if min(height, width) < _SMALLEST:
        raise UsageError(
            f"images of {height}x{width} are too small for this network",
            f"give an --image-size of {_SMALLEST} or more, or another --model",
        )
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(flat, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, outputs),
        nn.LogSoftmax(dim=1),
    )


def averaging_cnn(image: Shape, outputs: int) -> nn.Module:
    """The convolutional network of paultsw/mnist_mpi, weights uniform after Glorot and Bengio.

    Images of 8x8 pixels get 3x3 convolutions, since two of 5x5 would leave nothing of them.
    """
    channels, height, width = image
    side = 5 if min(height, width) >= 16 else 3

    def after(pixels: int) -> int:
        return ((pixels - side + 1) // 2 - side + 1) // 2 if side == 5 else (pixels - 2) // 2 - 2

    tail: list[nn.Module] = [nn.MaxPool2d(2)] if side == 5 else []
    network = nn.Sequential(
        nn.Conv2d(channels, 10, side),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, side),
        *tail,
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * after(height) * after(width), 50),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(50, outputs),
    )
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return network


def leaky_mlp(inputs: int, outputs: int, hidden: int = 1024) -> nn.Module:
    """inputs -> 3 x hidden -> outputs with LeakyReLU: `mnist_mlp` of deephealthproject's EDDL."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in (inputs, hidden, hidden):
        layers += [nn.Linear(width, hidden), nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs))


class _Residual(nn.Module):
    """ReLU(branch(x) + shortcut(x)): He et al., CVPR 2016, arXiv 1512.03385."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.branch(inputs) + self.shortcut(inputs))


def _conv(inputs: int, outputs: int, side: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return [convolution, nn.BatchNorm2d(outputs)]


def _basic(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    body = [*_conv(inputs, width, 3, stride), nn.ReLU(inplace=True), *_conv(width, width, 3)]
    return nn.Sequential(*body), width


def _bottleneck(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    # The stride is on the 3x3 convolution ("v1.5"), as in torchvision: half a point more accurate.
    body = [*_conv(inputs, width, 1), nn.ReLU(inplace=True)]
    body += [*_conv(width, width, 3, stride), nn.ReLU(inplace=True), *_conv(width, 4 * width, 1)]
    return nn.Sequential(*body), 4 * width


def resnet(depth: int, image: Shape, outputs: int, dropout: float = 0.0) -> nn.Module:
    """ResNet-18 or ResNet-50: He et al., CVPR 2016, arXiv 1512.03385.

    Args:
        dropout: Probability of dropping a feature before the last layer.
    """
    block, counts = {18: (_basic, (2, 2, 2, 2)), 50: (_bottleneck, (3, 4, 6, 3))}[depth]
    large = min(image[1:]) >= _LARGE
    layers = [*_conv(image[0], 64, 7 if large else 3, 2 if large else 1), nn.ReLU(inplace=True)]
    if large:
        layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for stage, count in enumerate(counts):
        for index in range(count):
            stride = 2 if stage and not index else 1
            branch, wide = block(channels, 64 << stage, stride)
            same = stride == 1 and wide == channels
            shortcut = nn.Identity() if same else nn.Sequential(*_conv(channels, wide, 1, stride))
            layers.append(_Residual(branch, shortcut))
            channels = wide
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(channels, outputs))


def vgg16(image: Shape, outputs: int, dropout: float = 0.5) -> nn.Module:
    """VGG-16: Simonyan and Zisserman, ICLR 2015, arXiv 1409.1556."""
    layers: list[nn.Module] = []
    channels = image[0]
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            convolution = nn.Conv2d(channels, width, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            layers += [convolution, nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    height, breadth = (pixels // 32 for pixels in image[1:])
    layers += [nn.Flatten(), nn.Linear(512 * height * breadth, 4096), nn.ReLU(inplace=True)]
    layers += [nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(4096, outputs))


def signature(model: nn.Module) -> str:
    """The layout of the parameters and buffers as text: equal for models that can swap weights."""
    return ", ".join(f"{name}{list(value.shape)}" for name, value in model.state_dict().items())

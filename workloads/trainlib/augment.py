"""Random changes of images, those of deephealthproject's imagenette example (with ECVL).

Each image has a generator of its own, so that what happens to it depends on nothing else.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

#: Of the changes, as in the example: degrees, deviation in pixels, mean in grey levels of 255.
_MAX_DEGREES, _MAX_BLUR, _MAX_NOISE = 180.0, 0.8, 10.0
_GAMMA = (0.5, 1.5)
_DROP_PART, _DROP_SIDE = 0.02, 0.1


def augment_image(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirror, flip, rotate, Poisson noise, gamma, blur and coarse dropout; (3, H, W) of 0 to 1."""
    draws = torch.rand(6, generator=generator).tolist()
    flips = [axis for axis, draw in ((2, draws[0]), (1, draws[1])) if draw < 0.5]
    if flips:
        image = image.flip(flips)
    image = rotate(image, math.radians((2 * draws[2] - 1) * _MAX_DEGREES))
    # Additive: each value gets a Poisson number of grey levels, the image one mean for all.
    image = image + draw_poisson(draws[3] * _MAX_NOISE, image.shape, generator) / 255
    low, high = _GAMMA
    image = image.clamp(0, 1) ** (low + draws[4] * (high - low))
    image = _blur(image, draws[5] * _MAX_BLUR)
    side = max(1, round(_DROP_SIDE * min(image.shape[1:])))
    for _ in range(round(_DROP_PART * image.shape[1] * image.shape[2] / side**2)):
        limits = (image.shape[1] - side + 1, image.shape[2] - side + 1)
        top, left = (int(torch.randint(limit, (), generator=generator)) for limit in limits)
        image[:, top : top + side, left : left + side] = 0
    return image


def draw_poisson(mean: float, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Numbers of a Poisson distribution, int64, by inversion: one table for all of them takes a
    third of the time of `torch.poisson`. `mean` is at most some tens."""
    counts = torch.arange(16 + 4 * math.ceil(mean), dtype=torch.float64)
    logarithms = counts * math.log(max(mean, 1e-300)) - mean - torch.lgamma(counts + 1)
    below = logarithms.exp().cumsum(0)
    return torch.bucketize(torch.rand(shape, generator=generator), below.float(), right=True)


def rotate(image: torch.Tensor, angle: float) -> torch.Tensor:
    """Around the middle; what comes in from outside is black."""
    cos, sin = math.cos(angle), math.sin(angle)
    ratio = image.shape[1] / image.shape[2]
    matrix = torch.tensor([[[cos, -sin * ratio, 0.0], [sin / ratio, cos, 0.0]]])
    grid = functional.affine_grid(matrix, [1, *image.shape], align_corners=False)
    return functional.grid_sample(image.unsqueeze(0), grid, align_corners=False).squeeze(0)


def _blur(image: torch.Tensor, sigma: float) -> torch.Tensor:
    """A Gaussian of 3 x 3 pixels, wide enough for the deviations used here."""
    if sigma < 0.1:
        return image
    side = math.exp(-0.5 / sigma**2)
    line = torch.tensor([side, 1.0, side]) / (1 + 2 * side)
    kernel = torch.outer(line, line).expand(image.shape[0], 1, 3, 3)
    padded = functional.pad(image.unsqueeze(0), (1, 1, 1, 1), mode="replicate")
    return functional.conv2d(padded, kernel, groups=image.shape[0]).squeeze(0)


def crop_and_mirror(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each image moved by up to 4 pixels each way, and mirrored half of the time; (B, C, H, W).

    The augmentation of the ResNet paper for CIFAR-10 (He et al., 2016), as in cuTAGI's example.
    """
    count, _, height, width = batch.shape
    padded = functional.pad(batch, (4, 4, 4, 4))
    moves = torch.randint(9, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = torch.arange(height) + moves[0]
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(mirrored, columns.flip(1), columns) + moves[1]
    rows, columns = rows.to(batch.device), columns.to(batch.device)
    image = torch.arange(count, device=batch.device).view(-1, 1, 1)
    return padded[image, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)

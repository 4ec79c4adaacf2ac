"""The layers. Shapes: (B, features) or (B, channels, height, width), for means and variances alike.

A variance of None stands for inputs that are known exactly, and saves the products with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from trainlib.tagi.base import Layer, Moments, Parameter, fill_var

#: MixtureReLU's moments are kept above this, as in cuTAGI: a unit may not become certain.
_LEAST = 1e-6

#: Standard deviations beyond which the density of a Gaussian is 0, in double precision, too.
_FAR = 40.0

_SQRT_2, _SQRT_2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


class _Affine(Layer):
    """Weights and biases, drawn from N(0, s^2) with s^2 = 1 / fan-in and variances (gain * s)^2."""

    def __init__(self, shape: tuple[int, ...], bias: bool, gain_w: float, gain_b: float) -> None:
        scale = math.sqrt(1.0 / math.prod(shape[1:]))

        def draw(size: tuple[int, ...], gain: float) -> Parameter:
            return Parameter(scale * torch.randn(size), torch.full(size, (gain * scale) ** 2))

        self.weight = draw(shape, gain_w)
        self.bias = draw(shape[:1], gain_b) if bias else None
        self._mean = torch.empty(0)

    def list_own(self) -> list[Parameter]:
        return [self.weight, *([self.bias] if self.bias else [])]


class Linear(_Affine):
    """z = W a + b; (B, inputs) to (B, outputs).

    E[z]   = E[W] E[a] + E[b]
    Var[z] = (E[W]^2 + Var[W]) Var[a] + Var[W] E[a]^2 + Var[b]
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, gain_w: float = 1.0, gain_b: float = 1.0
    ) -> None:
        super().__init__((outputs, inputs), bias, gain_w, gain_b)

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        self._mean = mean
        weight, bias = self.weight, self.bias
        z_var = functional.linear(mean * mean, weight.var, bias.var if bias else None)
        if var is not None:
            z_var += functional.linear(var, weight.mean * weight.mean + weight.var)
        return functional.linear(mean, weight.mean, bias.mean if bias else None), z_var

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        weight = self.weight
        inputs = (
            (d_mean, d_var)
            if first
            else (d_mean @ weight.mean, d_var @ (weight.mean * weight.mean))
        )
        weight.learn(d_mean.T @ self._mean, d_var.T @ (self._mean * self._mean))
        if self.bias:
            self.bias.learn(d_mean.sum(0), d_var.sum(0))
        return inputs


class Conv2d(_Affine):
    """A convolution: as `Linear`, with each weight at many places."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        side: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        gain_w: float = 1.0,
        gain_b: float = 1.0,
    ) -> None:
        super().__init__((outputs, inputs, side, side), bias, gain_w, gain_b)
        self._stride, self._padding = stride, padding

    def _convolve(
        self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return functional.conv2d(inputs, weight, bias, self._stride, self._padding)

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        self._mean = mean
        weight, bias = self.weight, self.bias
        z_var = self._convolve(mean * mean, weight.var, bias.var if bias else None)
        if var is not None:
            z_var += self._convolve(var, weight.mean * weight.mean + weight.var)
        return self._convolve(mean, weight.mean, bias.mean if bias else None), z_var

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        weight, shape = self.weight, list(self._mean.shape)
        place = (self._stride, self._padding)
        inputs = (d_mean, d_var)
        if not first:
            inputs = (
                conv2d_input(shape, weight.mean, d_mean, *place),
                conv2d_input(shape, weight.mean * weight.mean, d_var, *place),
            )
        size = list(weight.mean.shape)
        weight.learn(
            conv2d_weight(self._mean, size, d_mean, *place),
            conv2d_weight(self._mean * self._mean, size, d_var, *place),
        )
        if self.bias:
            self.bias.learn(d_mean.sum((0, 2, 3)), d_var.sum((0, 2, 3)))
        return inputs


class PadEnd(Layer):
    """Zeros, known exactly, after the last row and column of an image."""

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        sides = (0, 1, 0, 1)
        return functional.pad(mean, sides), functional.pad(fill_var(mean, var), sides)

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        return d_mean[..., :-1, :-1].contiguous(), d_var[..., :-1, :-1].contiguous()


class BatchNorm2d(Layer):
    """z = w (a - m) / sqrt(v + eps) + b, with m and v of the batch's units, taken as known.

    v holds the spread of the means and their variances: (sum (E[a] - m)^2 + sum Var[a]) / (n - 1).
    In evaluation m and v are running averages. Takes (B, C) too.
    """

    def __init__(
        self, channels: int, gain: float = 1.0, eps: float = 1e-5, momentum: float = 0.9
    ) -> None:
        self.weight = Parameter(torch.ones(channels), torch.full((channels,), gain**2 / channels))
        self.bias = Parameter(torch.zeros(channels), torch.full((channels,), gain**2 / channels))
        self.running_mean = torch.zeros(channels)
        self.running_var = torch.ones(channels)
        self.sum_over_ranks: Callable[[torch.Tensor], None] | None = None
        """Adds up a tensor over the ranks, in place: the batch is then the one of all ranks."""
        self._eps, self._momentum = eps, momentum
        self._scale = self._hat = torch.empty(0)

    def list_own(self) -> list[Parameter]:
        return [self.weight, self.bias]

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.running_mean = self.running_mean.to(device)
        self.running_var = self.running_var.to(device)

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        var = fill_var(mean, var)
        shape = (1, -1, *[1] * (mean.dim() - 2))
        middle, spread = self._compute_statistics(mean, var)
        inverse = (spread + self._eps).rsqrt()
        self._hat = (mean - middle.view(shape)) * inverse.view(shape)
        self._scale = (inverse * self.weight.mean).view(shape)
        second = (inverse**2 * (self.weight.mean**2 + self.weight.var)).view(shape)
        z_var = second * var + self.weight.var.view(shape) * self._hat**2
        return (
            self._hat * self.weight.mean.view(shape) + self.bias.mean.view(shape),
            z_var + self.bias.var.view(shape),
        )

    def _compute_statistics(self, mean: torch.Tensor, var: torch.Tensor) -> Moments:
        if not self.training:
            return self.running_mean, self.running_var
        axes = [axis for axis in range(mean.dim()) if axis != 1]
        count = mean.new_full((1,), mean.numel() // mean.shape[1])
        total = torch.cat([mean.sum(axes), count])
        if self.sum_over_ranks:
            self.sum_over_ranks(total)
        middle = total[:-1] / total[-1]
        # In a second pass: the difference of two large sums would lose the digits that matter.
        centred = mean - middle.view(1, -1, *[1] * (mean.dim() - 2))
        squares = (centred * centred + var).sum(axes)
        if self.sum_over_ranks:
            self.sum_over_ranks(squares)
        spread = squares / (total[-1] - 1).clamp_min(1)
        self.running_mean.lerp_(middle, 1 - self._momentum)
        self.running_var.lerp_(spread, 1 - self._momentum)
        return middle, spread

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        axes = [axis for axis in range(d_mean.dim()) if axis != 1]
        inputs = (d_mean * self._scale, d_var * self._scale**2)
        self.weight.learn((d_mean * self._hat).sum(axes), (d_var * self._hat**2).sum(axes))
        self.bias.learn(d_mean.sum(axes), d_var.sum(axes))
        return inputs


class _Activation(Layer):
    """a = f(z): backward multiplies with J = Cov(a, z) / Var(z), and with its square."""

    def __init__(self) -> None:
        self._jacobian = torch.empty(0)

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        return d_mean * self._jacobian, d_var * self._jacobian**2


class ReLU(_Activation):
    """Made linear at the mean: it passes a unit, or stops it."""

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        self._jacobian = (mean > 0).to(mean.dtype)
        return mean * self._jacobian, fill_var(mean, var) * self._jacobian


class MixtureReLU(_Activation):
    """The exact moments of max(0, z) for a Gaussian z; with alpha = E[z] / sd[z]:

    E[a]   = E[z] Phi(alpha) + sd[z] phi(alpha)
    Var[a] = -E[a]^2 + 2 E[a] E[z] - E[z] sd[z] phi(alpha) + (Var[z] - E[z]^2) Phi(alpha)
    J      = Phi(alpha)

    Single precision has no digits left in these differences where the mean is large. So both come
    from the moments h and s of what is cut off a unit Gaussian beyond t = |alpha|:

    h = phi(t) - t Phi(-t)      s = Phi(-t) - t h
    """

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        z_var = fill_var(mean, var).clamp_min(1e-12)
        deviation = z_var.sqrt()
        above = mean > 0
        t = (mean.abs() / deviation).clamp_max(_FAR)
        density = torch.exp(-0.5 * t * t) / _SQRT_2PI
        tail = 0.5 * torch.erfc(t / _SQRT_2)
        h = density - t * tail
        s = tail - t * h
        rest = torch.where(above, 1 - tail - t * h, s) - h * h
        self._jacobian = torch.where(above, 1 - tail, tail)
        a_mean = mean.clamp_min(0) + deviation * h
        a_var = z_var * rest
        return a_mean.clamp_min(_LEAST), a_var.clamp_min(_LEAST)


class AvgPool2d(Layer):
    """The mean of n = side^2 independent units: variances add up, over n^2."""

    def __init__(self, side: int, stride: int | None = None) -> None:
        self._side, self._stride = side, stride or side
        self._inputs = torch.empty(0)

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        self._inputs = mean
        pool = functional.avg_pool2d
        z_var = pool(fill_var(mean, var), self._side, self._stride) / self._side**2
        return pool(mean, self._side, self._stride), z_var

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        def spread(outputs: torch.Tensor) -> torch.Tensor:
            sides, strides = [self._side] * 2, [self._stride] * 2
            result: torch.Tensor = torch.ops.aten.avg_pool2d_backward(
                outputs.contiguous(), self._inputs, sides, strides, [0, 0], False, True, None
            )
            return result

        return spread(d_mean), spread(d_var) / self._side**2


class MaxPool2d(Layer):
    """The unit with the largest mean of each window."""

    def __init__(self, side: int, stride: int | None = None) -> None:
        self._side, self._stride = side, stride or side
        self._chosen = torch.empty(0)
        self._shape = torch.Size()

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        self._shape = mean.shape
        a_mean, self._chosen = functional.max_pool2d(
            mean, self._side, self._stride, return_indices=True
        )
        a_var = fill_var(mean, var).flatten(2).gather(2, self._chosen.flatten(2))
        return a_mean, a_var.view_as(a_mean)

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        def spread(outputs: torch.Tensor) -> torch.Tensor:
            inputs = outputs.new_zeros(self._shape).flatten(2)
            inputs.scatter_add_(2, self._chosen.flatten(2), outputs.flatten(2))
            return inputs.view(self._shape)

        return spread(d_mean), spread(d_var)


class Flatten(Layer):
    """(B, C, H, W) to (B, C * H * W)."""

    def __init__(self) -> None:
        self._shape = torch.Size()

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        self._shape = mean.shape
        return mean.flatten(1), fill_var(mean, var).flatten(1)

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        return d_mean.view(self._shape), d_var.view(self._shape)


class Sequential(Layer):
    """One layer after the other."""

    def __init__(self, *layers: Layer) -> None:
        self.layers = layers

    def list_nested(self) -> list[Layer]:
        return list(self.layers)

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None = None) -> Moments:
        for layer in self.layers:
            mean, var = layer.forward(mean, var)
        return mean, fill_var(mean, var)

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        for layer in reversed(self.layers):
            outermost = first and layer is self.layers[0]
            d_mean, d_var = layer.backward(d_mean, d_var, first=outermost)
        return d_mean, d_var


class Residual(Layer):
    """branch(a) + shortcut(a), the two taken as independent; a shortcut of None passes a on."""

    def __init__(self, branch: Layer, shortcut: Layer | None = None) -> None:
        self.branch, self.shortcut = branch, shortcut

    def list_nested(self) -> list[Layer]:
        return [self.branch, *([self.shortcut] if self.shortcut else [])]

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        branch = self.branch.forward(mean, var)
        other = self.shortcut.forward(mean, var) if self.shortcut else (mean, fill_var(mean, var))
        return branch[0] + other[0], branch[1] + other[1]

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        branch = self.branch.backward(d_mean, d_var)
        other = self.shortcut.backward(d_mean, d_var) if self.shortcut else (d_mean, d_var)
        return branch[0] + other[0], branch[1] + other[1]

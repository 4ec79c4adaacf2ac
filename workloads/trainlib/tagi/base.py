"""What every layer is: moments in and out, and parameters with the update that waits for them.

A variance of None stands for inputs that are known exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

Moments = tuple[torch.Tensor, torch.Tensor]
"""Means and variances, of one shape."""

#: A variance that an update made negative starts again from here, as in cuTAGI.
_RESTART = 1e-5


def cap(batch: int) -> float:
    """Part c of the limit sigma / c on one update, by the rows it comes from (cuTAGI's heuristic:
    it is in no paper, and keeps the first updates from overshooting)."""
    if batch == 1:
        return 0.1
    return 2.0 if batch < 256 else 3.0


class Parameter:
    """A tensor of independent Gaussians, and the update that is waiting for it."""

    def __init__(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        self.mean = mean
        self.var = var
        self.delta_mean = torch.zeros_like(mean)
        self.delta_var = torch.zeros_like(var)

    def to(self, device: torch.device) -> None:
        for name in ("mean", "var", "delta_mean", "delta_var"):
            setattr(self, name, getattr(self, name).to(device))

    def learn(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        """Set the update from innovations summed over rows: var * mean, and var^2 * var."""
        torch.mul(self.var, mean, out=self.delta_mean)
        torch.mul(self.var * self.var, var, out=self.delta_var)

    def step(self, factor: float) -> None:
        """Apply the update, each number of it at most sigma / `factor`."""
        limit = self.var.sqrt() / factor
        self.mean += torch.clamp(self.delta_mean, -limit, limit)
        self.var += torch.clamp(self.delta_var, -limit, limit)
        self.var[self.var <= 0] = _RESTART


class Layer:
    """A layer without parameters; the others add to this."""

    training = True

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None) -> Moments:
        """Moments of the outputs."""
        raise NotImplementedError

    def backward(
        self, d_mean: torch.Tensor, d_var: torch.Tensor, *, first: bool = False
    ) -> Moments:
        """Innovations of the inputs from those of the outputs; sets the parameters' updates.

        Args:
            first: Nobody needs those of the inputs; what is returned then means nothing.
        """
        raise NotImplementedError

    def list_own(self) -> list[Parameter]:
        """The layer's own parameters, without those of nested layers."""
        return []

    def list_nested(self) -> list[Layer]:
        return []

    def modules(self) -> Iterator[Layer]:
        """This layer and all nested ones, however deep."""
        yield self
        for layer in self.list_nested():
            yield from layer.modules()

    def parameters(self) -> list[Parameter]:
        return [parameter for layer in self.modules() for parameter in layer.list_own()]

    def train(self, mode: bool = True) -> None:
        for layer in self.modules():
            layer.training = mode

    def to(self, device: torch.device) -> None:
        for layer in self.modules():
            for parameter in layer.list_own():
                parameter.to(device)

    def step(self, rows: int) -> None:
        """Update all parameters from the innovations of `rows` rows."""
        factor = cap(rows)
        for parameter in self.parameters():
            parameter.step(factor)


def fill_var(mean: torch.Tensor, var: torch.Tensor | None) -> torch.Tensor:
    """The variance, as zeros where the mean is known exactly."""
    return torch.zeros_like(mean) if var is None else var

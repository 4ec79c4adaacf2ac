"""What is observed: numbers, or a class by the binary decisions that lead to it."""

from __future__ import annotations

import math

import torch

from trainlib.tagi.base import Moments

#: Deviation of the noise in a decision when it is read as a probability, as in cuTAGI.
_DECISION = 1.0 / 3.0


def compute_innovation(
    mean: torch.Tensor, var: torch.Tensor, observed: torch.Tensor, sigma_v: float
) -> Moments:
    """Innovations of the outputs from observations y = z + v with v of N(0, sigma_v^2).

    d_mean = (y - E[z]) / (Var[z] + sigma_v^2), d_var = -1 / (Var[z] + sigma_v^2); a unit whose
    observation is NaN was not observed: 0.
    """
    seen = ~observed.isnan()
    total = var + sigma_v**2
    d_mean = torch.where(seen, (observed - mean) / total, 0.0)
    return d_mean, torch.where(seen, -1.0 / total, 0.0)


class HierarchicalSoftmax:
    """Classes as leaves of a binary tree, each inner node one output unit of the network.

    A class is written in ceil(log2 classes) bits; each is observed as +1 (bit 0) or -1 (bit 1) by
    the node of the bits before it, nodes numbered level by level (Nguyen and Goulet, arXiv
    2103.05461; after Morin and Bengio, AISTATS 2005). Ten classes take eleven units.
    """

    def __init__(self, classes: int, device: torch.device | None = None) -> None:
        bits = max(1, math.ceil(math.log2(classes)))
        first, nodes = 0, []
        for level in range(bits):
            rest = bits - level
            nodes.append([first + (label >> rest) for label in range(classes)])
            first += ((classes - 1) >> rest) + 1
        self.units = first
        self.nodes = torch.tensor(nodes, device=device).T.contiguous()
        """(classes, bits): the unit of each decision."""
        signs = [
            [1.0 - 2.0 * (label >> (bits - 1 - level) & 1) for level in range(bits)]
            for label in range(classes)
        ]
        self.signs = torch.tensor(signs, device=device)
        """(classes, bits): what that unit is observed as."""

    def compute_innovation(
        self, mean: torch.Tensor, var: torch.Tensor, labels: torch.Tensor, sigma_v: float
    ) -> Moments:
        """Of all units (B, units), given labels (B,); units off the class's path get 0."""
        observed = torch.full_like(mean, math.nan)
        observed.scatter_(1, self.nodes[labels], self.signs[labels].to(mean.dtype))
        return compute_innovation(mean, var, observed, sigma_v)

    def compute_probabilities(self, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        """(B, classes): the product of the decisions' probabilities Phi(+-E[z] / sd).

        They sum to 1 where the number of classes is a power of 2, else to less: the tree has
        leaves that are no class.
        """
        ratio = mean / torch.sqrt(var + _DECISION**2)
        sign = self.signs.to(mean.dtype)
        decisions: torch.Tensor = torch.special.ndtr(ratio[:, self.nodes] * sign)
        return decisions.prod(dim=2)

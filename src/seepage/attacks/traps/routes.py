"""How values reach a crafted layer, and how to read them back from its gradient.

A pass-through (Boenisch et al. 2021, Section 7 and Appendix B) carries every input value to its own place in
the input of a later layer, times a gain, plus an offset. Undoing that on the *gradient* makes the layer look
as if it read the model's input itself, so that readers need no second way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.models.gradients import LayerGradient


@dataclass(frozen=True)
class Route:
    """feature[where[j]] = gain[j] * input[j] + offset[j], all of them (d,), gains positive.

    >>> route = Route(where=torch.tensor([2, 0]), gain=torch.tensor([2.0, 1.0]), offset=torch.ones(2))
    >>> route(torch.tensor([[5.0, 9.0, 7.0]])).tolist()
    [[3.0, 4.0]]
    """

    where: Tensor
    gain: Tensor
    offset: Tensor

    def __call__(self, features: Tensor, /) -> Tensor:
        return (features[:, self.where] - self.offset) / self.gain

    def gradient(self, gradient: LayerGradient) -> LayerGradient:
        """G_w = sum_j d_j f_j and G_b = sum_j d_j, so the same affine map acts with G_b in place of 1."""
        carried = gradient.weight[:, self.where]  # (N, d), a copy
        carried.sub_(gradient.bias.unsqueeze(1) * self.offset).div_(self.gain)
        return replace(gradient, weight=carried)


@dataclass(frozen=True)
class Ladder:
    """Neighbouring rows of an imprint layer differ by the examples of one bin (Fowl et al. 2021, eq. 4).

    Row k of the result is G_k - G_{k+1}, for biases that fall along the ladder; the last row stays.
    """

    def __call__(self, features: Tensor, /) -> Tensor:
        return features

    def gradient(self, gradient: LayerGradient) -> LayerGradient:
        weight, bias = gradient.weight.clone(), gradient.bias.clone()
        weight[:-1] -= gradient.weight[1:]
        bias[:-1] -= gradient.bias[1:]
        # An empty bin leaves the rounding of two equal sums, which would pass for an active row.
        noise = 64 * torch.finfo(bias.dtype).eps * gradient.bias.abs().amax()
        empty = bias.abs() <= noise
        weight[empty], bias[empty] = 0.0, 0.0
        return replace(gradient, weight=weight, bias=bias)

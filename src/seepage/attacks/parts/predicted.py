"""What an example must have sent: the bias gradient that a candidate read from a neuron would cause there.

If x alone activates neuron i, the server can predict the bias gradient it must have received:
G_b[i] = d_i(x, y) / n, where d_i(x, y) = sum_c (p_c - [c = y]) * dlogit_c/dz_i for the example's label y.
A mixture of examples fails this for every label but for a coincidence. dlogit_c/dz_i for all classes is one
directional derivative, batched over candidates, so all of it costs about three forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from seepage.federation import training_mode

CHUNK = 64
"""Candidates a pass: bounds the activations that are kept for the way back."""


def predicted_bias_gradients(
    model: nn.Module, layer: nn.Module, inputs: Tensor, rows: Tensor, *, loss: str
) -> Tensor:
    """(k, labels): d_i(x, y) of candidate k at its row, for every label y. Not divided by the batch size."""
    parts = []
    with training_mode(model, False):
        for x, i in zip(inputs.split(CHUNK), rows.split(CHUNK), strict=True):
            logits, slope = _slopes_at(model, layer, x, i)
            if loss == "binary_cross_entropy":
                residual = logits.sigmoid() - torch.tensor([0.0, 1.0]).to(logits)  # (k, 2)
                parts.append(residual * slope)
            else:
                expected = (logits.softmax(dim=1) * slope).sum(dim=1, keepdim=True)
                parts.append(expected - slope)  # (k, C): sum_c p_c t_c - t_y
    return torch.cat(parts)


def _slopes_at(model: nn.Module, layer: nn.Module, inputs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (k, C) and their derivatives (k, C) by the layer's output at one neuron, rows[k], of each input.

    J t for the tangent t = e_i, as the derivative by v of <J^T v, t>. Forward mode would do it in one pass,
    but it writes a zero tangent as large as each weight behind the layer.
    """
    with torch.enable_grad(), _tapped(layer) as outputs:
        logits = model(inputs)
        v = torch.zeros_like(logits, requires_grad=True)
        (back,) = torch.autograd.grad(
            logits, outputs[0], v, create_graph=True, allow_unused=True, materialize_grads=True
        )
        tangent = torch.zeros_like(back)
        tangent[torch.arange(len(rows)), rows] = 1.0
        if back.requires_grad:
            (slope,) = torch.autograd.grad(back, v, tangent, allow_unused=True, materialize_grads=True)
        else:  # the output does not depend on this layer
            slope = torch.zeros_like(logits)
    return logits.detach(), slope


@contextmanager
def _tapped(layer: nn.Module) -> Iterator[list[Tensor]]:
    """The layer's output, cut off from what comes before it."""
    outputs: list[Tensor] = []

    def tap(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1].clone()  # an in-place activation may follow, which a leaf does not allow

    handle = layer.register_forward_hook(tap)
    try:
        yield outputs
    finally:
        handle.remove()

"""How the backward signal of an example changes with what its layer puts out, as the server computes it.

d(z, y) = dloss/dz at the N outputs z of a layer; its derivative is the Hessian of the loss by z, of which
products with a few directions are enough. Outputs are put in *at the layer*: what stands before it runs on
one made-up input, which nothing behind the layer reads, and all in double precision.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from seepage.models.hooks import hooked
from seepage.models.probes import dummy_inputs
from seepage.models.signals import BackwardSignals, lacks_derivative
from seepage.protocol import LOSSES, training_mode


class SignalCurvature:
    """d(z, y) of one layer and its derivatives, in double precision.

    >>> from torch import nn
    >>> from seepage.core.types import InputSpec, Modality
    >>> from seepage.models.layers import trace_linear_layers
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.Identity())
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2)
    >>> signals = BackwardSignals(model, trace_linear_layers(model, spec)[0], spec, loss="cross_entropy")
    >>> d, moved = SignalCurvature(signals).at(torch.zeros(1, 2), 1, torch.eye(2))
    >>> d.tolist(), moved.tolist()  # p - y, and diag(p) - p p^T
    ([[0.5, -0.5]], [[[0.25, -0.25], [-0.25, 0.25]]])
    """

    def __init__(self, signals: BackwardSignals) -> None:
        self._of = signals.precisely()
        self._input = dummy_inputs(signals.spec, 1, like=self._of.model)

    def exists(self) -> bool:
        """Whether torch has the second derivatives of all that stands behind the layer."""
        try:
            at = self._of.parameters[1].new_zeros(1, self._of.rows)
            self.at(at, 0, torch.ones_like(at.T))
        except RuntimeError as error:
            if not lacks_derivative(error):
                raise
            return False
        return True

    def at(self, outputs: Tensor, label: int, directions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """d (k, N) at outputs (k, N), and its derivatives (k, N, q) along directions (N, q)."""
        leaf = outputs.detach().double().requires_grad_()
        signals, count = self._of, len(outputs)
        put_in = hooked({"": signals.layer}, after=lambda *_: leaf.clone())
        # Attention has no second derivative but by the plain formula.
        with torch.enable_grad(), training_mode(signals.model, False), sdpa_kernel(SDPBackend.MATH), put_in:
            labels = torch.full((count,), label, device=leaf.device)
            value = LOSSES[signals.loss](signals.model(self._input), labels)
            value = value if signals.loss.endswith("_sum") else value * count
            (d,) = torch.autograd.grad(value, leaf, create_graph=directions is not None)
        if directions is None or not d.requires_grad:
            size = 0 if directions is None else directions.shape[1]
            return d.detach(), leaf.new_zeros(count, leaf.shape[1], size)
        moved = [
            torch.autograd.grad(
                d, leaf, along.expand_as(d), retain_graph=True, allow_unused=True, materialize_grads=True
            )[0]
            for along in directions.to(leaf).T
        ]
        return d.detach(), torch.stack(moved, dim=2)

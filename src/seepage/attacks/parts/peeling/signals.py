"""The backward signal of an example at a layer, as the server computes it on its own copy of the model.

An example (h, y), h what the layer reads, adds d(h, y) ⊗ [h, 1] / n to the gradient of the layer's weight and
bias, where d = dloss/dz at the layer's N outputs. Candidates are fed in *at the layer*, so that nothing
before it needs to be inverted. If the logits depend on the input by another way too (a skip connection), the
prediction is wrong, no candidate is certified, and nothing false is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from seepage.attacks.parts.layers import LinearLayer, dummy_inputs, watching
from seepage.attacks.parts.precision import Precision, precision_of
from seepage.attacks.parts.predicted import CHUNK, predicted_bias_gradients
from seepage.federation import LOSSES, training_mode
from seepage.types import InputSpec

ROUNDING = 2e-6
"""Relative error of a backward signal (float32, several layers), against the example's typical signal."""


class BackwardSignals:
    """d(h, y) of one layer for any number of candidates.

    >>> from seepage.attacks.parts.layers import trace_linear_layers
    >>> from seepage.types import Modality
    >>> model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2)
    >>> signals = BackwardSignals(model, trace_linear_layers(model, spec)[0], spec, loss="cross_entropy")
    >>> h, y = torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
    >>> full = signals.at_all_rows(h, y)
    >>> torch.allclose(signals.at_one_row(h, torch.full((4,), 2)).gather(1, y[:, None])[:, 0], full[:, 2])
    True
    """

    def __init__(self, model: nn.Module, layer: LinearLayer, spec: InputSpec, *, loss: str) -> None:
        self.model = model
        self.layer = model.get_submodule(layer.name)
        weight = model.get_parameter(layer.weight).detach()
        bias = None if layer.bias is None else model.get_parameter(layer.bias).detach()
        self.parameters = (weight, weight.new_zeros(len(weight)) if bias is None else bias)
        """The layer's weight (N, m) and bias (N,), 0 where it has none."""
        self.rows = layer.out_features
        self.loss = loss
        self.spec = spec
        self.precision = precision_of(list(model.parameters()))
        """Of the weights, which clients compute in, whatever type the server holds them in."""
        coarser = self.precision.relative / Precision.of_type(torch.float32).relative
        self.rounding = ROUNDING * max(1.0, coarser)
        """Relative error of the signals."""

    def at_one_row(self, features: Tensor, rows: Tensor) -> Tensor:
        """(k, labels): the signal of candidate j at row rows[j], for every label it may have."""
        parts = []
        for h, i in zip(features.split(CHUNK), rows.split(CHUNK), strict=True):
            with self._fed(h):
                parts.append(
                    predicted_bias_gradients(self.model, self.layer, self._dummy(len(h)), i, loss=self.loss)
                )
        return torch.cat(parts)

    def at_all_rows(self, features: Tensor, labels: Tensor) -> Tensor:
        """(k, N): the signal of each candidate with its label at every row; one pass there and back."""
        parts = []
        with training_mode(self.model, False):
            for h, y in zip(features.split(CHUNK), labels.split(CHUNK), strict=True):
                parts.append(self._backward(h, y))
        return torch.cat(parts) if parts else features.new_zeros(0, self.rows)

    def _backward(self, features: Tensor, labels: Tensor) -> Tensor:
        tapped: list[Tensor] = []

        def tap(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
            tapped.append(output.detach().requires_grad_())
            return tapped[0].clone()  # an in-place activation may follow, which a leaf does not allow

        handle = self.layer.register_forward_hook(tap)
        try:
            with torch.enable_grad(), self._fed(features):
                value = LOSSES[self.loss](self.model(self._dummy(len(features))), labels)
                (signal,) = torch.autograd.grad(value, tapped[0], allow_unused=True, materialize_grads=True)
        finally:
            handle.remove()
        # The mean over k examples divides each one's signal by k.
        return (signal if self.loss.endswith("_sum") else signal * len(features)).to(features)

    def _dummy(self, count: int) -> Tensor:
        return dummy_inputs(self.spec, count, like=self.model)

    @contextmanager
    def _fed(self, features: Tensor) -> Iterator[None]:
        """Let the layer read `features`, whatever the model was given."""
        read = features.to(self.parameters[0].dtype)
        handle = self.layer.register_forward_pre_hook(lambda _module, _args: (read,))
        try:
            yield
        finally:
            handle.remove()


def layer_reads(model: nn.Module, layer: LinearLayer, inputs: Tensor) -> Tensor:
    """(k, m): what reaches the layer when the model is fed `inputs`."""
    with torch.no_grad(), training_mode(model, False), watching(model, layer.name) as seen:
        for chunk in inputs.split(CHUNK):
            model(chunk)
    return torch.cat(seen).flatten(1)

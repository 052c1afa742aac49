"""The backward signal of an example at a layer, as the server computes it on its own copy of the model.

An example (h, y), h what the layer reads, adds d(h, y) ⊗ [h, 1] / n to the gradient of the layer's weight and
bias, where d = dloss/dz at the layer's N outputs. Candidates are fed in *at the layer*, so that nothing
before it needs to be inverted, nor to be run where what follows the layer can be run alone (`behind`); where
the layer reads the model's own input, the model is given them as well.
Elsewhere, if the logits depend on the input by another way too (a skip connection), the prediction is wrong,
no candidate is certified, and nothing false is claimed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from seepage.core.types import InputSpec, LocalTraining
from seepage.models.behind import names_behind, run_behind
from seepage.models.hooks import CHUNK, fed, tapped
from seepage.models.layers import LinearLayer
from seepage.models.precision import Precision, precision_of
from seepage.models.probes import dummy_inputs
from seepage.protocol import LOSSES, training_mode
from seepage.protocol.losses import OF_NUMBERS

ROUNDING = 2e-6
"""Relative error of a backward signal, against the example's typical signal. Derived: thirty roundings of
float32, 6e-8 each, in the layers behind."""


class BackwardSignals:
    """d(h, y) of one layer for any number of candidates.

    >>> from seepage.models.layers import trace_linear_layers
    >>> from seepage.core.types import Modality
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2)
    >>> signals = BackwardSignals(model, trace_linear_layers(model, spec)[0], spec, loss="cross_entropy")
    >>> h, y = torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
    >>> full = signals.at_all_rows(h, y)
    >>> torch.allclose(signals.at_one_row(h, torch.full((4,), 2)).gather(1, y[:, None])[:, 0], full[:, 2])
    True
    """

    def __init__(
        self,
        model: nn.Module,
        layer: LinearLayer,
        spec: InputSpec,
        *,
        loss: str,
        behind: tuple[str, ...] | None = None,
    ) -> None:
        self.model = model
        self.of = layer
        self.layer = model.get_submodule(layer.name)
        weight = model.get_parameter(layer.weight).detach()
        bias = None if layer.bias is None else model.get_parameter(layer.bias).detach()
        self.parameters = (weight, weight.new_zeros(len(weight)) if bias is None else bias)
        """The layer's weight (N, m) and bias (N,), 0 where it has none."""
        self.rows = layer.out_features
        self._reads_input = layer.reads == "input"
        self._behind = behind if behind is not None or self._reads_input else names_behind(model, layer, spec)
        self.loss = loss
        self.spec = spec
        self.precision = precision_of(list(model.parameters()))
        """Of the weights, which clients compute in, whatever type the server holds them in."""
        coarser = self.precision.relative / Precision.of_type(torch.float32).relative
        self.rounding = ROUNDING * max(1.0, coarser)
        """Relative error of the signals."""

    def precisely(self) -> BackwardSignals:
        """The same in double precision, on a copy of the model."""
        double = copy.deepcopy(self.model).double()
        return BackwardSignals(double, self.of, self.spec, loss=self.loss, behind=self._behind)

    def at_one_row(self, features: Tensor, rows: Tensor) -> Tensor:
        """(k, labels): the signal of candidate j at row rows[j], for every label it may have."""
        parts = []
        for h, i in zip(features.split(CHUNK), rows.split(CHUNK), strict=True):
            read = h.to(self.parameters[0].dtype)
            with fed(self.layer, read), training_mode(self.model, False):
                parts.append(predicted_bias_gradients(self._run, self.layer, read, i, loss=self.loss))
        return torch.cat(parts)

    def at_all_rows(self, features: Tensor, labels: Tensor) -> Tensor:
        """(k, N): the signal of each candidate with its label at every row; one pass there and back.

        Where targets are numbers, labels (k, outputs) are what the loss sends back to each output.
        """
        if not len(features):
            return features.new_zeros(0, self.rows)
        parts = []
        with training_mode(self.model, False):
            for h, y in zip(features.split(CHUNK), labels.split(CHUNK), strict=True):
                parts.append(self._backward(h, y))
        return torch.cat(parts)

    def _backward(self, features: Tensor, labels: Tensor) -> Tensor:
        read = features.to(self.parameters[0].dtype)
        with torch.enable_grad(), tapped(self.layer) as outputs, fed(self.layer, read):
            output = self._run(read)
            sent = self.loss in OF_NUMBERS
            value = (output * labels.to(output)).sum() if sent else LOSSES[self.loss](output, labels)
            if not outputs:  # a branch that these examples do not take
                return features.new_zeros(len(features), self.rows)
            (signal,) = torch.autograd.grad(value, outputs[0], allow_unused=True, materialize_grads=True)
        # The mean over k examples divides each one's signal by k.
        return (signal if sent or self.loss.endswith("_sum") else signal * len(features)).to(features)

    def _run(self, read: Tensor) -> Tensor:
        """The model's output while the layer reads this (k, m)."""
        if self._reads_input:
            output: Tensor = self.model(read.reshape(-1, *self.spec.shape))
        elif self._behind is not None:
            output = run_behind(self.model, self._behind, self.layer(read))
        else:
            output = self.model(dummy_inputs(self.spec, len(read), like=self.model))
        return output


def draws_chances(model: nn.Module, local: LocalTraining | None) -> bool:
    """Whether clients compute with dropout masks or batch statistics, which no server can foretell.

    >>> draws_chances(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), LocalTraining(batch_norm="train"))
    True
    """
    if local is None or local.batch_norm != "train":
        return False
    return any(
        isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)
        for module in model.modules()
    )


def predicted_bias_gradients(
    run: Callable[[Tensor], Tensor], layer: nn.Module, inputs: Tensor, rows: Tensor, *, loss: str
) -> Tensor:
    """(k, labels): d_i(x, y) of candidate k at its row, for every label y. Not divided by the batch size.

    d_i(x, y) = sum_c (p_c - [c = y]) * dlogit_c/dz_i. dlogit_c/dz_i for all classes is one directional
    derivative, batched over candidates, so all of it costs about three forward passes of `run`, the model in
    eval mode.
    """
    logits, slope = _slopes_at(run, layer, inputs, rows)
    if loss == "binary_cross_entropy":
        residual = logits.sigmoid() - torch.tensor([0.0, 1.0]).to(logits)  # (k, 2)
        return residual * slope
    expected = (logits.softmax(dim=1) * slope).sum(dim=1, keepdim=True)
    return expected - slope  # (k, C): sum_c p_c t_c - t_y


def _slopes_at(
    run: Callable[[Tensor], Tensor], layer: nn.Module, inputs: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits (k, C) and their derivatives (k, C) by the layer's output at one neuron, rows[k], of each input.

    J t for the tangent t = e_i, as the derivative by v of <J^T v, t>. Forward mode would do it in one pass,
    but it writes a zero tangent as large as each weight behind the layer.
    """
    with torch.enable_grad(), tapped(layer) as outputs:
        logits = run(inputs)
        if not outputs:  # a branch that these examples do not take
            return logits.detach(), torch.zeros_like(logits)
        v = torch.zeros_like(logits, requires_grad=True)
        (back,) = torch.autograd.grad(
            logits, outputs[0], v, create_graph=True, allow_unused=True, materialize_grads=True
        )
        tangent = torch.zeros_like(back)
        tangent[torch.arange(len(rows)), rows] = 1.0
        if not back.requires_grad:  # the output does not depend on this layer
            return logits.detach(), torch.zeros_like(logits)
        try:
            (slope,) = torch.autograd.grad(back, v, tangent, allow_unused=True, materialize_grads=True)
        except RuntimeError as error:
            if not lacks_derivative(error):
                raise
            slope = _one_by_one(logits, outputs[0], rows)
    return logits.detach(), slope


def lacks_derivative(error: RuntimeError) -> bool:
    """Whether torch gave up for want of a second derivative, as of nn.Hardsigmoid."""
    return "is not implemented" in str(error)


def _one_by_one(logits: Tensor, output: Tensor, rows: Tensor) -> Tensor:
    """The same slopes, a pass for each logit, without a second derivative."""
    at = torch.arange(len(rows))
    slopes = []
    for logit in logits.unbind(1):
        (back,) = torch.autograd.grad(logit.sum(), output, retain_graph=True)
        slopes.append(back[at, rows])
    return torch.stack(slopes, dim=1)

"""Passive extraction from a linear layer (Geiping et al. 2020, Prop. 3.1; Boenisch et al. 2021, Section 5).

For one example, every row of a biased linear layer's gradient is the layer's input times a number, and the
bias gradient is that number. For a mini-batch this still holds for each neuron that exactly one example
activates. No optimisation, no crafted weights, no knowledge of the labels.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.parts.bias_free import choose_bias_free, read_bias_free
from seepage.attacks.parts.crafting.routes import Decode
from seepage.attacks.parts.labels import infer_label_counts
from seepage.attacks.parts.layers import FROZEN, LinearLayer, trace_linear_layers
from seepage.attacks.parts.plain import plain_readings
from seepage.errors import NotApplicable
from seepage.registry import unknown
from seepage.types import Exchange, InputSpec, Knowledge, Reconstruction


class AnalyticExtraction(PerUpdateAttack):
    """Divide weight-gradient rows by bias gradients and keep what can be an individual example.

    >>> import torch
    >>> from seepage.federation import local_update
    >>> from seepage.types import Batch, Broadcast, LocalTraining, Modality
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=3)
    >>> secret = Batch(torch.rand(1, 1, 2, 2), torch.tensor([2]))
    >>> sent = local_update(Broadcast(model), secret, LocalTraining())
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> found = AnalyticExtraction().run([seen], Knowledge(input=spec))
    >>> len(found), torch.allclose(found.values, secret.inputs, atol=1e-5)
    (1, True)
    """

    def __init__(self, *, layer: str | None = None) -> None:
        self.layer = layer

    def check(self, model: nn.Module, known: Knowledge) -> None:
        if choose_bias_free(model, known.input, self.layer) is None:
            choose_layer(model, known.input, self.layer)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        bias_free = choose_bias_free(exchange.broadcast.model, known.input, self.layer)
        if bias_free is not None:
            return with_labels(read_bias_free(exchange, known, bias_free), exchange, known)
        layer = choose_layer(exchange.broadcast.model, known.input, self.layer)
        return read_layer(exchange, known, layer)


def read_layer(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    *,
    decode: Decode | None = None,
    rows_only: bool = False,
) -> Reconstruction:
    """Everything that single rows of one layer's gradient show, and the labels.

    decode: undoes what crafted layers did to the input on its way to `layer`; afterwards the layer reads
    as if it saw the model's input itself.
    rows_only: neither vouch for candidates nor infer labels, which take longer than the reading itself;
    texts are looked up exactly, row by row as in the paper, and mixtures are not read as their nearest
    tokens.
    """
    read = plain_readings(exchange, known, layer, decode=decode, rows_only=rows_only)
    if rows_only:
        return read
    return with_labels(read, exchange, known)


def with_labels(read: Reconstruction, exchange: Exchange, known: Knowledge) -> Reconstruction:
    """A reading with the label counts that the last layer shows, as far as it does."""
    counts, label_note = _label_counts(exchange, known)
    return replace(read, label_counts=counts).with_notes(*label_note)


def analytic_extraction(*, layer: str | None = None) -> AnalyticExtraction:
    """Passive, exact: reads inputs (or features) straight from a linear layer's gradient, no optimisation.

    layer: name of the linear layer to read; by default the first one that reads the model's input, else
    the first one there is.
    """
    return AnalyticExtraction(layer=layer)


def choose_layer(model: nn.Module, spec: InputSpec, name: str | None) -> LinearLayer:
    """The layer to read, or NotApplicable with the reason."""
    layers = trace_linear_layers(model, spec)
    if name is not None:
        named = [layer for layer in layers if layer.name == name]
        if not named:
            raise NotApplicable(unknown("linear layer", name, [layer.name for layer in layers]))
        if why := _unsuitable(named[0]):
            raise NotApplicable(f"layer '{name}' {why}: name another layer, or none to have one chosen.")
        return named[0]
    suitable = [layer for layer in layers if not _unsuitable(layer)]
    if not suitable:
        first = next((type(m).__name__ for m in model.modules() if not list(m.children())), "nothing")
        reasons = "; ".join(f"'{layer.name}' {_unsuitable(layer)}" for layer in layers[:2])
        raise NotApplicable(
            f"the model begins with {first} and has no linear layer to read ({reasons or 'none at all'}): "
            "try an attack that optimises, or one that crafts weights."
        )
    return min(suitable, key=lambda layer: (layer.reads == "features", layer.index))


def _unsuitable(layer: LinearLayer) -> str:
    if layer.bias is None:
        return "has no bias, so nothing says by what to divide its rows"
    if not layer.per_example:
        return "is applied at several positions of one example, whose gradients are summed"
    if not layer.trained:
        return FROZEN
    return ""


def _label_counts(exchange: Exchange, known: Knowledge) -> tuple[Tensor | None, tuple[str, ...]]:
    try:
        estimate = infer_label_counts(exchange, known)
    except NotApplicable as reason:
        return None, (f"Labels were not inferred: {reason}",)
    return estimate.counts, (f"Labels were inferred by {estimate.method}.", *estimate.notes)

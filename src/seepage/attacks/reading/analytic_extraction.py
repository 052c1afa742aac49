"""Passive extraction from a linear layer (Geiping et al. 2020, Prop. 3.1; Boenisch et al. 2021, Section 5).

For one example, every row of a biased linear layer's gradient is the layer's input times a number, and the
bias gradient is that number. For a mini-batch this still holds for each neuron that exactly one example
activates. No optimisation, no crafted weights, no knowledge of the labels.
"""

from __future__ import annotations

from dataclasses import replace

from seepage.attacks.reading.bias_free import choose_bias_free, read_bias_free
from seepage.attacks.reading.one_layer import LayerAttack
from seepage.attacks.reading.plain import plain_readings
from seepage.attacks.reading.union import read_each
from seepage.core.types import Exchange, Knowledge, Reconstruction
from seepage.labels import counts_if_inferred
from seepage.models.choice import layers_to_read
from seepage.models.gradients import Decode
from seepage.models.layers import LinearLayer


class AnalyticExtraction(LayerAttack):
    """Divide weight-gradient rows by bias gradients and keep what can be an individual example.

    >>> import torch
    >>> from torch import nn
    >>> from seepage.protocol import local_update
    >>> from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining, Modality
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=3)
    >>> secret = Batch(torch.rand(1, 1, 2, 2), torch.tensor([2]))
    >>> sent = local_update(Broadcast(model), secret, LocalTraining())
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> found = AnalyticExtraction().run([seen], Knowledge(input=spec))
    >>> len(found), torch.allclose(found.values, secret.inputs, atol=1e-5)
    (1, True)
    """

    def __init__(self, *, layer: str | None = None, bare: bool = False) -> None:
        self.layer, self.bare = layer, bare

    def read(self, exchange: Exchange, known: Knowledge, layer: str | None) -> Reconstruction:
        bias_free = choose_bias_free(exchange.broadcast.model, known.input, layer)
        if bias_free is not None:
            return with_labels(read_bias_free(exchange, known, bias_free), exchange, known)
        layers = layers_to_read(exchange.broadcast.model, known.input, layer)
        if self.bare:
            return read_bare(exchange, known, layers[0])
        return read_each(layers, lambda one: read_layer(exchange, known, one), exchange, known.input)


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


def read_bare(
    exchange: Exchange, known: Knowledge, layer: LinearLayer, *, decode: Decode | None = None
) -> Reconstruction:
    """`read_layer` with rows_only, as the papers read."""
    return read_layer(exchange, known, layer, decode=decode, rows_only=True)


def with_labels(read: Reconstruction, exchange: Exchange, known: Knowledge) -> Reconstruction:
    """A reading with the label counts that the last layer shows, as far as it does."""
    counts, notes = counts_if_inferred(exchange, known)
    return replace(read, label_counts=counts).with_notes(*notes)


def analytic_extraction(*, layer: str | None = None, bare: bool = False) -> AnalyticExtraction:
    """Passive, exact: reads inputs (or features) straight from a linear layer's gradient, no optimisation.

    layer: name of the linear layer to read; by default all that read the model's input, else the first one
    there is.
    bare: neither infer labels nor vouch for anything, and look texts up row by row, as the papers do.
    """
    return AnalyticExtraction(layer=layer, bare=bare)

"""What attacks that read one dense layer share: a convolution that covers its input is one as well."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from torch import nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.reading.bias_free import choose_bias_free
from seepage.core.types import Exchange, Knowledge, Reconstruction
from seepage.models.choice import choose_layer
from seepage.models.covering import as_dense


class LayerAttack(PerUpdateAttack):
    """Reads one layer of each update."""

    layer: str | None
    """The one to read; None: it is chosen."""

    @abstractmethod
    def read(self, exchange: Exchange, known: Knowledge, layer: str | None) -> Reconstruction:
        """Candidates from one update of a model whose dense layers are all nn.Linear."""

    def check(self, model: nn.Module, known: Knowledge) -> None:
        dense = as_dense(model, known.input)
        layer = dense.layer(self.layer)
        if choose_bias_free(dense.model, known.input, layer) is None:
            choose_layer(dense.model, known.input, layer)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        dense = as_dense(exchange.broadcast.model, known.input)
        found = self.read(dense.exchange(exchange), known, dense.layer(self.layer))
        return replace(found, space=dense.space(found.space))

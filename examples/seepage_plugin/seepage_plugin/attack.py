"""An attack in one method: the base class validates what comes in and what goes out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seepage.attacks import Attack
from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge, Reconstruction


class LargestRow(Attack):
    """Reads one picture from each update: the row of the first dense layer with the largest bias gradient.

    For one example, the weight gradient of a dense layer is g x^T and that of its bias is g, so that a row
    divided by its bias entry is the input x.
    """

    def __init__(self, *, least: float = 1e-12) -> None:
        self.least = least
        """Bias gradients below this are not divided by."""

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        pictures, source = [], []
        for number, exchange in enumerate(exchanges):
            tensors = exchange.update.tensors
            name = next((n for n, t in tensors.items() if t.dim() == 2 and f"{n[:-6]}bias" in tensors), None)
            if name is None:
                raise NotApplicable("the model has no dense layer with a bias: use another attack.")
            weight, bias = tensors[name], tensors[f"{name[:-6]}bias"]  # (out, in), (out,)
            row = bias.abs().argmax()
            if bias[row].abs() > self.least:
                pictures.append((weight[row] / bias[row]).reshape(known.input.shape))
                source.append(number)
        values = torch.stack(pictures) if pictures else torch.zeros(0, *known.input.shape)
        return Reconstruction(
            values=known.input.to_raw(values), source=torch.tensor(source, dtype=torch.long)
        )

"""A model's dense layers as matrices [G_w | G_b], and what the value range says about their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.types import Exchange, Knowledge, Modality, UpdateKind
from seepage.models.layers import LinearLayer, trace_linear_layers

NEARLY = 0.05
"""Root mean square, as a share of the value range, by which what was restored may miss the range. Tested:
test_constants_of_adaptive_lie_on_a_plateau."""
_ROUNDING = 1e-4
"""The same for what was not restored. Tested: test_constants_of_adaptive_lie_on_a_plateau."""
_MOST_IN_DOUBLE = 4_000_000
"""Entries of a matrix that is kept in double precision. Cost: 32 MB."""


@dataclass(frozen=True)
class Dense:
    """One dense layer whose gradient has at most `rank` independent rows."""

    layer: LinearLayer
    matrix: Tensor
    """(N, m + 1), the bias last; (N, m) without one."""
    rank: int

    @property
    def weight(self) -> Tensor:
        return self.matrix[:, : self.layer.in_features]

    @property
    def bias(self) -> Tensor | None:
        return None if self.layer.bias is None else self.matrix[:, -1]

    def by_tensor(self, weight: float, bias: float) -> Tensor:
        """(m + 1,) one number for the columns of the weight and another for the bias."""
        numbers = self.matrix.new_full((self.matrix.shape[1],), weight)
        if self.layer.bias is not None:
            numbers[-1] = bias
        return numbers


def dense_layers(exchange: Exchange, known: Knowledge) -> Iterator[Dense]:
    """Layers worth reading in which the number of examples bounds the rank, with room to gain from it.

    Readers take the layer that sees the input, or the first; a server that crafted one reads that.
    """
    examples = exchange.update.num_examples
    if examples is None:
        return
    several = _several_steps(exchange, known)
    layers = trace_linear_layers(exchange.broadcast.model, known.input)
    crafted = getattr(exchange.secret, "layer", None)
    for layer in layers:
        if not (layer.index == 0 or layer.reads == "input" or layer.name == crafted):
            continue
        # After the first local step inner features have moved: their rows span more than n directions.
        if not layer.per_example or (several and layer.reads != "input"):
            continue
        if 2 * examples >= min(layer.in_features, layer.out_features):
            continue
        parts = [exchange.update.tensors[layer.weight].detach()]
        if layer.bias is not None:
            parts.append(exchange.update.tensors[layer.bias].detach().unsqueeze(1))
        matrix = torch.cat(parts, dim=1)
        yield Dense(layer, matrix.double() if matrix.numel() <= _MOST_IN_DOUBLE else matrix, examples)


def _several_steps(exchange: Exchange, known: Knowledge) -> bool:
    if exchange.update.kind is UpdateKind.GRADIENT:
        return False
    each = max(1, (exchange.update.num_examples or 1) // len(exchange.clients))
    return known.local is None or known.local.num_steps(each) > 1


def written_back(dense: Dense, matrix: Tensor, exchange: Exchange, known: Knowledge) -> dict[str, Tensor]:
    """The layer's tensors, rows that are nearly inside the value range moved into it."""
    like = exchange.update.tensors[dense.layer.weight]
    width = dense.layer.in_features
    if dense.layer.bias is None:
        return {dense.layer.weight: matrix[:, :width].to(like)}
    weight, bias = into_range(matrix[:, :width], matrix[:, -1], dense.layer, known)
    return {dense.layer.weight: weight.to(like), dense.layer.bias: bias.to(like)}


def as_it_is(dense: Dense, matrix: Tensor, exchange: Exchange, known: Knowledge) -> dict[str, Tensor]:
    """The layer's tensors and nothing moved: for what is exact in the entries that arrived."""
    like = exchange.update.tensors[dense.layer.weight]
    found = {dense.layer.weight: matrix[:, : dense.layer.in_features].to(like)}
    return found if dense.layer.bias is None else {**found, dense.layer.bias: matrix[:, -1].to(like)}


def into_range(weight: Tensor, bias: Tensor, layer: LinearLayer, known: Knowledge) -> tuple[Tensor, Tensor]:
    """What is left of a defense carries true examples a little out of the range, and readers drop them."""
    if not _has_range(layer, known):
        return weight, bias
    rows = (bias != 0).nonzero().squeeze(1)
    inside, missed = _nearest_inputs(weight[rows] / bias[rows].unsqueeze(1), known)
    near = missed <= NEARLY
    moved = inside[near] * bias[rows[near]].unsqueeze(1)
    return weight.index_copy(0, rows[near], moved), bias


def can_be_inputs(weight: Tensor, bias: Tensor, layer: LinearLayer, known: Knowledge) -> Tensor:
    """(N,) bool: rows whose quotient lies inside the value range; all readable ones where there is none."""
    readable = bias != 0
    if not _has_range(layer, known):
        return readable
    rows = readable.nonzero().squeeze(1)
    _, missed = _nearest_inputs(weight[rows] / bias[rows].unsqueeze(1), known)
    return readable.index_copy(0, rows, missed <= _ROUNDING)


def _has_range(layer: LinearLayer, known: Knowledge) -> bool:
    told = known.input.value_range is not None and not known.normalised
    return told and layer.reads == "input" and known.input.modality is not Modality.TEXT


def _nearest_inputs(values: Tensor, known: Knowledge) -> tuple[Tensor, Tensor]:
    """(k, m) model values moved into the range, and (k,) by how much of it (root mean square)."""
    spec = known.input
    assert spec.value_range is not None
    low, high = spec.value_range
    raw = spec.to_raw(values.reshape(-1, *spec.shape))
    inside = raw.clamp(low, high)
    missed = (raw - inside).flatten(1).square().mean(dim=1).sqrt() / (high - low)
    return spec.to_model(inside).flatten(1), missed

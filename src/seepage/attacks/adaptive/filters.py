"""Undoing what the stock filters of NVIDIA FLARE and the mods of Flower did, as far as it can be undone."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.adaptive.bias import bias_from_range
from seepage.attacks.adaptive.dense import Dense, as_it_is, dense_layers
from seepage.attacks.adaptive.factor import undo_clipping
from seepage.attacks.adaptive.low_rank import complete, truncate
from seepage.attacks.adaptive.restore import (
    Restore,
    Restored,
    Settings,
    each_layer,
    fill_pruned,
    nothing,
    remove_noise,
    smallest,
    values_of_signs,
    within,
)
from seepage.core.types import Exchange, Knowledge
from seepage.models.layers import LinearLayer, trace_linear_layers

_FITS = 1e-5
"""Share of a matrix, by norm, that its rank may leave over when nothing was done to it. Derived: a hundred
last digits of float32."""
_SOME = 0.01
"""Share of zeros in rows that are not empty from which entries seem to be missing. Tested:
test_the_general_answer_is_chosen_alike_around_its_constants."""


def undo_clipping_mod(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """Flower's fixed and adaptive clipping: `clipping` with the norm that the server sent."""
    return undo_clipping(exchange, known, {"norm": settings.get("clipping_norm")})


def undo_local_dp(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """`LocalDpMod`: noise over clipping. What is left of the update's norm without the noise says whether
    anything was clipped at all."""
    sent = exchange.update.tensors
    sigma = local_dp_sigma(settings)
    numbers = sum(t.numel() for t in sent.values())
    square = sum(float(t.detach().double().square().sum()) for t in sent.values())
    # chi-square: the noise's own squared norm is known to about sqrt(2 / numbers)
    doubt = 4 * sigma**2 * math.sqrt(2 * numbers)
    signal = max(0.0, square - numbers * sigma**2 - doubt)
    cleaned, notes = remove_noise(exchange, known, settings)
    bound = float(settings["clipping_norm"])
    if math.sqrt(signal) < 0.9 * bound:
        return cleaned, (*notes, "Its norm without the noise is below the bound: nothing was clipped.")
    update = replace(exchange.update, tensors={**sent, **cleaned})
    scaled, told = undo_clipping(replace(exchange, update=update), known, {})
    return {**cleaned, **scaled}, (*notes, *told)


def local_dp_sigma(settings: Settings) -> float:
    """The noise's standard deviation by Flower's formula, from public settings.

    >>> round(local_dp_sigma({"sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}), 3)
    4.845
    """
    per_unit = math.sqrt(2 * math.log(1.25 / float(settings["delta"])))
    return float(settings["sensitivity"]) * per_unit / float(settings["epsilon"])


def undo_percentile(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """`PercentilePrivacy`: zeros stand for entries below the smallest one that was sent, and entries at gamma
    for larger ones of that sign; those between are exact. The layer's rank says which."""
    if settings.get("sends") == "weights":
        return {}, ("Knowing the defense did not help: it cut off the weights, not their change.",)
    steps = 1
    if known.local is not None and exchange.update.num_examples is not None:
        steps = known.local.num_steps(max(1, exchange.update.num_examples // len(exchange.clients)))
    largest = float(settings.get("gamma", 0.01)) * steps
    below = min(smallest(t.detach()) for t in exchange.update.tensors.values())

    def fill(dense: Dense) -> Tensor:
        sent = dense.matrix
        # a row of zeros is a neuron that no example activated
        empty, cut = (sent == 0) & (sent != 0).any(dim=1, keepdim=True), sent.abs() >= largest * (1 - 1e-6)
        limit = sent.new_full((sent.shape[1],), below)

        def possible(z: Tensor) -> Tensor:
            beyond = sent.sign() * torch.maximum(sent.sign() * z, sent.abs())
            return torch.where(empty, within(z, limit), torch.where(cut, beyond, sent))

        return possible(complete(sent, dense.rank, possible))

    what = "entries that were dropped or cut off were filled in by the rank"
    return each_layer(exchange, known, fill, what, write=as_it_is)


def undo_excluded(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """`ExcludeVars`: a bias that stayed at home is estimated; weights that did are gone."""
    layers = trace_linear_layers(exchange.broadcast.model, known.input)
    excluded = _excluded(list(exchange.update.tensors), settings)
    hidden = [one for one in layers if one.bias in excluded and one.weight not in excluded]
    if not hidden:
        return {}, ()
    return bias_from_range(exchange, known, {"layer": hidden[0].name})


def excluded_layers(layers: Sequence[LinearLayer], settings: Settings) -> set[str]:
    """Dense layers whose weights stay at home."""
    excluded = _excluded([one.weight for one in layers], settings)
    return {layer.name for layer in layers if layer.weight in excluded}


def _excluded(names: Sequence[str], settings: Settings) -> set[str]:
    """A list has names, a text is a regular expression (FLARE's rule)."""
    wanted = settings.get("exclude_vars")
    if isinstance(wanted, str) and wanted:
        return {name for name in names if re.search(wanted, name)}
    return set(names) & set(wanted) if isinstance(wanted, list | tuple) else set()


def by_what_arrived(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """The general answer to a filter that nobody here knows: signs, missing entries or noise are undone, by
    whichever the dense layers show; nothing where their rank is as it should be."""
    for dense in dense_layers(exchange, known):
        return _general(dense)(exchange, known, settings)
    return {}, ()


def _general(dense: Dense) -> Restore:
    matrix = dense.matrix
    _, values, _ = truncate(matrix, dense.rank)
    left_over = float((matrix.square().sum() - values.square().sum()).clamp_min(0)) ** 0.5
    if left_over <= _FITS * float(matrix.norm()):
        return nothing
    sizes = dense.weight.abs()
    if len(sizes[sizes > 0].unique()) <= 1:
        return values_of_signs
    inside = matrix[(matrix != 0).any(dim=1)]
    return fill_pruned if float((inside == 0).double().mean()) > _SOME else remove_noise

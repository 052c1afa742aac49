"""Undoing what a known defense did to an update, as far as it can be undone. One function a defense.

Each takes what the server saw and the defense's public settings, and returns the tensors that changed with
one sentence on what was done. None of them sees an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.adaptive.counts import whole_class_counts
from seepage.attacks.adaptive.dense import Dense, dense_layers, written_back
from seepage.attacks.adaptive.low_rank import complete, filter_noise
from seepage.core.types import Exchange, Knowledge

Settings = Mapping[str, Any]
Restored = tuple[dict[str, Tensor], tuple[str, ...]]
Restore = Callable[[Exchange, Knowledge, Settings], Restored]


def each_layer(
    exchange: Exchange,
    known: Knowledge,
    how: Callable[[Dense], Tensor],
    what: str,
    *,
    write: Callable[[Dense, Tensor, Exchange, Knowledge], dict[str, Tensor]] = written_back,
) -> Restored:
    """Restore every dense layer whose rank is bounded by the number of examples."""
    tensors: dict[str, Tensor] = {}
    names = []
    for dense in dense_layers(exchange, known):
        tensors |= write(dense, how(dense), exchange, known)
        names.append(dense.layer.name)
    if not names:
        return {}, (
            f"Knowing the defense did not help to read rows: {what} needs the number of examples, and a "
            "dense layer more than twice as wide as it on both sides.",
        )
    listed = ", ".join(f"'{name}'" for name in names)
    return tensors, (f"Knowing the defense: {what} in layer(s) {listed}.",)


def fill_pruned(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """Zeros stand for entries below the smallest one that was sent; the layer's rank says which."""

    def fill(dense: Dense) -> Tensor:
        sent = dense.matrix
        kept = sent != 0
        limits = dense.by_tensor(smallest(dense.weight), smallest(dense.bias))
        return torch.where(
            kept, sent, complete(sent, dense.rank, lambda z: torch.where(kept, sent, within(z, limits)))
        )

    return each_layer(exchange, known, fill, "pruned entries were filled in so that the rank fits")


def smallest(sent: Tensor | None) -> float:
    """Of the entries that were sent: a pruned one is no larger."""
    if sent is None or not bool((sent != 0).any()):
        return float("inf")
    return float(sent[sent != 0].abs().min())


def within(values: Tensor, limits: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(values, -limits), limits)


def undo_rounding(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """Every entry lies within half a level of what was sent."""
    levels = 2 ** (int(settings.get("bits", 8)) - 1) - 1

    def refine(dense: Dense) -> Tensor:
        sent = dense.matrix
        half = dense.by_tensor(_largest(dense.weight) / levels / 2, _largest(dense.bias) / levels / 2)
        return complete(sent, dense.rank, lambda z: sent + within(z - sent, half))

    tensors, notes = each_layer(
        exchange, known, refine, "entries were moved within their rounding to fit the rank"
    )
    return {**tensors, **whole_class_counts(exchange, known)}, notes


def _largest(sent: Tensor | None) -> float:
    return 0.0 if sent is None else float(sent.abs().max())


def values_of_signs(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """Signs of a low-rank matrix, with one mean magnitude a tensor, leave few matrices to choose from."""

    def guess(dense: Dense) -> Tensor:
        signs = dense.matrix.sign()
        means = [_largest(dense.weight) * float((dense.weight != 0).double().mean())]
        if dense.bias is not None:
            means.append(_largest(dense.bias) * float((dense.bias != 0).double().mean()))

        def same_signs(z: Tensor) -> Tensor:
            return _scaled(signs * (signs * z).clamp_min(0), dense, means)

        return _scaled(complete(dense.matrix, dense.rank, same_signs), dense, means)

    return each_layer(exchange, known, guess, "magnitudes were guessed so that signs and rank fit")


def _scaled(matrix: Tensor, dense: Dense, means: list[float]) -> Tensor:
    """Each tensor with the mean magnitude that was sent."""
    width = dense.layer.in_features
    parts = []
    for part, mean in zip((matrix[:, :width], matrix[:, width:]), means, strict=False):
        now = float(part.abs().mean())
        parts.append(part * (mean / now) if now > 0 else part)
    return torch.cat(parts, dim=1)


def remove_noise(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """Equal noise on all entries has full rank; the part of rank n is kept, shrunk as it should be."""
    found: list[float] = []

    def clean(dense: Dense) -> Tensor:
        filtered, sigma = filter_noise(dense.matrix, dense.rank)
        found.append(sigma)
        return filtered

    tensors, notes = each_layer(exchange, known, clean, "noise was filtered by the rank")
    if found:
        notes += (f"Its standard deviation was estimated as {found[0]:.3g}.",)
    return {**tensors, **whole_class_counts(exchange, known)}, notes


def nothing(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """The update is read as it is; only the matching changes."""
    return {}, ()

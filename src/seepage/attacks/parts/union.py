"""Candidates that are the same example, within one reading and between two."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.parts.precision import EXACT
from seepage.attacks.parts.rows import rows_once
from seepage.types import INPUT_SPACE, InputSpec, Reconstruction

_SAME = 1e-6
"""Candidates that nobody vouches for are the same if they differ by no more than this share of the range."""
_MOST_VALUES = 1 << 24
"""Differences held at a time."""


def value_unit(values: Tensor, space: str, spec: InputSpec, *, model_units: bool = False) -> float:
    """Range of candidates' values: that of the data where it is known, else their own."""
    if space == INPUT_SPACE and spec.value_range is not None and not model_units:
        return spec.value_range[1] - spec.value_range[0]
    return float(values.abs().max()) if len(values) else 1.0


def near(some: Tensor, others: Tensor, tolerance: float) -> Tensor:
    """(a, b) bool: no value of candidate a differs from candidate b's by more than the tolerance.

    >>> near(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0005], [0.0, 1.1]]), 1e-3).tolist()
    [[True, False]]
    """
    a, b = some.flatten(1), others.flatten(1)
    found = torch.zeros(len(a), len(b), dtype=torch.bool, device=a.device)
    if a.shape[1] == 0 or not len(b):
        return found
    each = max(1, _MOST_VALUES // (len(b) * a.shape[1]))
    for at in torch.arange(len(a), device=a.device).split(each):
        found[at] = (a[at].unsqueeze(1) - b.unsqueeze(0)).abs().amax(2) <= tolerance
    return found


def merge_claims(result: Reconstruction, spec: InputSpec) -> Reconstruction:
    """Each claimed example once, with the support of all its readings: claims are about distinct examples."""
    if result.claimed is None or result.support is None or int(result.claimed.sum()) < 2:
        return result
    index = result.claimed.nonzero().squeeze(1)
    values = result.values[index.to(result.values.device)]
    unit = value_unit(values, result.space, spec, model_units=result.model_units)
    tokens = not values.is_floating_point()
    same = near(values, values, 0.0 if tokens else EXACT * unit).cpu()
    first = same.int().argmax(1)  # the earliest candidate that is the same
    if bool((first == torch.arange(len(index))).all()):
        return result
    support = result.support.clone()
    support[index] = torch.zeros_like(support[index]).index_add_(0, first, support[index])
    keep = torch.ones(len(result), dtype=torch.bool)
    keep[index] = first == torch.arange(len(index))
    return _selected(replace(result, support=support), keep)


def unite(better: Reconstruction, plain: Reconstruction, spec: InputSpec) -> Reconstruction:
    """All of `better`, and what of `plain` it does not have; notes and labels are those of `better`.

    A plain reading is left out where `better` vouches for the same example, or has the same candidate, which
    is then vouched for if either reading does.
    """
    if better.space != plain.space and plain.space == INPUT_SPACE:
        return replace(plain, complete=better.complete, notes=(*better.notes, *plain.notes))
    if better.space != plain.space or not len(plain):
        return better
    assert better.claimed is not None and plain.claimed is not None
    values = better.values.to(plain.values)
    if values.is_floating_point():
        unit = value_unit(plain.values, plain.space, spec, model_units=plain.model_units)
        known = near(plain.values, values[better.claimed.to(values.device)], EXACT * unit).any(1)
        same = near(plain.values, values, _SAME * unit)
    else:
        known = torch.zeros(len(plain), dtype=torch.bool, device=values.device)
        same = near(plain.values, values, 0.0)
    vouched = (same & (_of(plain.claimed).to(known.device) & ~known).unsqueeze(1)).any(0).cpu()
    more = _selected(plain, ~(known | same.any(1)).cpu())
    return replace(
        better,
        values=torch.cat([values, more.values]),
        claimed=torch.cat([better.claimed.cpu() | vouched, _of(more.claimed)]),
        confidence=torch.cat([_of(better.confidence), _of(more.confidence).to(_of(better.confidence))]),
        support=_supports(better, more),
    )


def _supports(better: Reconstruction, more: Reconstruction) -> Tensor:
    """Rows behind each candidate, together no more than the active ones."""
    own, others = _of(better.support), _of(more.support)
    active = 0 if better.rows is None else better.rows.active
    if int(own.sum() + others.sum()) > active:
        own = rows_once(own.clamp(max=1), active)
        others = rows_once(others, active - int(own.sum()))
    return torch.cat([own, others.to(own)])


def _selected(result: Reconstruction, keep: Tensor) -> Reconstruction:
    return replace(
        result,
        values=result.values[keep.to(result.values.device)],
        claimed=_of(result.claimed)[keep],
        confidence=_of(result.confidence)[keep],
        support=_of(result.support)[keep],
    )


def _of(values: Tensor | None) -> Tensor:
    assert values is not None
    return values.cpu()

"""Candidates that are the same example, within one reading and between two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.reading.rows import rows_once
from seepage.core.errors import NotApplicable
from seepage.core.types import INPUT_SPACE, Exchange, InputSpec, Reconstruction
from seepage.models.layers import LinearLayer
from seepage.models.precision import EXACT

_SAME = 1e-6
"""Share of the range below which candidates that nobody vouches for are the same. Tested:
test_constants_of_reading_lie_on_a_plateau."""
_MOST_VALUES = 1 << 24
"""Differences held at a time. Cost: memory."""


def comparable(values: Tensor, like: Reconstruction, spec: InputSpec) -> tuple[Tensor, Tensor]:
    """Candidates (k, ...) in one unit for all their values, and the range (k,) of each one's.

    The range is that of the data where it is known. Else it is the candidate's own and nobody else's, for a
    row whose bias gradient is nearly 0 shows values without bounds; columns of a table are taken as the model
    is fed them, for they share no unit otherwise. Tokens are equal or not.
    """
    if not values.is_floating_point():
        return values, torch.zeros(len(values), device=values.device)
    if like.space == INPUT_SPACE and not like.model_units:
        if spec.value_range is not None:
            low, high = spec.value_range
            return values, values.new_full((len(values),), high - low)
        values = spec.to_model(values)
    return values, values.flatten(1).abs().amax(1)


def near(some: Tensor, others: Tensor, tolerance: Tensor) -> Tensor:
    """(a, b) bool: no value of candidate a differs from candidate b's by more than a's tolerance (a,).

    >>> tolerance = torch.tensor([1e-3])
    >>> near(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0005], [0.0, 1.1]]), tolerance).tolist()
    [[True, False]]
    """
    a, b = some.flatten(1), others.flatten(1)
    found = torch.zeros(len(a), len(b), dtype=torch.bool, device=a.device)
    if a.shape[1] == 0 or not len(b):
        return found
    each = max(1, _MOST_VALUES // (len(b) * a.shape[1]))
    for at in torch.arange(len(a), device=a.device).split(each):
        apart = (a[at].unsqueeze(1) - b.unsqueeze(0)).abs().amax(2)
        found[at] = apart <= tolerance[at].unsqueeze(1)
    return found


def merge_claims(result: Reconstruction, spec: InputSpec) -> Reconstruction:
    """Each claimed example once, with the support of all its readings: claims are about distinct examples."""
    if result.claimed is None or result.support is None or int(result.claimed.sum()) < 2:
        return result
    index = result.claimed.nonzero().squeeze(1)
    values, unit = comparable(result.values[index.to(result.values.device)], result, spec)
    same = near(values, values, EXACT * unit).cpu()
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
    mine, _ = comparable(values, plain, spec)
    theirs, unit = comparable(plain.values, plain, spec)
    known = torch.zeros(len(plain), dtype=torch.bool, device=values.device)
    if values.is_floating_point():
        known = near(theirs, mine[better.claimed.to(values.device)], EXACT * unit).any(1)
    same = near(theirs, mine, _SAME * unit)
    vouched = (same & (_of(plain.claimed).to(known.device) & ~known).unsqueeze(1)).any(0).cpu()
    more = _selected(plain, ~(known | same.any(1)).cpu())
    plain_adds = bool(vouched.any()) or bool(_of(more.claimed).any())
    return replace(
        better,
        values=torch.cat([values, more.values]),
        claimed=torch.cat([better.claimed.cpu() | vouched, _of(more.claimed)]),
        confidence=torch.cat([_of(better.confidence), _of(more.confidence).to(_of(better.confidence))]),
        support=_supports(better, more),
        if_declared=better.if_declared or (plain.if_declared and plain_adds),
    )


def read_each(
    layers: Sequence[LinearLayer],
    read: Callable[[LinearLayer], Reconstruction],
    exchange: Exchange,
    spec: InputSpec,
) -> Reconstruction:
    """What all of these layers show, each example once; none is read after all examples are vouched for."""
    best, refused = None, None
    for layer in layers:
        if best is not None and _claims(best) == exchange.update.num_examples:
            break
        try:
            found = read(layer)
        except NotApplicable as error:
            refused = refused or error
        else:
            best = found if best is None else _beside(best, found, spec, exchange.update.num_examples)
    if best is None:
        raise refused or NotApplicable("no layer of the model can be read.")
    return best


def _beside(
    one: Reconstruction, other: Reconstruction, spec: InputSpec, declared: int | None
) -> Reconstruction:
    """Readings of two layers; rows and certificates are about both, unless one has all that was declared."""
    better, less = (one, other) if _claims(one) >= _claims(other) else (other, one)
    assert better.rows is not None and less.rows is not None
    joined = unite(replace(better, rows=better.rows + less.rows), less, spec)
    all_of_them = _claims(better) == declared
    notes = less.notes if _claims(joined) > _claims(better) else less.notes[:1]
    return replace(
        joined,
        complete=better.complete if all_of_them else bool(better.complete and less.complete),
        notes=tuple(dict.fromkeys((*better.notes, *notes))),
    )


def _claims(result: Reconstruction) -> int:
    return 0 if result.claimed is None else int(result.claimed.sum())


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

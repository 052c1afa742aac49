"""The scale s of trap weights without the victims' data (Boenisch et al. 2021, Section 6.2).

Three ways, by what the server has: one auxiliary mini-batch; the gradients of earlier rounds; or, with
neither, a rule of thumb from the dimensionality alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.traps.traps import Rows, lonely
from seepage.core.types import InputSpec

_GRID = 100
"""Scales that are tried on public examples. Cost: each takes one look at the activation pattern."""
_LADDER = (10.0, 0.8)
"""Distances of `default_ladder`. Tested: test_constants_of_traps_lie_on_a_plateau."""
_MOST_EXAMPLES = 256
"""Public examples in a mini-batch for tuning. Cost: time."""
_MINI_BATCHES = 5
"""Mini-batches that a scale must do well on, where the public examples suffice for several. Cost: time."""
_NEARLY_BEST = 0.98
"""Share of the best count from which on a scale is nearly best. Tested:
test_constants_of_traps_lie_on_a_plateau."""
_BEST_ACTIVE = (0.6, 0.9)
"""Active shares of the best scales; outside, the direction of the next step is clear. Paper: Boenisch et al.
2021, Tables 3, 5 and 6."""


@dataclass(frozen=True)
class Trial:
    """What the updates of one round showed about a scale."""

    scale: float
    active: float
    """Share of the layer's rows that some example activated."""
    found: int
    """Distinct candidates that the attack vouches for."""


def default_scale(dimensions: float, *, distance: float = 2.5) -> float:
    """s = 1 - distance / sqrt(d): the weighted sum spreads as sqrt(d) while its mean falls as (1 - s) d.

    `dimensions` are effective ones, see `effective_dimensions`. The constant fits the paper's best values:
    .95 for CIFAR-10 and .99 for ImageNet and IMDB.

    >>> [round(default_scale(0.75 * d), 3) for d in (3072, 62_500, 150_528)]
    [0.948, 0.988, 0.993]
    """
    return max(0.3, 1 - distance / math.sqrt(dimensions))


def default_ladder(dimensions: float) -> tuple[float, float]:
    """Smallest and largest s of a ladder over the rows, for inputs of which next to nothing is known.

    One s for all rows must be right: 2.5 standard deviations off suits photographs, but MNIST's digits, of
    whose pixels few count, want 7. Rows from .8 to 10 off have some for every kind of data.

    >>> [round(s, 3) for s in default_ladder(0.75 * 3072)]
    [0.792, 0.983]
    """
    far, near = _LADDER
    return default_scale(dimensions, distance=far), default_scale(dimensions, distance=near)


def effective_dimensions(dimensions: int, spec: InputSpec) -> float:
    """d * E[u]^2 / E[u^2]: how many of d values in [0, 1] count, from the published mean and std.

    Sparse pictures such as MNIST's have far fewer than pixels. Uniform values (3/4 of them count) are
    assumed where mean and std are not known.

    >>> from seepage.core.types import Modality
    >>> statistics = {"mean": (0.1307,), "std": (0.3081,)}
    >>> mnist = InputSpec(modality=Modality.IMAGE, shape=(1, 28, 28), num_classes=10, **statistics)
    >>> round(effective_dimensions(784, mnist))
    120
    """
    if spec.mean is None or spec.std is None or spec.value_range is None:
        return 0.75 * dimensions
    low, high = spec.value_range
    mean = torch.tensor(spec.mean, dtype=torch.float64).sub(low).div(high - low)
    std = torch.tensor(spec.std, dtype=torch.float64).div(high - low)
    return max(1.0, float(dimensions * mean.square().mean() / (mean.square() + std.square()).mean()))


def firing_scales(rows: Rows, values: Tensor) -> Tensor:
    """(n, N): the scale above which each neuron fires for each example, for rows drawn with s = 1.

    Equation (8): s * sum of positive parts > sum of negative parts, by absolute value.

    >>> rows = Rows(torch.tensor([[-1.0, 1.0]]), torch.zeros(1))
    >>> firing_scales(rows, torch.tensor([[0.5, 1.0]])).item()
    0.5
    """
    weight = rows.weight.to(values)
    positive = values @ weight.clamp_min(0).T
    negative = values @ weight.clamp_max(0).neg().T
    return torch.where(positive > 0, negative / positive, torch.inf)


def scale_from_examples(
    rows: Rows, values: Tensor, *, batch_size: int, caught: Callable[[Tensor], Tensor] = lonely
) -> float:
    """The s under which most of a public mini-batch, or of a few, is caught; values (n, d) in [0, 1].

    caught: from an activation pattern to the examples it gives away: those alone at some neuron, or those
    that peeling reaches.
    """
    size = min(batch_size, len(values), _MOST_EXAMPLES)
    batches = firing_scales(rows, values[: size * _MINI_BATCHES]).split(size)
    batches = batches if len(batches[-1]) == size else batches[:-1]
    finite = torch.cat(batches)[torch.cat(batches).isfinite()]
    if len(finite) == 0:
        return default_scale(0.75 * values.shape[1])
    # Between no neuron firing and the typical neuron firing for half the batch; above s = 1 lies nothing.
    low, high = float(finite.min()), min(1.0, float(finite.median()))
    grid: list[float] = torch.linspace(low, max(low, high), _GRID).tolist()
    counts = [sum(int(caught(batch < s).sum()) for batch in batches) for s in grid]
    # The middle of what is nearly best: peeling breaks down all at once just above its best scale.
    nearly = [s for s, count in zip(grid, counts, strict=True) if count >= _NEARLY_BEST * max(counts)]
    return nearly[len(nearly) // 2]


def scale_from_rounds(trials: Sequence[Trial], start: float) -> float:
    """The next scale to try, from what the earlier ones brought. Steps are in the logarithm of 1 - s.

    >>> scale_from_rounds([], 0.95)
    0.95
    >>> round(scale_from_rounds([Trial(0.95, 1.0, 0)], 0.95), 3)    # every neuron fires: s was too large
    0.9
    """
    if not trials:
        return start
    ordered = sorted(trials, key=lambda trial: trial.scale)
    best = max(range(len(ordered)), key=lambda i: (ordered[i].found, -_off_target(ordered[i].active)))
    here = ordered[best]
    below = ordered[best - 1] if best > 0 else None
    above = ordered[best + 1] if best + 1 < len(ordered) else None
    smaller_wanted = here.active > sum(_BEST_ACTIVE) / 2
    if below is None and smaller_wanted:
        return _clamped(1 - 2 * (1 - here.scale))
    if above is None and not smaller_wanted:
        return _clamped(1 - (1 - here.scale) / 2)
    # Bracketed: halve the wider of the two gaps around the best.
    gaps = [(abs(_log_gap(here) - _log_gap(other)), other) for other in (below, above) if other is not None]
    _, other = max(gaps, key=lambda gap: gap[0])
    return 1 - math.sqrt((1 - here.scale) * (1 - other.scale))


def _off_target(active: float) -> float:
    low, high = _BEST_ACTIVE
    return max(low - active, 0.0, active - high)


def _log_gap(trial: Trial) -> float:
    return math.log(1 - trial.scale)


def _clamped(scale: float) -> float:
    return min(max(scale, 0.05), 0.9999)

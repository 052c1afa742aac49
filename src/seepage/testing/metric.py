"""`check_metric`: what every metric of single examples in this package is held to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seepage.core.errors import SeepageError
from seepage.core.metric import Metric
from seepage.core.types import InputSpec, Modality
from seepage.metrics import METRICS
from seepage.testing.failed import in_words, must

_COUNT = 6
_SIDE = 16
"""Of a picture: windows of 11 pixels, SSIM's, fit inside."""
_WORDS = 50
_SLACK = 1e-6


def check_metric(metric: Any) -> None:
    """Check a metric of your own on every kind of data that it says it is for.

    It gives one number for each example, whatever the others are; an exact copy scores best, and noise worse
    in the direction that the metric declares; values lie inside its limits; a NaN spoils no other score.

    metric: a `seepage.Metric`, or a name.

    >>> check_metric("psnr")
    """
    with in_words("the metric"):
        found: Any = METRICS.find(metric) if isinstance(metric, str) else metric
    must(
        isinstance(found, Metric),
        f"this is a {type(found).__name__}: make it a seepage.Metric with `compute`.",
    )
    must(bool(found.description), "the metric has no description: say in one sentence what it measures.")
    for kind in found.modalities:
        _check(found, Modality(kind))


def _examples(kind: Modality) -> tuple[InputSpec, Tensor, Tensor]:
    """What describes one example, true examples, and others that are as good as noise."""
    generator = torch.Generator().manual_seed(0)
    if kind is Modality.TEXT:
        spec = InputSpec(modality=kind, shape=(12,), num_classes=2, vocabulary=_WORDS)
        drawn = torch.randint(1, _WORDS, (2 * _COUNT, 12), generator=generator)
    else:
        shape = (3, _SIDE, _SIDE) if kind is Modality.IMAGE else (8,)
        spread = (0.3,) * 8 if kind is Modality.TABULAR else None
        spec = InputSpec(modality=kind, shape=shape, num_classes=2, value_range=(0.0, 1.0), spread=spread)
        drawn = torch.rand(2 * _COUNT, *shape, generator=generator)
    return spec, drawn[:_COUNT], drawn[_COUNT:]


def _check(metric: Metric, kind: Modality) -> None:
    spec, truth, noise = _examples(kind)
    best, worst = _scores(metric, truth, truth, spec), _scores(metric, noise, truth, spec)
    low, high = metric.reach
    for value in (*best.tolist(), *worst.tolist()):
        must(
            low - _SLACK <= value <= high + _SLACK,
            f"the metric gives {value:.4g} on {kind} data, outside of its limits {low:g} to {high:g}: set "
            "`unit` or `limits`, or mend the formula.",
        )
    direction = 1.0 if metric.higher_leaks else -1.0
    must(
        bool((direction * (best - worst) > 0).all()),
        f"on {kind} data the metric gives {float(best.mean()):.4g} to exact copies and "
        f"{float(worst.mean()):.4g} to noise, but says that {'higher' if metric.higher_leaks else 'lower'} "
        "leaks more: turn higher_leaks round, or mend the formula.",
    )
    half = _COUNT // 2
    mixed = _scores(metric, torch.cat([truth[:half], noise[half:]]), truth, spec)
    alone = _scores(metric, noise[:1], truth[:1], spec)
    must(
        _close(mixed, torch.cat([best[:half], worst[half:]])) and _close(alone, worst[:1]),
        "an example's score depends on the examples beside it: compute each by itself, without means or "
        "extremes over the batch.",
    )
    if truth.is_floating_point():
        _check_nan(metric, spec, truth, best, direction)


def _check_nan(metric: Metric, spec: InputSpec, truth: Tensor, best: Tensor, direction: float) -> None:
    spoiled = truth.clone()
    spoiled[0].view(-1)[0] = torch.nan
    try:
        found = _scores(metric, spoiled, truth, spec)
    except SeepageError:
        return  # refused in one sentence
    must(
        _close(found[1:], best[1:]),
        "a NaN in one example changes the scores of others: compute each by itself.",
    )
    must(
        bool(found[0].isnan()) or bool(direction * (best[0] - found[0]) > 0),
        "an example with a NaN scores as well as an exact copy: let it be NaN (no torch.nan_to_num).",
    )


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=_SLACK, rtol=1e-4)


def _scores(metric: Metric, recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    given = recon.clone(), truth.clone()
    try:
        found = metric.compute(*given, spec)
    except SeepageError:
        raise
    except Exception as error:
        with in_words(f"the metric, on {spec.modality} data,"):
            raise error
    must(
        isinstance(found, Tensor) and found.shape == truth.shape[:1],
        f"the metric gives {tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__} for "
        f"{len(truth)} examples: return a tensor with one number for each.",
    )
    unchanged = torch.equal(given[1], truth) and torch.equal(given[0].nan_to_num(), recon.nan_to_num())
    must(unchanged, "the metric changes what it is given: work on copies.")
    return found.detach().double()

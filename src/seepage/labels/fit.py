"""The class shares of every local mini-batch for which a replay of FedAvg ends where the client ended.

The delta of the bias holds the summed errors of all steps, and by itself does not say in which order the
labels came. The delta of the weights does: features drift while the hidden layers learn, so in directions
of the drift it weighs early and late steps differently. Both are fitted by Gauss-Newton, with the scatter
of labels between random mini-batches as prior and the scatter of features as noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.labels.gradient import Evidence, step_sizes
from seepage.labels.replay import Replayed, Stage, replay

ITERATIONS = 6
"""Steps of Gauss-Newton at most. Cost: one replay each; the steadiest one counts."""
CONVERGED = 0.02
"""Counts that move by less than this end the iteration. Derived: a twelfth of what may be missed by counts
that are called certain (`steps.CONSISTENT`)."""
DRIFT_DIRECTIONS = 2
"""Directions of the features' drift that are fitted. Tested: test_constants_of_labels_lie_on_a_plateau."""
MATCHING_STEPS, MATCHING_RATE = 10, 0.05
"""Steps of Adam that change the stand-ins, and their length. Tested:
test_constants_of_labels_lie_on_a_plateau."""
PREDICTION_ERROR = 1e-3
"""Error of a replay's mean prediction that the fit reckons with, as in the search for n. Tested:
test_constants_of_labels_lie_on_a_plateau."""
MEAN_VARIANCE = 100.0
"""Prior variance of the overall shares. Derived: shares lie between 0 and 1, so that 100 says nothing about
them."""
OFFSET_VARIANCE = 4.0
"""Variance of the client's mean feature from the stand-ins', in variances of a feature. Tested:
test_constants_of_labels_lie_on_a_plateau."""
SHARE_FLOOR = 0.02
"""Added to every class's share before the scatter of labels is reckoned from it. Tested:
test_constants_of_labels_lie_on_a_plateau."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What the replays say."""

    counts: Tensor
    """(C,) float64, not rounded; they sum to the number of examples."""
    movement: float
    """By how much a count differs from that of the iteration before."""
    deviation: float
    """Largest standard deviation of a count, for the order of the labels is not fully known."""
    misfit: float
    """Distance of the replay's last layer from the client's, relative to how far the client moved it."""
    swing: float
    """As in `Replayed`: where steps overshoot far, several shares lead to the same end."""


def fit_replay(
    stage: Stage, evidence: Evidence, start: Tensor, *, forced: bool = False, clients: int = 1
) -> Fit | None:
    """Counts that make the replay end at the client's delta; None where replays diverge.

    start: (C,) shares to begin with. The first replay only shows how the stand-ins differ from the client's
    examples. They are then changed to agree in their features (`_matched`), which serves where these are
    nearly the same for all examples, or replays are `forced` to end alike (`unexplained`), which serves where
    examples of a class have features of their own. The steadiest later iteration counts.
    """
    if evidence.bias is None:
        return None
    sizes = step_sizes(stage.local, stage.num_examples)[: max(stage.rows) + 1]
    part = torch.tensor(sizes).to(start) / sum(sizes)  # of each mini-batch in the whole
    total = clients * sum(sizes)
    shares = start.expand(len(sizes), -1)
    fits: list[Fit] = []
    target: Tensor | None = None
    for _ in range(ITERATIONS):
        replayed = replay(stage, shares)
        if not all(torch.isfinite(t).all() for t in (replayed.weight, replayed.slopes, replayed.features)):
            break
        fitted, covariance = gauss_newton(stage, evidence, replayed, shares, part, clients)
        if not torch.isfinite(fitted).all():
            break
        counts = total * (part @ fitted)
        before = fits[-1].counts if fits else total * start
        fits.append(
            Fit(
                counts=counts,
                movement=float((counts - before).abs().max()),
                deviation=float(total * covariance.diagonal().clamp(min=0).sqrt().max()),
                misfit=float((evidence.weight - replayed.weight).norm() / evidence.weight.norm()),
                swing=replayed.swing,
            )
        )
        if len(fits) > 1 and fits[-1].movement < CONVERGED:
            break
        shares = fitted.clamp(min=0)
        shares = shares / shares.sum(1, keepdim=True)
        if forced:
            stage = replace(stage, force=unexplained(stage, replayed))
        elif stage.labels is None and stage.inputs.is_floating_point():
            gap = _seen_feature(evidence.weight, evidence.bias) - _seen_feature(
                replayed.weight, replayed.bias
            )
            target = gap + (replayed.start.mean(0) if target is None else target)
            stage = replace(stage, inputs=_matched(stage, target))
    return min(fits[1:], key=lambda fit: fit.movement, default=None)


def gauss_newton(
    stage: Stage, evidence: Evidence, replayed: Replayed, shares: Tensor, part: Tensor, clients: int
) -> tuple[Tensor, Tensor]:
    """(R, C) shares of each mini-batch after one step, and the (C, C) covariance of the overall shares."""
    rows, classes = shares.shape
    overall = part @ shares
    slope, miss, noise = _observations(stage, evidence, replayed, overall)
    eye = torch.eye(classes).to(shares)
    # a mini-batch of b out of n examples, drawn without replacement, scatters about the overall shares
    likely = (overall + SHARE_FLOOR) / (1 + classes * SHARE_FLOOR)
    batch = min(stage.local.batch_size or stage.num_examples, stage.num_examples)
    scatter = (torch.diag(likely) - torch.outer(likely, likely)) * (1 / batch - 1 / stage.num_examples)
    prior = MEAN_VARIANCE * torch.kron(torch.ones(rows, rows).to(eye), eye - 1 / classes)
    prior = prior + torch.kron(torch.eye(rows).to(eye), scatter / clients)
    gain = torch.linalg.lstsq(slope @ prior @ slope.T + noise, slope @ prior).solution.T
    mean = overall.expand(rows, -1).flatten()
    fitted = mean + gain @ (miss + slope @ (shares.flatten() - mean))
    average = torch.kron(part[None], eye)
    covariance = average @ (prior - gain @ slope @ prior) @ average.T
    return fitted.reshape(rows, classes), covariance


def _observations(
    stage: Stage, evidence: Evidence, replayed: Replayed, overall: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Slope, miss and noise of the bias, then of the weights along the directions in which features drift."""
    assert evidence.bias is not None and replayed.bias is not None
    length = stage.length
    eye = torch.eye(len(overall)).to(overall)
    bias_miss = evidence.bias - replayed.bias
    slopes, misses = [replayed.slopes.sum(0)], [bias_miss]
    noises = [(PREDICTION_ERROR * length) ** 2 * eye]
    steps = len(replayed.features)
    drift = replayed.features - replayed.features.mean(0)
    count = DRIFT_DIRECTIONS if max(stage.rows) > 0 else 0
    for direction in torch.linalg.svd(drift, full_matrices=False).Vh[: min(count, steps - 1)]:
        middle = (replayed.features @ direction).mean()
        slopes.append(torch.einsum("t,tij->ij", drift @ direction, replayed.slopes))
        misses.append((evidence.weight - replayed.weight) @ direction - middle * bias_miss)
        variance = float(((replayed.start - replayed.start.mean(0)) @ direction).square().mean())
        examples = torch.diag(overall * (1 - overall) + 1 / stage.num_examples) / stage.num_examples
        offset = OFFSET_VARIANCE * torch.outer(evidence.bias, evidence.bias)
        noises.append(variance * (length**2 * examples + offset) + 1e-12 * eye)
    return torch.cat(slopes), torch.cat(misses), torch.block_diag(*noises)


def unexplained(stage: Stage, replayed: Replayed) -> dict[str, Tensor]:
    """The force with which the replay, all else equal, would have ended where the client did.

    Examples of a class have features in common, so the client's gradients hold more than those of stand-ins
    that bear all classes alike. That part changes little from step to step, and its sum is in the delta. The
    bias of the last layer is left out: its miss is what the class shares are read from.
    """
    force = {}
    for name in replayed.moved.keys() & stage.sent.keys() - {stage.layer.bias}:
        moved = replayed.moved[name]
        miss = (stage.sent[name].to(moved) - moved) / stage.length
        force[name] = stage.force.get(name, torch.zeros_like(moved)) - miss
    return force


def _seen_feature(weight: Tensor, bias: Tensor | None) -> Tensor:
    """(d,) the feature f of weight = bias f^T: were all features equal, each would be this one."""
    assert bias is not None
    return weight.T @ bias / bias.square().sum().clamp(min=1e-30)


def _matched(stage: Stage, target: Tensor) -> Tensor:
    """Stand-ins changed by a few steps of Adam until their mean feature is nearer to `target`."""
    inputs = stage.inputs.clone().requires_grad_()
    received = {name: p.detach() for name, p in stage.model.named_parameters()}
    optimiser = torch.optim.Adam([inputs], lr=MATCHING_RATE)
    for _ in range(MATCHING_STEPS):
        features = stage.features(received, inputs)
        loss = (features.mean(0) - target.to(features)).square().sum()
        inputs.grad = torch.autograd.grad(loss, inputs)[0]
        optimiser.step()
    return inputs.detach()

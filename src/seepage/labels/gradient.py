"""From an update to the mean gradient of the last layer: sign, learning rate, local steps, reduction.

A delta is new minus received weights, about -lr times the summed gradients: the opposite sign.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Exchange, Knowledge, LocalTraining, UpdateKind

MAX_STATES = 8
"""Weights along a client's local training at which the model is probed. Cost: one pass over the probes
each."""
MEAN_LOSSES = frozenset({"auto", "cross_entropy", "binary_cross_entropy"})
SUM_LOSSES = frozenset({"cross_entropy_sum"})


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The last layer at one state of the weights, and what it read from the server's own examples."""

    weight: Tensor
    """(C, d)"""
    bias: Tensor
    """(C,), zeros where the layer has none."""
    features: Tensor
    """(m, d)"""
    share: float
    """How much of the update was computed near this state; shares sum to 1."""

    def softmax(self, features: Tensor) -> Tensor:
        """(m, d) features to (m, C) probabilities."""
        return torch.softmax(features @ self.weight.T + self.bias, dim=1)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the server has of the last layer, for one softmax over C classes."""

    weight: Tensor
    """(C, d): the update as sent; `mean_gradient` gives it sign and scale."""
    bias: Tensor | None
    """(C,)"""
    probes: tuple[Probe, ...]
    """At the received weights; for deltas along the way from received to received + delta."""
    probe_labels: Tensor | None
    """(m,) classes of the probe examples, when they are auxiliary data."""
    notes: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        return len(self.weight)

    def average(self, values: Iterable[Tensor]) -> Tensor:
        """Mean of one tensor per probe, weighted by the probes' shares."""
        pairs = zip(self.probes, values, strict=True)
        return torch.stack([probe.share * value for probe, value in pairs]).sum(0)

    def mean_prediction(self) -> Tensor:
        """(C,) mean softmax over the probe examples and the states of the weights."""
        return self.average(probe.softmax(probe.features).mean(0) for probe in self.probes)

    def bias_gradient(self, gradient: Gradient) -> Tensor:
        """grad_b; for a layer without bias the least-squares g in grad_W = g f̄^T, f̄ the probes' mean."""
        if gradient.bias is not None:
            return gradient.bias
        mean = self.average(probe.features.mean(0) for probe in self.probes)
        slope = gradient.weight @ mean / mean.square().sum().clamp(min=1e-30)
        return slope - slope.mean()


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Mean gradient of the loss over `num_examples` examples."""

    weight: Tensor
    bias: Tensor | None
    num_examples: int


def mean_gradient(evidence: Evidence, exchange: Exchange, known: Knowledge, num_examples: int) -> Gradient:
    """The update as the gradient of the mean loss over the `num_examples` examples it was made from."""
    summed = known.loss in SUM_LOSSES
    clients = max(1, len(exchange.clients))
    per_client = max(1, round(num_examples / clients))
    if exchange.update.kind is UpdateKind.GRADIENT:
        scale = float(per_client) if summed else 1.0
        return _scaled(evidence, 1 / scale, num_examples)
    if known.local is None:
        return _scaled(evidence, _scale_from_absent_classes(evidence, num_examples), num_examples)
    local = known.local
    if local.lr <= 0:
        raise DataError(
            f"A weight delta cannot come from a learning rate of {local.lr}: give the clients' own."
        )
    sizes = step_sizes(local, per_client)
    weights = step_weights(len(sizes), local.momentum)
    total = sum(w * (size if summed else 1) for w, size in zip(weights, sizes, strict=True))
    gradient = _scaled(evidence, -1 / (local.lr * total), min(num_examples, clients * sum(sizes)))
    if not local.weight_decay:
        return gradient
    # each step added wd * w to the gradient, with the w of that step
    decay = local.weight_decay * len(sizes) / total if summed else local.weight_decay
    weight = gradient.weight - decay * evidence.average(p.weight for p in evidence.probes)
    bias = gradient.bias
    if bias is not None:
        bias = bias - decay * evidence.average(p.bias for p in evidence.probes)
    return Gradient(weight=weight, bias=bias, num_examples=gradient.num_examples)


def step_weights(steps: int, momentum: float) -> list[float]:
    """How often the gradient of each local step enters the delta, in units of -lr.

    With v_t = mu v_{t-1} + g_t and w_{t+1} = w_t - lr v_t, step t of S enters sum_{j=0}^{S-t-1} mu^j times.

    >>> step_weights(3, 0.5)
    [1.75, 1.5, 1.0]
    """
    return [sum(momentum**j for j in range(steps - t)) for t in range(steps)]


def step_sizes(local: LocalTraining, num_examples: int) -> list[int]:
    """Examples in each local step; the last mini-batch of an epoch may be smaller.

    >>> step_sizes(LocalTraining(algorithm="fedavg", batch_size=8, epochs=2), 20)
    [8, 8, 4, 8, 8, 4]
    """
    size = num_examples if local.algorithm == "fedsgd" else local.batch_size or num_examples
    epoch = [min(size, num_examples - start) for start in range(0, num_examples, size)]
    steps = local.num_steps(num_examples)
    return (epoch * -(-steps // len(epoch)))[:steps]


def local_path(
    evidence: Evidence, shares: Tensor, local: LocalTraining, num_examples: int, *, summed: bool, single: bool
) -> list[tuple[float, float]]:
    """(fraction of the delta, share) of the states at which local training took its gradients.

    Steps shrink, or swing, as the bias fits the class shares, so the way is played through: the last
    layer alone, fed the probes' mean feature, takes the client's steps towards `shares`. Step t counts
    at the fraction reached before it, and as often as it enters the delta (`step_weights`).
    """
    start, sizes = evidence.probes[0], step_sizes(local, num_examples)
    mean = start.features.mean(0)
    logits = start.weight @ mean + start.bias
    # a step of size g in row c moves its logit by (|f|^2 + 1) g; a single logit's constant row stays
    reach = local.lr * (mean.square().sum() + float(evidence.bias is not None))
    speed, moved, before = torch.zeros_like(logits), torch.zeros_like(logits), []
    for size in sizes:
        before.append(moved)
        error = torch.softmax(logits + moved, 0) - shares
        if single:
            error = error * torch.tensor([0.0, 1.0]).to(error)
        speed = local.momentum * speed + error * (size if summed else 1)
        moved = moved - reach * speed
    total = moved.square().sum().clamp(min=1e-30)
    fractions = (torch.stack(before) @ moved / total).clamp(0, 2)
    weights = torch.tensor(step_weights(len(sizes), local.momentum)).to(fractions)
    chunks = zip(weights.chunk(MAX_STATES), fractions.chunk(MAX_STATES), strict=True)
    return [(float((w * f).sum() / w.sum()), float(w.sum() / weights.sum())) for w, f in chunks]


def _scale_from_absent_classes(evidence: Evidence, num_examples: int) -> float:
    """Factor from a delta of unknown learning rate to the mean gradient.

    An absent class has grad_b[c] = mean_p[c] exactly, and every other class less. With n < C at least
    C - n classes are absent, whichever they are: they are those with the largest ratio grad_b / mean_p.
    """
    absent = evidence.num_classes - num_examples
    if evidence.bias is None or absent <= 0:
        raise NotApplicable(
            "The learning rate of local training is unknown, so the scale of the weight delta is too: grant "
            "`local_training` (inferring it takes fewer examples than classes and a layer with bias)."
        )
    ratio = (-evidence.bias / evidence.mean_prediction()).sort(descending=True).values[:absent].median()
    if ratio <= 0:
        raise NotApplicable(
            "The scale of the weight delta cannot be inferred, for no class looks absent: grant "
            "`local_training`."
        )
    return -1 / float(ratio)


def _scaled(evidence: Evidence, factor: float, num_examples: int) -> Gradient:
    bias = None if evidence.bias is None else evidence.bias * factor
    return Gradient(weight=evidence.weight * factor, bias=bias, num_examples=num_examples)

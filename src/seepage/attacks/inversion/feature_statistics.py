"""Batch-norm layers remember the mean and variance of features: real inputs lead to such features.

GradInversion, Yin et al. 2021, eq. 9. Where clients train with batch statistics and send their buffers, the
statistics of the private batch itself can be read from how far the running ones moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seepage.attacks.inversion.objective import Prior
from seepage.attacks.inversion.priors import PriorFactory
from seepage.attacks.inversion.problem import Problem
from seepage.models.hooks import hooked


@dataclass(frozen=True)
class FeatureStatistics:
    """(channels,) mean and variance of the features that reach one batch norm."""

    mean: Tensor
    variance: Tensor


def expected_statistics(problem: Problem) -> dict[str, FeatureStatistics]:
    """What each batch norm of the model should see, by module name; empty for a model without any."""
    sent = problem.exchange.update.buffers
    # in eval mode nothing moves, and the difference of buffers would be 0 / 0
    moved = sent is not None and problem.training.batch_norm == "train"
    return {
        name: _sent(problem, module, name, sent) if moved and sent is not None else _running(module)
        for name, module in batch_norms(problem.model).items()
    }


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Batch norms that keep running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def _running(module: _BatchNorm) -> FeatureStatistics:
    assert module.running_mean is not None and module.running_var is not None
    return FeatureStatistics(module.running_mean.detach(), module.running_var.detach())


def _sent(problem: Problem, module: _BatchNorm, name: str, sent: Mapping[str, Tensor]) -> FeatureStatistics:
    """new = (1 - m)^S old + (1 - (1 - m)^S) batch, solved for the batch (exact for S = 1 local step)."""
    before = _running(module)
    momentum = 0.1 if module.momentum is None else module.momentum
    kept = (1 - momentum) ** problem.local_steps
    mean, variance = (
        (sent[f"{name}.{which}"].to(old) - kept * old) / (1 - kept)
        for which, old in (("running_mean", before.mean), ("running_var", before.variance))
    )
    return FeatureStatistics(mean, variance.clamp_min(0))


def statistics_distance(
    problem: Problem, expected: Mapping[str, FeatureStatistics], inputs: Tensor
) -> Tensor:
    """Sum over layers of |mean - expected|^2 + |variance - expected|^2, for one restart (n, *shape)."""
    seen: dict[str, FeatureStatistics] = {}
    buffers = {name: b.clone() for name, b in problem.model.named_buffers()}  # train mode moves them

    def note(name: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        features = args[0].transpose(0, 1).flatten(1)  # (channels, examples * positions)
        # unbiased, as the running variance is; a single value has none
        several = features.shape[1] > 1
        seen[name] = FeatureStatistics(features.mean(1), features.var(1, unbiased=several))

    with hooked(batch_norms(problem.model), before=note):
        torch.func.functional_call(problem.model, buffers, (inputs,))
    terms = [
        (seen[name].mean - goal.mean).square().sum() + (seen[name].variance - goal.variance).square().sum()
        for name, goal in expected.items()
        if name in seen
    ]
    return torch.stack(terms).sum() if terms else inputs.new_zeros(())


def feature_statistics(weight: float) -> PriorFactory:
    """Features of candidates have the statistics that the batch norms expect. Nothing without batch norm."""

    def build(problem: Problem) -> Prior | None:
        expected = expected_statistics(problem)
        if weight == 0 or not expected or problem.embedding is not None:
            return None
        return lambda inputs: (
            weight * torch.stack([statistics_distance(problem, expected, restart) for restart in inputs])
        )

    return build

"""See Through Gradients / GradInversion (Yin et al. 2021): batch-norm statistics and agreeing restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seepage.attacks.inversion.consensus import group_consistency
from seepage.attacks.inversion.distances import euclidean
from seepage.attacks.inversion.feature_statistics import feature_statistics
from seepage.attacks.inversion.gradient_inversion import GradientInversion
from seepage.attacks.inversion.initialise import INITIALISERS
from seepage.attacks.inversion.priors import small_values, total_variation
from seepage.attacks.inversion.settings import assumed_training, check_settings, choose
from seepage.attacks.inversion.solvers import adam, cosine_decay


def see_through_gradients(
    *,
    steps: int = 1000,
    step_size: float = 0.1,
    tv: float = 1e-4,
    l2: float = 1e-6,
    statistics: float = 0.1,
    consistency: float = 0.01,
    start: str = "gaussian",
    restarts: int = 2,
    noise: float = 0.2,
    counts: Sequence[int] | None = None,
    budget: float | None = None,
    assume: Mapping[str, Any] | None = None,
) -> GradientInversion:
    """Passive: matches gradient and batch-norm statistics, with restarts held together (GradInversion).

    The published recipe has 20,000 steps and registers restarts to one another by a trained network
    (RANSAC-flow); here they are registered by whole-pixel shifts, found by phase correlation.

    counts: numbers of examples to try where the update does not say. budget: seconds for each update, at
    most `steps` steps. assume: local training to simulate where it is not granted, as {"lr": 0.1}.
    """
    check_settings(
        steps=steps,
        restarts=restarts,
        step_size=step_size,
        weights={"tv": tv, "l2": l2, "statistics": statistics, "consistency": consistency, "noise": noise},
        counts=counts,
        budget=budget,
    )
    return GradientInversion(
        distance=euclidean,
        priors=(
            total_variation(tv, kind="isotropic"),
            small_values(l2),
            feature_statistics(statistics),
            group_consistency(consistency),
        ),
        start=choose(INITIALISERS, start, "start"),
        solver=adam(
            steps=steps,
            step_size=step_size,
            schedule=cosine_decay,
            warm_up=50,
            noise=noise,
            halving=False,  # restarts hold one another: none is as it would be alone
        ),
        restarts=restarts,
        counts=counts,
        budget=budget,
        assumed=assumed_training(assume),
    )

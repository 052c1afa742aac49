"""Deep Leakage from Gradients (Zhu et al. 2019), and iDLG (Zhao et al. 2020), which reads the label first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seepage.attacks.inversion.distances import euclidean
from seepage.attacks.inversion.gradient_inversion import GradientInversion
from seepage.attacks.inversion.lbfgs import lbfgs
from seepage.attacks.inversion.relaxed_labels import LabelRule
from seepage.attacks.inversion.settings import assumed_training, check_settings


def deep_leakage(
    *,
    steps: int = 3000,
    step_size: float = 1.0,
    restarts: int = 1,
    counts: Sequence[int] | None = None,
    budget: float | None = None,
    assume: Mapping[str, Any] | None = None,
) -> GradientInversion:
    """Passive: matches the gradient in Euclidean distance by L-BFGS, labels searched as well (DLG).

    Made for smooth networks: on ReLU networks it hardly moves, and stops early. On a sigmoid LeNet it goes
    on for thousands of steps: CIFAR-10 pictures came to 13 dB in 300 (four) and to 33 in 3000 (ten); the
    published 300 rounds of up to 20 iterations would be 6000 steps here.

    counts: numbers of examples to try where the update does not say. budget: seconds for each update, at
    most `steps` steps. assume: local training to simulate where it is not granted, as {"lr": 0.1}.
    """
    return _euclidean(
        "optimised",
        steps=steps,
        step_size=step_size,
        restarts=restarts,
        counts=counts,
        budget=budget,
        assume=assume,
    )


def idlg(
    *,
    steps: int = 3000,
    step_size: float = 1.0,
    restarts: int = 1,
    counts: Sequence[int] | None = None,
    budget: float | None = None,
    assume: Mapping[str, Any] | None = None,
) -> GradientInversion:
    """Passive: infers the labels from the last layer, then matches the gradient by L-BFGS (iDLG)."""
    return _euclidean(
        "inferred",
        steps=steps,
        step_size=step_size,
        restarts=restarts,
        counts=counts,
        budget=budget,
        assume=assume,
    )


def _euclidean(
    labels: LabelRule,
    *,
    steps: int,
    step_size: float,
    restarts: int,
    counts: Sequence[int] | None,
    budget: float | None,
    assume: Mapping[str, Any] | None,
) -> GradientInversion:
    check_settings(steps=steps, restarts=restarts, step_size=step_size, counts=counts, budget=budget)
    return GradientInversion(
        distance=euclidean,
        labels=labels,
        solver=lbfgs(steps=steps, step_size=step_size),
        exact_gradients=True,
        restarts=restarts,
        counts=counts,
        budget=budget,
        assumed=assumed_training(assume),
    )

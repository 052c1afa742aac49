"""TAG, Gradient Attack on Transformer-based Language Models (Deng et al. 2021): L1 + L2 on embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from seepage.attacks.inversion.distances import early_layers, l1_l2
from seepage.attacks.inversion.gradient_inversion import GradientInversion
from seepage.attacks.inversion.settings import assumed_training, check_settings
from seepage.attacks.inversion.solvers import adam, cosine_decay


def tag(
    *,
    steps: int = 1000,
    step_size: float = 0.1,
    alpha: float = 0.1,
    restarts: int = 1,
    halving: bool = True,
    counts: Sequence[int] | None = None,
    budget: float | None = None,
    assume: Mapping[str, Any] | None = None,
) -> GradientInversion:
    """Passive: made for text; matches gradients in L2 + alpha L1 over embeddings, then looks tokens up (TAG).

    Works on images and tables as well.

    halving: of 4 restarts or more drop the worse half, by objective, again and again: 8 take 2.8 times the
    work of one.

    counts: numbers of examples to try where the update does not say. budget: seconds for each update, at
    most `steps` steps. assume: local training to simulate where it is not granted, as {"lr": 0.1}.
    """
    check_settings(
        steps=steps,
        restarts=restarts,
        step_size=step_size,
        weights={"alpha": alpha},
        counts=counts,
        budget=budget,
    )
    return GradientInversion(
        distance=partial(l1_l2, alpha=alpha),
        layer_weights=early_layers,
        solver=adam(steps=steps, step_size=step_size, schedule=cosine_decay, halving=halving),
        restarts=restarts,
        counts=counts,
        budget=budget,
        assumed=assumed_training(assume),
    )

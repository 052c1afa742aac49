"""Inverting Gradients (Geiping et al. 2020): direction instead of length, total variation, signed steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from seepage.attacks.inversion.distances import DISTANCES
from seepage.attacks.inversion.gradient_inversion import GradientInversion
from seepage.attacks.inversion.initialise import INITIALISERS
from seepage.attacks.inversion.priors import TV_KINDS, total_variation
from seepage.attacks.inversion.search import Solver
from seepage.attacks.inversion.settings import assumed_training, check_settings, choose
from seepage.attacks.inversion.solvers import SCHEDULES, adam
from seepage.attacks.inversion.tuning import Rival, Rivals

WEIGHTS = (0.1, 3.0, 30.0)
"""Of total variation, relative: from one that ReLU networks with batch norm take to one that hardly differs
from any larger. Tested: test_the_chosen_weight_is_near_the_best_of_a_finer_grid."""


def inverting_gradients(
    *,
    steps: int = 1000,
    step_size: float = 0.3,
    schedule: str = "cosine_decay",
    tv: float | Literal["auto"] = "auto",
    tv_relative: bool = True,
    tv_kind: str = "anisotropic",
    distance: str = "cosine",
    start: str = "gaussian",
    signed: bool = True,
    restarts: int = 1,
    halving: bool = True,
    counts: Sequence[int] | None = None,
    budget: float | None = None,
    assume: Mapping[str, Any] | None = None,
) -> GradientInversion:
    """Passive: searches inputs whose gradient points the same way, by signed Adam with total variation.

    tv: weight of total variation, by default relative to the distance reached so far. "auto" searches for a
    tenth of the steps with each of several weights and goes on with the one that explains the update best:
    which suits differs between networks by a factor of a hundred (see `tuning`).

    The published recipe is steps=4800, step_size=0.1, schedule="step_decay", tv_relative=False and a tv found
    by trying; benchmarks/inversion_vs_peer.py compares the defaults with it.

    halving: of 4 restarts or more drop the worse half, by objective, again and again: 8 take 2.8 times the
    work of one.

    counts: numbers of examples to try where the update does not say. budget: seconds for each update, at
    most `steps` steps. assume: local training to simulate where it is not granted, as {"lr": 0.1}.
    """
    weights = _weights(tv, relative=tv_relative)
    check_settings(
        steps=steps,
        restarts=restarts,
        step_size=step_size,
        weights={"tv": weights[0]},
        counts=counts,
        budget=budget,
    )
    choose(TV_KINDS, tv_kind, "tv_kind")
    decay = choose(SCHEDULES, schedule, "schedule")

    def solver(steps: int) -> Solver:
        return adam(steps=steps, step_size=step_size, signed=signed, schedule=decay, halving=halving)

    rivals = [Rival(title=f"tv = {w:g}", priors=(total_variation(w, kind=tv_kind),)) for w in weights]
    return GradientInversion(
        distance=choose(DISTANCES, distance, "distance"),
        rivals=Rivals(
            all=rivals, standing=_standing if len(rivals) > 1 else lambda model: 0, solver=solver, steps=steps
        ),
        relative_priors=tv_relative,
        start=choose(INITIALISERS, start, "start"),
        solver=solver(steps),
        restarts=restarts,
        counts=counts,
        budget=budget,
        assumed=assumed_training(assume),
    )


def _standing(model: nn.Module) -> int:
    """Networks with batch norm take little total variation, others take more."""
    return 0 if any(isinstance(module, _BatchNorm) for module in model.modules()) else 1


def _weights(tv: float | str, *, relative: bool) -> tuple[float, ...]:
    """Weights of total variation to choose among."""
    if not isinstance(tv, str):
        return (tv,)
    if tv != "auto":
        raise ValueError(f"tv must be a number or 'auto', not '{tv}'.")
    if not relative:
        raise ValueError(
            "tv = 'auto' chooses among relative weights: with tv_relative = false give a number."
        )
    return WEIGHTS

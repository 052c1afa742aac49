"""Inverting Gradients (Geiping et al. 2020): direction instead of length, total variation, signed steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from seepage.attacks.inversion.distances import DISTANCES
from seepage.attacks.inversion.gradient_inversion import GradientInversion
from seepage.attacks.inversion.initialise import INITIALISERS
from seepage.attacks.inversion.objective import Weighing
from seepage.attacks.inversion.priors import TV_KINDS, total_variation
from seepage.attacks.inversion.settings import assumed_training, check_settings, choose
from seepage.attacks.inversion.solvers import SCHEDULES, adam


def inverting_gradients(
    *,
    steps: int = 1000,
    step_size: float = 0.3,
    schedule: str = "cosine_decay",
    tv: float | Literal["auto"] = "auto",
    tv_relative: bool = True,
    tv_kind: str = "auto",
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

    tv: weight of total variation, relative to the distance reached so far. "auto" weighs it at every step by
    the lengths of the two gradients instead: which weight suits differs between networks by a factor of a
    thousand (see `objective.BALANCE`). tv_kind: "auto" is "double_opponent" where colours meet tv = "auto",
    and the paper's "anisotropic" otherwise; also "isotropic".

    The published recipe is steps=4800, step_size=0.1, schedule="step_decay", tv_relative=False and a tv found
    by trying; benchmarks/inversion_vs_peer.py compares the defaults with it.

    halving: of 4 restarts or more drop the worse half, by objective, again and again: 8 take 2.8 times the
    work of one.

    counts: numbers of examples to try where the update does not say. budget: seconds for each update, at
    most `steps` steps. assume: local training to simulate where it is not granted, as {"lr": 0.1}.
    """
    weight, weighing = _weight(tv, relative=tv_relative)
    check_settings(
        steps=steps,
        restarts=restarts,
        step_size=step_size,
        weights={"tv": weight},
        counts=counts,
        budget=budget,
    )
    choose(TV_KINDS, tv_kind, "tv_kind")
    if tv_kind == "auto" and weighing != "balanced":  # a weight was chosen for the paper's kind
        tv_kind = "anisotropic"
    decay = choose(SCHEDULES, schedule, "schedule")

    return GradientInversion(
        distance=choose(DISTANCES, distance, "distance"),
        priors=(total_variation(weight, kind=tv_kind),),
        weighing=weighing,
        start=choose(INITIALISERS, start, "start"),
        solver=adam(steps=steps, step_size=step_size, signed=signed, schedule=decay, halving=halving),
        restarts=restarts,
        counts=counts,
        budget=budget,
        assumed=assumed_training(assume),
    )


def _weight(tv: float | str, *, relative: bool) -> tuple[float, Weighing]:
    if not isinstance(tv, str):
        return tv, "relative" if relative else "fixed"
    if tv != "auto":
        raise ValueError(f"tv must be a number or 'auto', not '{tv}'.")
    if not relative:
        raise ValueError("tv = 'auto' finds its own weight: with tv_relative = false give a number.")
    return 1.0, "balanced"

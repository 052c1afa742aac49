"""Why an inversion cannot work, or did not, said from what the server observed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.inversion.feature_statistics import batch_norms
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.search import Solution
from seepage.core.errors import NotApplicable
from seepage.core.types import UpdateKind
from seepage.models.layers import output_layer, trace_linear_layers

_SILENT = 1e-3
"""Bias gradients of the last layer below this share of their largest possible sum carry little signal.
No plateau test yet."""
_SAME_SCALE = 0.2
"""Tolerance, in units of log n, within which a ratio of lengths is taken for n. Derived: such a ratio is four
times nearer to n than to 1."""
_UNEXPLAINED = 0.5
"""Cosine between simulated and observed update below which candidates explain little of it. Derived: less
than a quarter of its squared length."""


def check_signal(problem: Problem) -> None:
    """Raise NotApplicable where the update says nothing at all."""
    if not any(bool(t.any()) for t in problem.observed):
        raise NotApplicable(
            "every value of the update is zero: the model has converged on the clients' examples or its "
            "activations are dead, so there is nothing to invert; attack an earlier round."
        )


def notes_before(problem: Problem) -> tuple[str, ...]:
    """What stands in the way, as far as the update and the model tell."""
    return (
        *_silent_layers(problem),
        *_unknown_training(problem),
        *_reduction(problem),
        *_modality(problem),
    )


def _silent_layers(problem: Problem) -> tuple[str, ...]:
    silent = [n for n, t in zip(problem.names, problem.observed, strict=True) if not bool(t.any())]
    if not silent:
        return ()
    return (
        f"{len(silent)} of {len(problem.names)} parameters received no gradient (first: '{silent[0]}'): dead "
        "activations pass nothing on, and what lies before them cannot be seen through them.",
    )


def _unknown_training(problem: Problem) -> tuple[str, ...]:
    notes, local = [], problem.training
    hidden = problem.known.local is None
    if batch_norms(problem.model) and (hidden or local.batch_norm == "train"):
        if hidden:
            notes.append(
                "The model has batch norm and the server does not know in which mode clients train: eval "
                "mode was assumed, and with batch statistics the simulated update would be another one."
            )
        elif problem.exchange.update.buffers is None:
            notes.append(
                "Clients normalise with their batch's own statistics and did not send them: the statistics "
                "have to be found together with the inputs, which is harder."
            )
    if hidden and problem.exchange.update.kind is UpdateKind.DELTA:
        notes.append(
            f"Local training was not granted: {problem.local_steps} step(s) at learning rate {local.lr:g} "
            "were assumed, and the result is only as good as that."
        )
    return tuple(notes)


def _reduction(problem: Problem) -> tuple[str, ...]:
    """For a mean cross-entropy the last bias gradient is the mean of p - y: its L1 norm is at most 2."""
    bias = _last_bias(problem)
    if bias is None or problem.exchange.update.kind is not UpdateKind.GRADIENT or problem.spec.num_targets:
        return ()
    length = float(bias.abs().sum())
    if problem.training.loss.endswith("_sum"):
        most = 2.0 * problem.num_examples / problem.clients
    else:
        most = 2.0 if len(bias) > 1 else 1.0
    if length > most * 1.001:
        return (
            f"The last bias gradient has an L1 norm of {length:.3g}, but {problem.training.loss} over "
            f"{problem.num_examples} example(s) allows at most {most:g}: clients reduce the loss in another "
            "way or scale their updates, which the Euclidean distance does not forgive.",
        )
    if length < most * _SILENT:
        return (
            f"The last bias gradient has an L1 norm of {length:.2g} where {most:g} is possible: the model is "
            "nearly certain of these examples, and such an update carries little signal.",
        )
    return ()


def _last_bias(problem: Problem) -> Tensor | None:
    layers = trace_linear_layers(problem.model, problem.spec)
    try:
        layer = output_layer(layers, num_classes=problem.spec.num_classes)
    except NotApplicable:
        return None
    by_name = dict(zip(problem.names, problem.observed, strict=True))
    return None if layer.bias is None else by_name.get(layer.bias)


def _modality(problem: Problem) -> tuple[str, ...]:
    if problem.embedding is not None and problem.training.algorithm == "fedavg" and problem.local_steps > 1:
        return ("Embeddings were taken as fixed over the local steps, though clients train them too.",)
    return ()


@dataclass(frozen=True, kw_only=True)
class Match:
    """How the chosen restart explains the update, before any prior is added."""

    chosen: int
    start: float
    end: float
    """Distance between simulated and observed update, at the start and at the end."""
    moves: bool
    """The distance has a derivative in the inputs."""
    simulated: tuple[Tensor, ...]
    """The update that the chosen candidates lead to."""


def notes_after(problem: Problem, solution: Solution, match: Match) -> tuple[str, ...]:
    """How the search ended, and what that means."""
    cos, ratio = _compare(match.simulated, problem.observed)
    notes = [
        f"Distance to the update from {match.start:.3g} to {match.end:.3g} in {solution.steps} step(s)"
        + (f", stopped by {solution.stopped}" if solution.stopped else "")
        + f"; cosine {cos:.4f}."
    ]
    if not match.moves:
        notes.append(
            "The simulated update does not change with the inputs (dead activations, or a model that passes "
            "no gradient to its input): nothing was recovered."
        )
    elif not match.end < match.start:
        notes.append(
            "No candidate explains the update better than the start: nothing was recovered. The simulated "
            "training may not be the clients', or steps are too large."
        )
    elif cos < _UNEXPLAINED:
        notes.append(
            "Less than half of the update is explained: candidates are guesses. More steps or restarts may "
            "help, unless a defense changed the update."
        )
    if note := _scale_note(problem, ratio, cos):
        notes.append(note)
    return tuple(notes)


def _compare(simulated: tuple[Tensor, ...], observed: tuple[Tensor, ...]) -> tuple[float, float]:
    """Cosine, and the ratio of the observed length to the simulated one."""
    inner = sum(float((a * b).sum()) for a, b in zip(simulated, observed, strict=True))
    lengths = [math.sqrt(sum(float(t.square().sum()) for t in side)) for side in (simulated, observed)]
    if min(lengths) == 0:
        return 0.0, torch.inf
    return inner / (lengths[0] * lengths[1]), lengths[1] / lengths[0]


def _scale_note(problem: Problem, ratio: float, cos: float) -> str:
    """A direction that fits at a length that is off by n: the loss is reduced in another way."""
    n = problem.num_examples
    if n == 1 or cos < 0.9 or not 0 < ratio < math.inf:
        return ""
    for factor, how in ((n, "summed"), (1 / n, "averaged once more")):
        if abs(math.log(ratio / factor)) < _SAME_SCALE * math.log(n):
            return (
                f"The direction fits, but the observed update is {ratio:.3g} times as long as the simulated "
                f"one: the clients' loss seems to be {how} over the {n} examples."
            )
    return ""

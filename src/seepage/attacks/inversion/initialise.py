"""Where the search begins: functions of a problem to (restarts, n, *shape) inputs in model units."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.attacks.inversion.problem import Problem
from seepage.core.types import Modality
from seepage.protocol.widening import model_placement

Initialiser = Callable[[Problem, int, torch.Generator], Tensor]
"""(problem, restarts, generator)."""

PATCH = 4
"""Pixels a side of the patch that is repeated. Paper: Wei et al. 2020 repeat one small random patch; Wen et
al. 2022, Section 4.1, take 4 x 4."""


def _size(problem: Problem, restarts: int) -> tuple[int, ...]:
    return (restarts, problem.num_examples, *problem.shape)


def _placed(problem: Problem, standard: Tensor) -> Tensor:
    """Standard values (mean 0, deviation 1) in the problem's units, inside its box."""
    device, dtype = model_placement(problem.model)
    return problem.project(problem.centre + problem.unit * standard.to(device, dtype))


def gaussian(problem: Problem, restarts: int, generator: torch.Generator) -> Tensor:
    """Independent normal values."""
    return _placed(problem, torch.randn(_size(problem, restarts), generator=generator))


def uniform(problem: Problem, restarts: int, generator: torch.Generator) -> Tensor:
    """Uniform over the value range, or over two deviations either side where that is unknown."""
    share = torch.rand(_size(problem, restarts), generator=generator)
    if problem.low is None or problem.high is None:
        return _placed(problem, 4 * share - 2)
    share = share.to(problem.low)
    return problem.low + (problem.high - problem.low) * share


def zeros(problem: Problem, restarts: int, generator: torch.Generator) -> Tensor:
    """The centre of the values everywhere: a grey image."""
    return _placed(problem, torch.zeros(_size(problem, restarts)))


def tiled(problem: Problem, restarts: int, generator: torch.Generator) -> Tensor:
    """One random patch repeated over the image (Wei et al. 2020); normal values for anything but images."""
    if problem.spec.modality is not Modality.IMAGE:
        return gaussian(problem, restarts, generator)
    channels, height, width = problem.shape
    patch = torch.randn((restarts, problem.num_examples, channels, PATCH, PATCH), generator=generator)
    repeats = (1, 1, 1, -(-height // PATCH), -(-width // PATCH))
    return _placed(problem, patch.repeat(repeats)[..., :height, :width])


def auxiliary_mean(problem: Problem, restarts: int, generator: torch.Generator) -> Tensor:
    """The mean of the public examples; the centre where there are none."""
    public = problem.known.auxiliary
    if public is None or len(public) == 0 or not public.inputs.is_floating_point():
        return zeros(problem, restarts, generator)
    device, dtype = model_placement(problem.model)
    mean = public.inputs.to(device, dtype).mean(dim=0)
    return problem.project(mean).expand(_size(problem, restarts)).clone()


INITIALISERS: dict[str, Initialiser] = {
    "gaussian": gaussian,
    "uniform": uniform,
    "zeros": zeros,
    "tiled": tiled,
    "auxiliary_mean": auxiliary_mean,
}

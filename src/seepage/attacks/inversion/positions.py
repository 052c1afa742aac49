"""Where a picture's patches lie, which a vision transformer's gradient hardly says.

Attention treats its tokens as a set, and a position embedding is faint beside the patches it is added to. So
patches in the wrong places lead to nearly the same gradient: a search ends at a cosine of .999 and a picture
below a grey one. The one parameter whose gradient has a row for each place is the position embedding itself
(its gradient is dL/dz at every patch, see `closed_form.patch_embedding`), and it is a thousandth of the
squared length. It is given more weight here.
"""

from __future__ import annotations

from torch import nn

from seepage.attacks.inversion.distances import Weights
from seepage.attacks.inversion.problem import Problem
from seepage.core.errors import NotApplicable
from seepage.core.types import Modality
from seepage.models.patch_positions import trace_embedding

SHARE = 10.0
"""Weighted squared length of the position embedding's gradient, in those of all others together. Tried with
.3 to 30 on three pictures of CIFAR-10 and as many vision transformers (seeds 239000-2): 10 and 30 lie within
1 dB of one another, 3 up to 9 dB below, 1 up to 15. Tested: test_the_position_s_share_lies_on_a_plateau."""


def positions_first(problem: Problem) -> Weights:
    """A weight for each parameter; None where no position embedding is added to patches and trained."""
    name = _position_embedding(problem)
    if name is None:
        return None
    squares = [float(tensor.square().sum()) for tensor in problem.observed]
    place = problem.names.index(name)
    others = sum(squares) - squares[place]
    if not squares[place] > 0:
        return None
    return [SHARE * others / squares[place] if i == place else 1.0 for i in range(len(squares))]


def _position_embedding(problem: Problem) -> str | None:
    if problem.spec.modality is not Modality.IMAGE or not _cuts_patches(problem.model):
        return None
    try:
        train = problem.training.batch_norm == "train"
        return trace_embedding(problem.model, problem.spec, train=train).position
    except NotApplicable:
        return None


def _cuts_patches(model: nn.Module) -> bool:
    """Whether it can be a vision transformer at all: others need not be copied and run to know."""
    found = (m for m in model.modules() if isinstance(m, nn.Conv2d))
    return any(m.kernel_size == m.stride and m.kernel_size != (1, 1) for m in found)

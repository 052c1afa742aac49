"""What the server sees of the first dense layer: its gradient's spaces, and what a row would have sent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from seepage.attacks.reading.scale import expected_kappa
from seepage.attacks.tables.fitting import Signals
from seepage.attacks.tables.front import Front, front_of, precise
from seepage.attacks.tables.row_space import RowSpace, row_space
from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge
from seepage.models.gradients import LayerGradient, layer_gradient
from seepage.models.signals import BackwardSignals, draws_chances
from seepage.protocol.losses import OF_NUMBERS

MOST_CLASSES = 32
"""Beyond so many, signals of every label are not tried. Cost: each label is a pass."""

MOST_EXAMPLES = 10_000
"""Where the client does not say how many it has. Cost: a row is written down as often as it is there."""


@dataclass(frozen=True)
class Sight:
    """The layer that reads the table, and its update."""

    model: nn.Module
    """In float64."""
    front: Front
    gradient: LayerGradient
    space: RowSpace
    signals: Signals | None
    """What rows send; None where the server cannot compute it: several steps, dropout, many classes."""
    most: int
    """How often a row can be there: not more often than there are examples."""
    factor: float
    """What the gradient must be multiplied by to be a sum over examples, where signals are known."""


def sight_of(exchange: Exchange, known: Knowledge) -> Sight:
    """NotApplicable says what stands in the way."""
    model, spec = precise(exchange.broadcast.model), known.input
    front = front_of(model, spec)
    gradient = layer_gradient(exchange, known, front.layer)
    space = row_space(gradient, most=exchange.update.num_examples)
    if space is None:
        raise NotApplicable(
            f"the gradient of '{front.layer.name}' has no gap in its spectrum, as of more rows than its "
            f"{min(gradient.weight.shape)} inputs or neurons, or of noise: 'tableak' searches instead."
        )
    if known.local is not None and known.local.batch_norm == "train" and not space.biased:
        raise NotApplicable(
            f"a batch norm in train mode behind '{front.layer.name}' takes the mean over the batch away, so "
            "that no row lies in the span of the gradient: 'tableak' searches instead."
        )
    most = exchange.update.num_examples or MOST_EXAMPLES
    kappa = expected_kappa(exchange, known)
    one_step = gradient.steps == 1 and not draws_chances(model, known.local)
    if (
        not one_step
        or known.loss in OF_NUMBERS
        or gradient.scale is None
        or kappa is None
        or spec.num_classes > MOST_CLASSES
    ):
        return Sight(model, front, gradient, space, None, most, 0.0)
    signals = BackwardSignals(model, front.layer, spec, loss=known.loss).at_all_rows
    return Sight(model, front, gradient, space, signals, most, gradient.scale * kappa)

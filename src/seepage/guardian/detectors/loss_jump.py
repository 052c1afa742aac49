"""Does the received model do much worse on the client's own data than those of the rounds before?

Crafted weights throw away what training had learned. Nothing leaves the client for this, and the model is
only evaluated. A model that has learned nothing yet has nothing to lose: in the first rounds it says little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Batch, Broadcast, Detector, Finding
from seepage.guardian.detectors.calibrated import Reading, judge, thresholds
from seepage.guardian.detectors.harmless import run
from seepage.guardian.detectors.layers import tensors_of
from seepage.guardian.detectors.step_history import MOST_ROUNDS
from seepage.protocol import LOSSES, loss_name, training_mode

_MOST_EXAMPLES = 128
"""Examples whose loss is measured. Cost: one pass forward for each."""
_LEAST_LOSS = 0.1
"""Added to every loss: between .001 and .01 there is no difference that matters. Tested:
test_constants_of_round_detectors_lie_on_a_plateau."""
_MOST = 9.0
"""Largest score, also of a loss that is no number. Derived: decimal logarithms; float32 holds seven
digits."""


def loss_jump(*, history: Sequence[nn.Module] = (), batch: Batch | None = None) -> Detector:
    """Rounds: the loss on the client's own examples, against what the models of earlier rounds had on them.

    >>> batch = Batch(torch.eye(8), torch.arange(8))
    >>> before, after = nn.Linear(8, 8), nn.Linear(8, 8)
    >>> _ = before.weight.data.copy_(9 * torch.eye(8))
    >>> finding = loss_jump(history=[before, before], batch=batch)(Broadcast(after))
    >>> finding.score > loss_jump(history=[after, after], batch=batch)(Broadcast(after)).score
    True
    """

    def detect(broadcast: Broadcast) -> Finding:
        if len(history) < 2:
            raise NotApplicable("fewer than two earlier rounds were given, so losses could not be compared.")
        if batch is None or not len(batch):
            raise NotApplicable("no labelled examples were given, so losses could not be compared.")
        losses = [_loss(model, batch) for model in (*history[-MOST_ROUNDS:], broadcast.model)]
        return judge(measure(losses), thresholds("loss_jump"))

    return detect


def measure(losses: Sequence[float]) -> Reading:
    """losses: one for each round on the same examples, that of the received model last.

    >>> measure([2.0, 1.0, 0.9]).score < 0 < measure([2.0, 1.0, 2.0]).score
    True
    """
    *earlier, now = losses
    # An honest training that has gone up before may do so again, by as much.
    rises = [after - before for before, after in pairwise(earlier)]
    most = max([0.0, *rises])
    expected = earlier[-1] + most
    ratio = (now + _LEAST_LOSS) / (expected + _LEAST_LOSS)
    score = min(_MOST, math.log10(ratio)) if math.isfinite(ratio) else _MOST
    words = (
        f"the loss on the client's examples is {now:.3g}, after {earlier[-1]:.3g} in the round before "
        f"(over {len(earlier)} rounds it never rose by more than {most:.2g})"
    )
    return Reading(score=score, layer=None, evidence=words)


def _loss(model: nn.Module, batch: Batch) -> float:
    tensors_of(model)
    parameter = next(model.parameters(), torch.zeros(1))
    chosen = batch.select(slice(0, _MOST_EXAMPLES)).to(parameter.device)
    with torch.no_grad(), training_mode(model, False):
        logits = run(model, chosen.inputs)
    name = loss_name("auto", logits.shape[1])
    if name == "cross_entropy" and int(chosen.labels.max()) >= logits.shape[1]:
        raise DataError(
            f"the sample has label {int(chosen.labels.max())}, but the model {logits.shape[1]} outputs only: "
            "give examples of the task the model is trained for."
        )
    return float(LOSSES[name](logits.float(), chosen.labels))

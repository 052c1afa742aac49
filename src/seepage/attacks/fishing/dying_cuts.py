"""Cuts in a network that dies after one step: whoever lies above, in several local steps (see `dying`).

The row of a class r that the batch lacks is gamma * u and its bias -gamma * t. An example with u.f > t has
p_r = 1 and weighs +1, whatever its class; one below has p_r = 0 and weighs nothing. So every catch lowers
the layer before, which dies. An example of class r below the cut would weigh -1 and raise it instead. No
softmax head cuts and lowers for all classes: it needs E_p[a](z) >= a_y for every class y of the batch at
every score z, while E_p[a] rises from the smallest slope a to the largest.

The biases go on moving after the death, and how they do shows the number of examples of every class, and so
that of r (`_classes`).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.cuts import ALONE, WHOLE
from seepage.attacks.fishing.dying import Dying, dying_model, sends_its_first_step
from seepage.attacks.fishing.head import Head, HeadReading, head_features, read_head
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Exchange, Knowledge

_SHARP = (1000.0, 100.0, 10.0)
"""How far the layers below may move for a sharper cut, where the network dies all the same: gamma times the
features' spread grows with it. Cost: one is tried after the other, the sharpest that works is taken."""
_ITERATIONS = 200
"""Of the fixed point of `_classes`. Derived: lr * steps = 10 with three classes gains a fifth each,
and .8^200 = 4e-20."""


def dying_everyone(model: nn.Module, head: Head, row: int, known: Knowledge) -> tuple[nn.Module, Dying]:
    """The network that dies, with a cut below everybody; NotApplicable where it would not die."""
    crafted, dying = dying_model(model, head, row, known, dies=_dies, sharp=_SHARP)
    return dying_cut(crafted, head, row, dying), dying


def dying_cut(crafted: nn.Module, head: Head, row: int, dying: Dying, above: float = -math.inf) -> nn.Module:
    """The same network with a cut that catches whoever has u.f > `above`."""
    assert head.bias is not None
    cut = copy.deepcopy(crafted)
    weight, bias = cut.get_parameter(head.weight), cut.get_parameter(head.bias)
    # half of the lowest: u.f is raised for everybody, and 0 in a dead network, which must catch nobody
    place = dying.lowest / 2 if math.isinf(above) else above
    with torch.no_grad():
        weight.zero_()
        weight[row] = dying.gamma * dying.u.to(weight)
        bias.zero_()
        bias[row] = math.log(head.classes - 1) - dying.gamma * place
    return cut


def _dies(crafted: nn.Module, head: Head, row: int, dying: Dying, known: Knowledge, inputs: Tensor) -> bool:
    """With one made-up example above the cut, and with all of them."""
    batch = Batch(inputs, torch.full((len(inputs),), (row + 1) % head.classes, device=inputs.device))
    scores = (head_features(crafted, head, inputs) @ dying.u).sort(descending=True).values
    cuts = [(len(inputs), -math.inf)]
    if len(scores) > 1 and float(scores[0]) > float(scores[1]):
        cuts.append((1, float(scores[:2].mean())))
    return all(
        sends_its_first_step(
            dying_cut(crafted, head, row, dying, above), head, dying, known, batch, caught=caught
        )
        for caught, above in cuts
    )


@dataclass(frozen=True)
class DyingReading:
    """What a cut caught in the first step that caught anybody."""

    head: HeadReading
    """The weight is not a number where the units of the layer disagree."""
    counts: Tensor | None
    """(K,) examples of each class; None where the biases did not go on as after a death in the first step."""

    def lacks(self, row: int) -> bool:
        """No example of this class is in the batch, provably."""
        return self.counts is not None and round(float(self.counts[row])) == 0


def read_dying_cut(exchange: Exchange, known: Knowledge, head: Head) -> DyingReading:
    """NotApplicable for mini-batches: an answer does not tell which of them caught first."""
    dying, row, local = exchange.secret.dying, exchange.secret.target, known.local
    examples = exchange.update.num_examples
    assert local is not None and examples is not None
    if len(exchange.clients) > 1:
        raise NotApplicable(
            "the update is a sum over clients that take several local steps, and one that catches nobody "
            "does not die: a cut needs single updates, or one local step; class_fishing reads such sums."
        )
    if local.batch_size is not None and local.batch_size < examples:
        raise NotApplicable(
            "clients train in mini-batches, and a cut is read from the first that catches anybody, whichever "
            "that was: it needs batches taken whole; class_fishing does not."
        )
    caught = math.nan
    moved = exchange.update.tensors[dying.bias].detach().double().cpu()
    each = moved * examples / (-local.lr * dying.gamma * dying.unit)
    middle = float(each.median())
    if float((each - middle).abs().max()) <= ALONE * max(1.0, abs(middle)):
        caught = middle
    return DyingReading(
        head=replace(read_head(exchange, known, head, row), weight=caught),
        counts=_classes(exchange, known, head, caught) if math.isfinite(caught) else None,
    )


def _classes(exchange: Exchange, known: Knowledge, head: Head, caught: float) -> Tensor | None:
    """(K,) examples of each class, by how the last biases went on after a death in the first step.

    With all features 0 a step moves them by -lr * (softmax(b) - shares): the shares that lead to the biases
    sent are found by iteration. Had the network lived on with an example of row r, these would be off by at
    least 1 / ((K - 1) * steps) examples of each class: None where they are no whole numbers to a quarter of
    that.
    """
    row, theta, local = exchange.secret.target, exchange.secret.theta, known.local
    examples = exchange.update.num_examples
    assert local is not None and examples is not None and head.bias is not None
    sent = exchange.update.tensors[head.bias].detach().double().cpu()
    others, steps = torch.arange(head.classes) != row, local.num_steps(examples)
    everybody = theta is None or math.isinf(theta)  # then p_r is 1 for those of class r too
    left = 0.0 if everybody else (1 - caught / examples) / (head.classes - 1)
    shares = torch.zeros(head.classes - 1, dtype=torch.float64)
    for _ in range(_ITERATIONS):
        biases = local.lr * (shares - left)
        for _ in range(steps - 1):
            biases = biases - local.lr * (biases.softmax(dim=0) - shares)
        shares = shares + (sent[others] - biases) / (local.lr * steps)
    counts = torch.zeros(head.classes, dtype=torch.float64)
    counts[others] = shares * examples
    counts[row] = examples - counts.sum()
    off = float((counts - counts.round()).abs().max())
    whole = off <= min(WHOLE, 0.25 / ((head.classes - 1) * steps)) and float(counts.min()) > -0.5
    return counts if whole else None

"""Whether what is called a gradient is a change of weights, told by the label counts that each would mean."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core.errors import SeepageError
from seepage.core.types import Exchange, Knowledge
from seepage.labels.evidence import gather_evidence
from seepage.labels.steps import CONSISTENT

_FITS = 0.1
"""Examples by which counts may miss whole numbers where the update is a change. Derived: twice what probes of
untrained networks are off by at 8 examples."""
_BY_CHANCE = 0.01
"""How often counts may be whole by chance, at some rate. Derived: one false word in a hundred."""
_RATES = 2000
"""Learning rates that are tried. Cost: milliseconds; the counts of neighbours differ by less than `_FITS`."""


def counts_say_delta(exchange: Exchange, known: Knowledge, num_examples: int) -> bool:
    """The output bias of a gradient is p - k / n, with k of n examples in a class (Zhao et al. 2020, eq. 4).

    A gradient must give counts near whole numbers, and so must a change, at some learning rate; with a wrong
    model, loss or number of examples neither does. Few classes say nothing: their counts are whole at some
    rate by chance.
    """
    try:
        evidence = gather_evidence(exchange, known)
    except SeepageError:  # no classifier, or nothing of its last layer was sent
        return False
    near = 2 * _FITS  # part of all numbers
    by_chance = num_examples / near * near ** (evidence.num_classes - 1)
    if evidence.bias is None or not evidence.bias.any() or by_chance > _BY_CHANCE:
        return False
    expected = num_examples * evidence.mean_prediction()
    if float(_off(expected - num_examples * evidence.bias)) <= CONSISTENT:
        return False
    # at any rate at which some count differs from what is expected, and none by more than all examples
    most = torch.linspace(0.5, num_examples, _RATES, dtype=torch.float64, device=expected.device)
    counts = expected + most[:, None] * evidence.bias / evidence.bias.abs().max()
    return bool(_off(counts).min() < _FITS)


def _off(counts: Tensor) -> Tensor:
    """Largest distance of a count from a number of examples."""
    return (counts - counts.round().clamp(min=0)).abs().amax(-1)

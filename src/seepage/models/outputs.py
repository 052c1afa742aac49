"""What a model returns, where it is not what a loss on logits expects."""

from __future__ import annotations

import torch
from torch import nn

from seepage.core.types import InputSpec
from seepage.models.probes import PROBE_EXAMPLES, dummy_inputs, run_model
from seepage.protocol import training_mode

_SUM = 1e-2
"""How far a sum of probabilities may be from 1. Derived: bfloat16 rounds each to 0.004 of itself, so all of
them together to no more."""


def doubts_about_outputs(model: nn.Module, spec: InputSpec) -> tuple[str, ...]:
    """One sentence where outputs are probabilities already: clients train them as if they were logits.

    Logarithms of probabilities are logits, and a single output may be anything.

    >>> from seepage.core.types import Modality
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=3)
    >>> doubts_about_outputs(nn.Linear(4, 3), spec)
    ()
    >>> len(doubts_about_outputs(nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)), spec))
    1
    """
    inputs = dummy_inputs(spec, PROBE_EXAMPLES, like=model)
    with torch.no_grad(), training_mode(model, False):
        output = run_model(model, inputs).float()
    if output.ndim != 2 or output.shape[1] < 2:
        return ()
    sums_to_one = bool(((output.sum(1) - 1).abs() <= _SUM).all())
    if not sums_to_one or not bool((output >= 0).all()):
        return ()
    return (
        "The model's outputs are probabilities, as of a softmax, and here clients train on them as if "
        "they were logits, which flattens the loss: if your clients take their logarithm first, audit the "
        "model without its softmax.",
    )

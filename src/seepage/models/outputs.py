"""What a model returns, where it is not what a loss on logits expects."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.core.types import InputSpec, Modality
from seepage.models.probes import PROBE_EXAMPLES, dummy_inputs, run_model
from seepage.protocol import training_mode

_SUM = 1e-2
"""How far a sum of probabilities may be from 1. Derived: bfloat16 rounds each to 0.004 of itself, so all of
them together to no more."""

_LARGE = 1e3
"""By what inputs are enlarged to see whether an output is bounded. Derived: a logit that moves by a hundredth
for a usual input moves by 10; the output of a sigmoid stays where it is at any size."""


def doubts_about_outputs(model: nn.Module, spec: InputSpec) -> tuple[str, ...]:
    """One sentence where outputs are probabilities already: clients train them as if they were logits.

    Logarithms of probabilities are logits. A single output is a probability if it stays in [0, 1] however
    large the input is; texts cannot be enlarged, so they are not judged.

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
        if output.ndim != 2:
            return ()
        if output.shape[1] == 1:
            if spec.modality is Modality.TEXT:
                return ()
            return _doubt_about_one(torch.cat([run_model(model, s * inputs) for s in (1, _LARGE, -_LARGE)]))
    sums_to_one = bool(((output.sum(1) - 1).abs() <= _SUM).all())
    if not sums_to_one or not bool((output >= 0).all()):
        return ()
    return (
        "The model's outputs are probabilities, as of a softmax, and here clients train on them as if "
        "they were logits, which flattens the loss: if your clients take their logarithm first, audit the "
        "model without its softmax.",
    )


def _doubt_about_one(output: Tensor) -> tuple[str, ...]:
    if not bool(((output >= 0) & (output <= 1)).all()) or bool((output == output[0]).all()):
        return ()
    return (
        "The model's output is a probability, as of a sigmoid, and here clients train on it as if it were a "
        "logit, which flattens the loss: if your clients take the cross-entropy of it as it is (BCELoss), "
        "audit the model without its sigmoid.",
    )

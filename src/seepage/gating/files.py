"""The gate for files: `seepage gate MODEL --data my_batch.npz [--update u.safetensors]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from seepage.core.errors import SpecError
from seepage.core.types import LocalTraining
from seepage.data import load_data, standardised
from seepage.gating.measuring import gate
from seepage.gating.report import GateReport
from seepage.models.loading import build_model
from seepage.models.weights import read_state_dict


def gate_file(
    model: Any,
    *,
    data: Any,
    weights: str | Path | None = None,
    update: str | Path | None = None,
    local: LocalTraining | None = None,
    limit: int = 64,
    **options: Any,
) -> GateReport:
    """Measure an update before it is sent.

    model: a model's name, function or module; weights: the file that was received. data: the private
    examples (a dataset's name, path or object), all of them, at most `limit`. update: a file of tensors by
    parameter name; without it the gradient of the batch is measured.
    """
    examples = load_data(data)
    examples = standardised(examples, torch.arange(len(examples)))
    if len(examples) > limit and update is not None:
        raise SpecError(
            f"the data hold {len(examples)} examples and an update was given: give the very batch behind it, "
            f"or raise the limit of {limit}."
        )
    built = build_model(model, examples.spec, weights=None if weights is None else str(weights))
    tensors = None if update is None else read_state_dict(update)
    mine = examples.batch(torch.arange(min(limit, len(examples))))
    return gate(built, tensors, mine, spec=examples.spec, local=local, **options)

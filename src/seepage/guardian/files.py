"""`guard_file`: the guard for a file of weights, which needs no model class and runs nothing in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seepage.detectors import as_module
from seepage.errors import SpecError
from seepage.guardian.check import GuardReport, guard
from seepage.types import InputSpec
from seepage.workloads.data import load_data
from seepage.workloads.models.loading import build_model
from seepage.workloads.models.weights import read_state_dict

Builder = str | Callable[..., nn.Module] | nn.Module

_MOST_EXAMPLES = 256


def guard_file(
    path: str | Path,
    *,
    previous: str | Path | None = None,
    builder: Builder | None = None,
    sample: Any = None,
    spec: InputSpec | None = None,
) -> GuardReport:
    """Check the weights in a .safetensors, torch.save or TorchScript file.

    previous: the file of an earlier round.
    builder: a model's name, function or module; with it the model is also run on harmless inputs.
    sample: public data (a dataset's name, path or object), which also tells the shape of the inputs.
    spec: shape and value range of the inputs, where there is no sample; noise is used then.
    """
    before = None if previous is None else as_module(read_state_dict(previous))
    public = None if sample is None else load_data(sample)
    known = spec if spec is not None or public is None else public.spec
    if builder is None:
        if known is not None:
            raise SpecError(
                "a sample or input specification was given, but a file of weights cannot be run without its "
                "model: name the model that the weights belong to as well, or leave the sample out."
            )
        return guard(as_module(read_state_dict(path)), previous=before)
    if known is None:
        raise SpecError(
            "a model was named, but not what its inputs are: give public data as a sample, or an InputSpec."
        )
    model = build_model(builder, known, weights=path)
    examples = None
    if public is not None:
        order = torch.randperm(len(public), generator=torch.Generator().manual_seed(0))
        examples = public.batch(order[:_MOST_EXAMPLES])
    return guard(model, previous=before, sample=examples, spec=known)

"""`guard_file`: the guard for a file of weights, which needs no model class and runs nothing in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.errors import SpecError
from seepage.core.types import InputSpec
from seepage.data import Dataset, load_data, standardised
from seepage.guardian.check import GuardReport, guard
from seepage.guardian.detectors import as_module
from seepage.guardian.detectors.layers import fresh_generator
from seepage.guardian.shards import read_weights
from seepage.models.loading import build_model

Builder = str | Callable[..., nn.Module] | nn.Module

_MOST_EXAMPLES = 256
"""Examples of a sample that are looked at. Cost: one pass forward for each."""


def guard_file(
    path: str | Path,
    *,
    previous: str | Path | Sequence[str | Path] | None = None,
    builder: Builder | None = None,
    sample: Any = None,
    spec: InputSpec | None = None,
) -> GuardReport:
    """Check the weights in a .safetensors, torch.save or TorchScript file, or in all that an index names.

    previous: the file of an earlier round, or those of several, the oldest first.
    builder: a model's name, function or module; with it the model is also run on harmless inputs.
    sample: data (a dataset's name, path or object), which also tells the shape of the inputs. Public data
        will do; given two or more earlier rounds, losses are compared on it, best on the client's own.
    spec: shape and value range of the inputs, where there is no sample; noise is used then.
    """
    earlier = [previous] if isinstance(previous, str | Path) else list(previous or ())
    public = None if sample is None else _as_fed(load_data(sample))
    known = spec if spec is not None or public is None else public.spec
    if builder is None:
        if known is not None:
            raise SpecError(
                "a sample or input specification was given, but a file of weights cannot be run without its "
                "model: name the model that the weights belong to as well, or leave the sample out."
            )
        return guard(
            as_module(read_weights(path)), history=[as_module(read_weights(file)) for file in earlier]
        )
    if known is None:
        raise SpecError(
            "a model was named, but not what its inputs are: give public data as a sample, or an InputSpec."
        )
    model = build_model(builder, known, weights=path)
    states = [read_weights(file) for file in earlier]
    now = _shapes(read_weights(path))
    # Of another architecture they cannot be run, which the comparison with the last one will tell.
    alike = all(_shapes(state) == now for state in states)
    before = [build_model(builder, known, weights=file) for file in earlier] if alike else []
    last = as_module(states[-1]) if states else None
    examples = None
    if public is not None:
        order = torch.randperm(len(public), generator=fresh_generator())
        examples = public.batch(order[:_MOST_EXAMPLES])
    return guard(model, previous=last, history=before, sample=examples, spec=known)


def _as_fed(sample: Dataset) -> Dataset:
    """A table is standardised by itself: no client's rows are hidden from anybody here."""
    return standardised(sample, torch.arange(len(sample)))


def _shapes(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}

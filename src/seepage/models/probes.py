"""Made-up inputs, and running a model on them with an answer in one sentence where it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.errors import DataError, ModelError
from seepage.core.types import InputSpec, Modality
from seepage.core.user_code import USER_CODE_ERRORS, reason
from seepage.protocol.widening import model_placement

PROBE_EXAMPLES = 2
"""Derived: enough to tell what depends on the example from what does not."""


def dummy_inputs(
    spec: InputSpec, count: int, *, like: nn.Module, seed: int = 0, model_units: bool = False
) -> Tensor:
    """`count` random examples as `like` is fed them; the global random state is left alone.

    Uniform over the value range where it is known, standard normal where it is not (or where
    `model_units` says that clients normalise in a way the server was not told), uniform tokens for text.

    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=2)
    >>> dummy_inputs(spec, 3, like=nn.Linear(4, 2)).shape
    torch.Size([3, 1, 2, 2])
    """
    device, dtype = model_placement(like)
    generator = torch.Generator().manual_seed(seed)
    size = (count, *spec.shape)
    if spec.modality is Modality.TEXT:
        if spec.vocabulary is None:
            raise DataError("The input specification of text has no vocabulary size: set `vocabulary`.")
        return torch.randint(spec.vocabulary, size, generator=generator).to(device)
    if spec.value_range is None or model_units:
        return torch.randn(size, generator=generator).to(device, dtype)
    low, high = spec.value_range
    return spec.to_model((low + (high - low) * torch.rand(size, generator=generator)).to(device, dtype))


def run_model(model: Callable[[Tensor], Any], inputs: Tensor) -> Tensor:
    """The model's output on `inputs`, or a ModelError in one sentence."""
    try:
        output = model(inputs)
    except USER_CODE_ERRORS as error:
        raise ModelError(
            f"The model cannot take a batch of shape {tuple(inputs.shape)} in "
            f"{str(inputs.dtype).removeprefix('torch.')} ({reason(error)}): make the input specification's "
            "shape fit the model, and let its forward keep to the type of its weights."
        ) from error
    if not isinstance(output, Tensor):
        raise ModelError(
            f"The model returns {type(output).__name__} instead of a tensor of logits: wrap it so that "
            "forward returns the logits."
        )
    return output


def same_values(a: Tensor, b: Tensor) -> bool:
    """Equal once both are flattened from the batch dimension on.

    >>> same_values(torch.tensor([3, 4]), torch.tensor([[3], [4]]))  # one index an example
    True
    """
    if a.dim() == 0 or b.dim() == 0 or len(a) != len(b):
        return False
    return torch.equal(a.reshape(len(a), -1), b.reshape(len(b), -1))

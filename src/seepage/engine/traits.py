"""What sets one private example apart from others: for asking who leaks (Wen et al. 2022, Section 6)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.core.types import Batch, InputSpec, Modality
from seepage.protocol import training_mode
from seepage.protocol.losses import LOSSES, each_token, loss_of_numbers, next_token

BLOCK = 256
"""Examples at a time. Cost: what the model makes of them is in memory together."""


def example_traits(
    truth: Batch, public: Batch | None, model: nn.Module, spec: InputSpec, *, loss: str = "auto"
) -> dict[str, Tensor]:
    """By name, one number for each example: its loss under the honest model, its distance from its class.

    distance: root mean square of the difference from the mean public example of the same class (of all
    classes where the class has none), in model units. Not for text.
    """
    traits = {"loss": _by_blocks(truth, lambda some: _losses(some, model, loss))}
    if public is not None and len(public) and spec.modality is not Modality.TEXT:
        centre = _centres(public)
        traits["distance"] = _by_blocks(truth, lambda some: _distances(some, centre))
    return traits


def _by_blocks(truth: Batch, measure: Callable[[Batch], Tensor]) -> Tensor:
    """(n,) of all examples, some at a time: what a model makes of ten thousand at once fills the memory."""
    starts = range(0, len(truth), BLOCK)
    return torch.cat([measure(truth.select(slice(start, start + BLOCK))) for start in starts])


def _centres(public: Batch) -> Callable[[int], Tensor]:
    """From a class to its mean public example; to that of all classes where it has none."""
    overall = public.inputs.mean(dim=0)
    of_class = {int(c): public.inputs[public.classes == c].mean(dim=0) for c in public.classes.unique()}
    return lambda label: of_class.get(label, overall)


def _distances(truth: Batch, centre: Callable[[int], Tensor]) -> Tensor:
    centres = torch.stack([centre(int(label)) for label in truth.classes])
    return (truth.inputs - centres).flatten(1).square().mean(dim=1).sqrt().cpu()


def _losses(truth: Batch, model: nn.Module, loss: str) -> Tensor:
    with torch.no_grad(), training_mode(model, False):
        logits = model(truth.inputs)
        if logits.ndim == 3:  # of each text, over its tokens
            measure = next_token if truth.targets is None else each_token
            wanted = truth.inputs if truth.targets is None else truth.targets
            each = [measure(one[None], ids[None]) for one, ids in zip(logits, wanted, strict=True)]
            return torch.stack(each).cpu()
        if truth.labels.is_floating_point():
            of_one = LOSSES[loss_of_numbers(loss, truth.labels)]
            return torch.stack([of_one(*one) for one in zip(logits, truth.labels, strict=True)]).cpu()
        if logits.shape[-1] == 1:
            targets = truth.labels.to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits.squeeze(-1), targets, reduction="none").cpu()
        return F.cross_entropy(logits, truth.labels, reduction="none").cpu()

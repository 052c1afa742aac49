"""What sets one private example apart from others: for asking who leaks (Wen et al. 2022, Section 6)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.core.types import Batch, InputSpec, Modality
from seepage.protocol import training_mode
from seepage.protocol.losses import next_token


def example_traits(
    truth: Batch, public: Batch | None, model: nn.Module, spec: InputSpec
) -> dict[str, Tensor]:
    """By name, one number for each example: its loss under the honest model, its distance from its class.

    distance: root mean square of the difference from the mean public example of the same class (of all
    classes where the class has none), in model units. Not for text.
    """
    traits = {"loss": _losses(truth, model)}
    if public is not None and len(public) and spec.modality is not Modality.TEXT:
        overall = public.inputs.mean(dim=0)
        of_class = {int(c): public.inputs[public.labels == c].mean(dim=0) for c in public.labels.unique()}
        centres = torch.stack([of_class.get(int(label), overall) for label in truth.labels])
        traits["distance"] = (truth.inputs - centres).flatten(1).square().mean(dim=1).sqrt().cpu()
    return traits


def _losses(truth: Batch, model: nn.Module) -> Tensor:
    with torch.no_grad(), training_mode(model, False):
        logits = model(truth.inputs)
        if logits.ndim == 3:  # of each text, over its tokens
            each = [next_token(one[None], ids[None]) for one, ids in zip(logits, truth.inputs, strict=True)]
            return torch.stack(each).cpu()
        if logits.shape[-1] == 1:
            targets = truth.labels.to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits.squeeze(-1), targets, reduction="none").cpu()
        return F.cross_entropy(logits, truth.labels, reduction="none").cpu()

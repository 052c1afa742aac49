"""Soteria: hiding the entries of a representation that tell most about the input (Sun et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.defenses.layers import Executed, executed, parameter_names
from seepage.errors import DataError, ModelError, SpecError
from seepage.registry import unknown
from seepage.types import Batch, Broadcast, Defense, LocalStep, Update


def soteria(*, share: float = 0.6, layer: str | None = None) -> Defense:
    """Client: prune the `share` of a dense layer's inputs that reveal most from that layer's gradient.

    With r the layer's input and X the model's, an entry r_i counts as revealing where ||dr_i/dX|| / |r_i|,
    summed over the batch, is small (the authors' approximation of ||r_i (dr_i/dX)^-1||, Section 4); its
    column of the weight gradient is sent as zeros. Under FedAvg the mask is computed once, at the received
    model. It costs one backward pass an entry of r: minutes for a wide convolutional network.

    layer: the defended nn.Linear; by default the first one that is run once for each example.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share must be zero or more and below 1 (0.6 prunes 60 %), not {share}")

    def defend(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        weight, mask = soteria_mask(broadcast.model, batch.inputs, share=share, layer=layer)
        update = next_step(broadcast, batch)
        if weight not in update.tensors:
            raise ModelError(
                f"Soteria defends '{weight}', which is frozen and never sent: choose another layer."
            )
        return replace(update, tensors={**update.tensors, weight: update.tensors[weight] * mask})

    return defend


def soteria_mask(
    model: nn.Module, inputs: Tensor, *, share: float, layer: str | None = None
) -> tuple[str, Tensor]:
    """The name of the defended weight, and (features,) zeros for what is pruned and ones for the rest."""
    if not inputs.is_floating_point():
        raise DataError("Soteria needs inputs that can be differentiated by, not token ids: use 'dp_sgd'.")
    images = inputs.detach().clone().requires_grad_()
    with torch.enable_grad():
        found = _defended(executed(model, images, lambda m: isinstance(m, nn.Linear)), layer)
        features = found.input
        if features is None or not features.requires_grad:
            raise ModelError(
                f"layer '{found.name}' does not depend on the input smoothly: choose another one."
            )
        ratio = _sensitivity(features, images)
    revealing = ratio.argsort(stable=True)[: round(share * len(ratio))]
    # An entry that is zero for every example has a zero column anyway (ratio inf): it uses up no budget.
    revealing = revealing[ratio[revealing].isfinite()]
    mask = torch.ones_like(ratio).index_fill(0, revealing, 0.0)
    return parameter_names(model)[id(found.module.weight)], mask


def _sensitivity(features: Tensor, images: Tensor) -> Tensor:
    """(F,) sum over the examples of ||dr_i/dX|| / |r_i|, over those with r_i != 0; inf where there is none.

    Examples do not mix in eval mode, so one backward pass gives dr_i/dX for all of them.
    """
    ratios = []
    for i in range(features.shape[1]):
        slope = torch.autograd.grad(features[:, i].sum(), images, retain_graph=True)[0]
        size = features[:, i].detach().abs()
        alive = size > 0
        sums = (slope.flatten(1).norm(dim=1)[alive] / size[alive]).sum()
        ratios.append(sums if alive.any() else sums.new_tensor(torch.inf))
    return torch.stack(ratios)


def _defended(dense: list[Executed], name: str | None) -> Executed:
    """The layer of this name, or the first that sees each example once: (n, features)."""
    usable = [d for d in dense if d.input is not None and d.input.dim() == 2]
    if name is not None:
        for d in usable:
            if d.name == name:
                return d
        raise SpecError(unknown("dense layer for Soteria", name, [d.name for d in usable]))
    if not usable:
        raise ModelError("Soteria defends a dense layer, and this model runs none: use another defense.")
    return usable[0]

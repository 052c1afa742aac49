"""Soteria: hiding the entries of a representation that tell most about the input (Sun et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from seepage.core.errors import DataError, ModelError, SpecError
from seepage.core.registry import unknown
from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.layers import Executed, executed, parameter_names
from seepage.defenses.randomness import noise_generator

PROBES_AT_ONCE = 8
"""Probes in one backward pass. Cost: memory; results do not depend on it."""


def soteria(
    *, share: float = 0.6, layer: str | None = None, probes: int = 16, seed: int | None = None
) -> Defense:
    """Client: prune the `share` of a dense layer's inputs that reveal most from that layer's gradient.

    With r the layer's input and X the model's, an entry r_i counts as revealing where ||dr_i/dX|| / |r_i|,
    summed over the batch, is small (the authors' approximation of ||r_i (dr_i/dX)^-1||, Section 4); its
    column of the weight gradient is sent as zeros. Under FedAvg the mask is computed once, at the received
    model.

    layer: the defended nn.Linear; by default the first one that is run once for each example.
    probes: all norms ||dr_i/dX|| are estimated at once from so many random directions, with a relative error
    of about sqrt(1 / (2 probes)): on a ConvNet of width 16 the default chooses what the exact norms choose
    but for 0.3 % of the entries, 20 times faster. 0: exact, by one backward pass an entry of r.
    """
    if probes < 0:
        raise ValueError(f"probes must be zero (exact norms) or more, not {probes}")
    if not 0 <= share < 1:
        raise ValueError(f"share must be zero or more and below 1 (0.6 prunes 60 %), not {share}")
    generator = noise_generator(seed)

    def defend(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        weight, mask = soteria_mask(
            broadcast.model, batch.inputs, share=share, layer=layer, probes=probes, generator=generator
        )
        update = next_step(broadcast, batch)
        if weight not in update.tensors:
            raise ModelError(
                f"Soteria defends '{weight}', which is frozen and never sent: choose another layer."
            )
        return replace(update, tensors={**update.tensors, weight: update.tensors[weight] * mask})

    return defend


def soteria_mask(
    model: nn.Module,
    inputs: Tensor,
    *,
    share: float,
    layer: str | None = None,
    probes: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[str, Tensor]:
    """The name of the defended weight, and (features,) zeros for what is pruned and ones for the rest."""
    if not inputs.is_floating_point():
        raise DataError("Soteria needs inputs that can be differentiated by, not token ids: use 'dp_sgd'.")
    images = inputs.detach().clone().requires_grad_()
    with torch.enable_grad():
        found = _defended(_dense(model, images), layer)
        features = found.input
        if features is None or not features.requires_grad:
            raise ModelError(
                f"layer '{found.name}' does not depend on the input smoothly: choose another one."
            )
        if probes == 0:
            slopes = _slopes(features, images)
        else:
            slopes = _estimated_slopes(model, found.name, images.detach(), probes, generator)
    ratio = _summed_ratio(slopes, features.detach())
    revealing = ratio.argsort(stable=True)[: round(share * len(ratio))]
    # An entry that is zero for every example has a zero column anyway (ratio inf): it uses up no budget.
    revealing = revealing[ratio[revealing].isfinite()]
    mask = torch.ones_like(ratio).index_fill(0, revealing, 0.0)
    return parameter_names(model)[id(found.module.weight)], mask


def _dense(model: nn.Module, inputs: Tensor) -> list[Executed]:
    """Those whose weight is a parameter of its own, and not computed from others (weight norm)."""
    own = parameter_names(model)
    return executed(model, inputs, lambda m: isinstance(m, nn.Linear) and id(m.weight) in own)


def _slopes(features: Tensor, images: Tensor) -> Tensor:
    """(n, F): ||dr_i/dX|| of every example.

    Examples do not mix in eval mode, so one backward pass gives dr_i/dX for all of them. Passes for several
    entries at once cost as much: the arithmetic of the convolutions is what takes the time.
    """
    norms = []
    for i in range(features.shape[1]):
        slope = torch.autograd.grad(features[:, i].sum(), images, retain_graph=True)[0]
        norms.append(slope.flatten(1).norm(dim=1))
    return torch.stack(norms, dim=1)


def _estimated_slopes(
    model: nn.Module, layer: str, images: Tensor, probes: int, generator: torch.Generator | None
) -> Tensor:
    """The same from random directions: E (dr_i/dX . v)^2 = ||dr_i/dX||^2 for standard normal v.

    Forward mode gives one direction's derivative of all entries at once.
    """

    def features(x: Tensor) -> Tensor:
        found = _defended(_dense(model, x), layer).input
        assert found is not None
        return found

    def along(direction: Tensor) -> Tensor:
        slope: Tensor = jvp(features, (images,), (direction,))[1]
        return slope

    squares = torch.zeros((), device=images.device, dtype=images.dtype)
    for start in range(0, probes, PROBES_AT_ONCE):
        some = min(PROBES_AT_ONCE, probes - start)
        directions = torch.randn(some, *images.shape, generator=generator, dtype=images.dtype)
        try:
            slopes = vmap(along)(directions.to(images.device))
        except NotImplementedError as error:
            raise ModelError(
                f"Soteria cannot estimate this model's derivatives ({str(error).splitlines()[0]}): set "
                "probes = 0, which computes them one by one."
            ) from error
        squares = squares + slopes.square().sum(dim=0)  # (n, F)
    return (squares / probes).sqrt()


def _summed_ratio(slopes: Tensor, features: Tensor) -> Tensor:
    """(F,) sum over the examples with r_i != 0 of ||dr_i/dX|| / |r_i|; inf where there is none."""
    alive = features != 0
    ratios = torch.where(alive, slopes / features.abs(), torch.zeros_like(slopes)).sum(dim=0)
    return torch.where(alive.any(dim=0), ratios, torch.full_like(ratios, torch.inf))


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

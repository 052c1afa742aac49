"""From what a layer reads back to the model's input, by search: the server knows every weight before it.

Through a crafted pass-through the way back is linear and the search ends at once, whatever hides it. Through
honest convolutions it may end elsewhere; what it ends at is then compared like any other candidate.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.core.types import INPUT_SPACE, InputSpec, Reconstruction
from seepage.models.hooks import watching
from seepage.protocol import training_mode

_STEPS = 60
"""Of L-BFGS. Cost: each is two passes; a linear way back needs fewer than ten."""
_MOST = 128
"""Candidates that are taken back. Cost: time with their number."""


def inputs_from(model: nn.Module, read: Reconstruction, spec: InputSpec) -> Reconstruction:
    """The same candidates in the input space, wherever the search for each of them ended."""
    wanted = read.values[:_MOST].detach().to(next(model.parameters()))
    inputs = _searched(model, read.space, wanted, _middle(spec, len(wanted)).to(wanted))
    return Reconstruction(values=spec.to_raw(inputs), space=INPUT_SPACE)


def _middle(spec: InputSpec, count: int) -> Tensor:
    low, high = spec.value_range or (-1.0, 1.0)
    raw = torch.full((count, *spec.shape), (low + high) / 2)
    return spec.to_model(raw) if spec.value_range is not None else torch.zeros_like(raw)


def _searched(model: nn.Module, layer: str, wanted: Tensor, start: Tensor) -> Tensor:
    x = start.clone().requires_grad_(True)
    size = wanted.flatten(1).norm(dim=1).clamp_min(1e-6)

    def errors() -> Tensor:
        with watching(model, layer) as seen:
            model(x)
        missed: Tensor = (seen[0].flatten(1) - wanted.flatten(1)).norm(dim=1) / size
        return missed

    optimiser = torch.optim.LBFGS([x], max_iter=_STEPS, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        total = errors().square().sum()
        total.backward()
        return total

    frozen = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad(), training_mode(model, False):
        try:
            for p in frozen:
                p.requires_grad_(False)
            optimiser.step(closure)
        finally:
            for p in frozen:
                p.requires_grad_(True)
    return torch.where(x.isfinite(), x, start).detach()  # a search that ran away is no candidate

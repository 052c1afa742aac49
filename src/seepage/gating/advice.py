"""What to change, each thing tried on the very update first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seepage.core.types import Broadcast, LocalTraining, Update
from seepage.defenses.clipping import clip_together
from seepage.defenses.gaussian_noise import add_noise
from seepage.defenses.randomness import noise_generator
from seepage.gating.attacked import Site
from seepage.gating.noise import needed_noise
from seepage.gating.report import Advice, Exposure
from seepage.protocol import client

TIMES = (1.0, 4.0, 16.0, 64.0)
"""Of the noise that the bound asks for, tried from below. Cost: each takes one more attack; seldom more than
the first."""
CLIP = 1.0
"""Norm that an update is clipped to. A choice: the noise that is tried is a multiple of it."""
_STEPS = 4
"""Local steps in place of one. Cost: one more training."""


def advise(site: Site, update: Update, exposures: Sequence[Exposure]) -> list[Advice]:
    """Every change that this deployment could make, with what is still recovered after it."""
    measured = []
    for change, changed, other in _changes(site, update, exposures):
        left = exposed(other or site, changed)
        if left is not None:  # what could not be measured is no advice
            measured.append(Advice(change=change, exposed=left))
    return measured


def exposed(site: Site, update: Update) -> int | None:
    """Examples that the attacks still have of this update; None where none could be run on it."""
    tried = site.attacked(update)
    return int(tried.recovered().sum()) if tried.measured else None


def _changes(
    site: Site, update: Update, exposures: Sequence[Exposure]
) -> Iterator[tuple[str, Update, Site | None]]:
    named = {one.example for one in exposures}
    kept = torch.tensor([i for i in range(len(site.batch)) if i not in named], dtype=torch.long)
    if 0 < len(kept) < len(site.batch):
        fewer = replace(site, batch=site.batch.select(kept))
        sent = client(site.local)(Broadcast(site.model), fewer.batch)
        yield f"leave out the {len(named)} exposed example(s)", sent, fewer
    if site.local.algorithm == "fedsgd" and len(site.batch) >= _STEPS:
        size = max(1, len(site.batch) // _STEPS)
        several = LocalTraining(
            algorithm="fedavg", batch_size=size, epochs=1, lr=site.local.lr, loss=site.local.loss
        )
        sent = client(several)(Broadcast(site.model), site.batch)
        yield f"train {_STEPS} local steps in place of one", sent, replace(site, local=several)
    layers = {
        one.layer for one in exposures if one.layer is not None and f"{one.layer}.weight" in update.tensors
    }
    if len(layers) == 1:
        layer = layers.pop()
        yield f"freeze layer '{layer}'", without(update, f"{layer}."), None
    needed = needed_noise(site, update)
    for times in TIMES:
        noisy = noised(update, times * needed)
        if exposed(site, noisy) == 0 or times == TIMES[-1]:
            yield f"clip to {CLIP:g} and add noise of {times * needed:.2g} to each coordinate", noisy, None
            return


def without(update: Update, prefix: str) -> Update:
    """The update with nothing of one layer: what a frozen layer sends."""
    tensors = {n: torch.zeros_like(t) if n.startswith(prefix) else t for n, t in update.tensors.items()}
    return replace(update, tensors=tensors)


def noised(update: Update, sigma: float) -> Update:
    """Clipped as a whole, then noise on every coordinate."""
    clipped: dict[str, Tensor] = clip_together(update.tensors, CLIP)
    return replace(update, tensors=add_noise(clipped, sigma * CLIP, noise_generator(None)))

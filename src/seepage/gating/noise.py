"""How much noise hides an example from every server, whatever it runs.

Noise of standard deviation s on each number of an update u(x) leaves an unbiased estimate of the d values of
one example a variance of at least s^2 tr (J^T J)^-1 (Cramer and Rao), J = du / dx, even for a server that
knows all other examples. That trace is no smaller than d^2 / |J|^2 (|J|: Frobenius), so the mean squared
error of a value is at least s^2 d / |J|^2, and |J|^2 is the mean of |J v|^2 over random signs v: two passes.
Tokens have no derivative. For them s is the example's whole share of the update, with which no test between
the update with and without it errs less than one of two normals a standard deviation apart.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from seepage.core.types import Batch, Broadcast, Modality, Update
from seepage.gating.attacked import PICTURE, Site
from seepage.protocol import client

HIDDEN = PICTURE - 10.0
"""dB that the bound may allow. Derived: estimates that know what pictures look like are better than the
bound for unbiased ones; ten times the error leaves room for that."""
_STEP = 1e-3
"""Of the value range: half of the difference that a derivative is taken over. Derived: the cube root of
float32's rounding is 5e-3; shorter steps cross fewer kinks."""
_PROBES = 2
"""Random signs for each example. Cost: two passes each; the sum over a whole Jacobian settles with few."""
_TOP = 2.0
"""Over the largest estimate, for what the probes missed. Derived: both of two probes lie below half of |J|^2
with a chance of .27 where one direction has everything, which is the worst case."""


def needed_noise(site: Site, update: Update | None = None) -> float:
    """Noise on each number of an update, clipped to one, with which the bound allows `HIDDEN` for nobody.

    update: before the noise; None: what local training makes of the batch.
    """
    factor = _clipped_by(update or client(site.local)(Broadcast(site.model), site.batch))
    if site.spec.modality is Modality.TEXT:
        return factor * float(max(_share(site, i) for i in range(len(site.batch))))
    values = site.batch.inputs[0].numel()
    error = 10 ** (-HIDDEN / 10) * _range(site) ** 2
    return factor * math.sqrt(_TOP * error * _largest(site) / values)


def _clipped_by(update: Update) -> float:
    """What clipping to one, which comes before the noise, multiplies an update with."""
    norm = float(torch.stack([t.double().square().sum() for t in update.tensors.values()]).sum().sqrt())
    return 1.0 if norm <= 1.0 else 1.0 / norm


def _range(site: Site) -> float:
    """Between the lowest and the highest value, as the model is fed them; of a table four spreads."""
    values = site.batch.inputs
    if site.spec.modality is Modality.IMAGE and site.spec.value_range is not None:
        ends = torch.tensor(site.spec.value_range).reshape(2, *[1] * len(site.spec.shape))
        low, high = site.spec.to_model(ends.expand(2, *site.spec.shape))
        return float((high - low).max())
    return float(4 * values.std()) if values.numel() > 1 else 1.0


def _sent(site: Site, batch: Batch) -> Tensor:
    tensors = client(site.local)(Broadcast(site.model), batch).tensors
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def _independent(site: Site) -> bool:
    """One step without statistics of the batch: the update is a sum over examples."""
    return site.local.algorithm == "fedsgd" and site.local.batch_norm == "eval"


def _weight(site: Site) -> float:
    """Of one example in the sum."""
    return 1.0 if site.loss == "cross_entropy_sum" else 1 / len(site.batch)


def _sensitivity(site: Site, batch: Batch) -> float:
    """|J|^2 of what this batch sends with respect to all of its examples."""
    generator = torch.Generator().manual_seed(0)
    step = _STEP * _range(site)
    found = []
    for _ in range(_PROBES):
        signs = torch.randint(2, batch.inputs.shape, generator=generator).to(batch.inputs) * 2 - 1
        moved = [_sent(site, replace(batch, inputs=batch.inputs + way * signs)) for way in (step, -step)]
        found.append(float(((moved[0] - moved[1]) / (2 * step)).double().square().sum()))
    return max(found)


def _largest(site: Site) -> float:
    """|J|^2 of the most exposed example; where they depend on each other, of all, which is no less."""
    if not _independent(site):
        return _sensitivity(site, site.batch)
    alone = (site.batch.select(torch.tensor([i])) for i in range(len(site.batch)))
    return _weight(site) ** 2 * max(_sensitivity(site, one) for one in alone)


def _share(site: Site, i: int) -> float:
    """The norm of what example i adds."""
    if len(site.batch) == 1 or _independent(site):
        return _weight(site) * float(_sent(site, site.batch.select(torch.tensor([i]))).norm())
    others = torch.tensor([j for j in range(len(site.batch)) if j != i])
    return float((_sent(site, site.batch) - _sent(site, site.batch.select(others))).norm())

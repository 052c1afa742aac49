"""Probes of fishing (Wen et al. 2022): what was fished, beside the examples' own features and pictures."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seepage.attacks.fishing.binary_fishing import BinaryFishing
from seepage.attacks.fishing.catch import Catch, Fished
from seepage.attacks.fishing.head import find_head, head_features
from seepage.attacks.fishing.shared import Fishing
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.engine.probes import Seen
from seepage.metrics import assign, cosine, nearest_truth, psnr, registered_psnr
from seepage.protocol import local_update

SAME = 0.999
"""Cosine from which on a fished gradient or feature counts as that of one example."""
REGISTERED = 4
"""Pictures of a batch that are registered: those with the best plain PSNR, and as many drawn beforehand."""
COMPARED = 8
"""The same, where one picture is compared with a whole batch."""


def catch_of(seen: Seen) -> Catch:
    """What the attack fished, before anything was inverted."""
    assert isinstance(seen.attack, Fishing)
    return seen.attack.fish(seen.played.exchanges, seen.known)


def isolated(seen: Seen) -> dict[str, float]:
    """Queries of a binary attack, and how many examples came out alone: by the gradient of the whole network,
    or by the feature where the classification layer is all that is there."""
    attack, batch, catch = seen.attack, seen.played.truth, catch_of(seen)
    assert isinstance(attack, BinaryFishing)
    agreed = seen.played.exchanges[0].broadcast.model
    own = head_features(agreed, find_head(agreed, seen.data.spec), batch.inputs).double()  # (n, m)
    whole = own.shape[1:] != batch.inputs.shape[1:]
    similar: list[float] = []
    found: set[int] = set()
    false = 0
    for fished in catch.fished:
        nearest = int((fished.feature - own).norm(dim=1).argmin())
        if whole:
            truth = own_gradient(fished, batch.inputs[nearest])
            similar.append(gradient_cosine(dict(fished.tensors), truth))
        else:
            similar.append(float(cosine(fished.feature.unsqueeze(0), own[nearest : nearest + 1])))
        if fished.isolated and similar[-1] >= SAME:
            found.add(nearest)
        false += int(fished.isolated and similar[-1] < SAME)
    wanted = len(batch) if attack.all_of_them else 1
    return {
        "queries": float(catch.queries),
        "log2 n": math.log2(len(batch)),
        "bound": float(attack.query_bound(len(batch))),
        "isolated": len(found) / wanted,
        "false": false / wanted,
        "cosine": min(similar, default=0.0),
    }


def own_gradient(fished: Fished, example: Tensor) -> dict[str, Tensor]:
    """An example's true gradient under the model and label that a fished gradient belongs to."""
    alone = Batch(example.unsqueeze(0), torch.tensor([fished.label]))
    return dict(local_update(Broadcast(fished.model), alone, LocalTraining()).tensors)


def gradient_cosine(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """Over all parameters that `two` names.

    >>> round(gradient_cosine({"a": torch.tensor([3.0, 0.0])}, {"a": torch.tensor([1.0, 1.0])}), 4)
    0.7071
    """
    a = torch.cat([one[name].flatten().double() for name in two])
    b = torch.cat([two[name].flatten().double() for name in two])
    return float(a @ b / (a.norm() * b.norm()).clamp_min(torch.finfo(torch.float64).tiny))


def fished_picture(seen: Seen) -> dict[str, float]:
    """One picture, compared with the one that was fished, which its feature tells."""
    catch, batch, spec = catch_of(seen), seen.played.truth, seen.data.spec
    truth, values, own = spec.to_raw(batch.inputs), seen.result.values, 0
    if catch.fished:
        agreed = seen.played.exchanges[0].broadcast.model
        features = head_features(agreed, find_head(agreed, spec), batch.inputs)
        own = int((features - catch.fished[0].feature).norm(dim=1).argmin())
    else:
        values = torch.full_like(truth[:1], 0.5)
    truth = truth[own : own + 1]
    best = float(registered_psnr(values.clamp(0, 1), truth, data_range=1.0))
    flat = float(flat_psnr(truth))
    names = {"max": best, "mean": best, "flat max": flat, "flat mean": flat, "above flat": best - flat}
    return {**names, "isolated": float(bool(catch.fished))}


def whole_batch(seen: Seen) -> dict[str, float]:
    """All pictures at once, each compared with the one that the best assignment gives it."""
    truth, values = seen.data.spec.to_raw(seen.played.truth.inputs), seen.result.values.clamp(0, 1)
    return paired_scores(values[assign(values, truth).candidate], truth)


def paired_scores(values: Tensor, truth: Tensor) -> dict[str, float]:
    """Maximum and mean over a batch, with those of flat pictures."""
    best = psnr(values, truth, data_range=1.0).topk(min(REGISTERED, len(truth))).indices
    some = slice(REGISTERED)
    flat = flat_psnr(truth)
    mean = registered_psnr(values[some], truth[some], data_range=1.0)
    top = registered_psnr(values[best], truth[best], data_range=1.0)
    return {
        "max": float(torch.maximum(top.max(), mean.max())),
        "mean": float(mean.mean()),
        "flat max": float(flat.max()),
        "flat mean": float(flat.mean()),
        "above flat": float((mean - flat[some]).mean()),
    }


def one_picture(seen: Seen, *, own: bool = False) -> dict[str, float]:
    """The first candidate against all pictures of the batch; `own`: against its first alone."""
    truth = seen.data.spec.to_raw(seen.played.truth.inputs)
    truth = truth[:1] if own else truth
    plain, best, _ = one_against_batch(seen.result.values, truth)
    flat, claimed = flat_psnr(truth), seen.result.claimed
    return {
        "max": best,
        "mean": float(plain.mean()),
        "flat max": float(flat.max()),
        "flat mean": float(flat.mean()),
        "claimed": 0.0 if claimed is None else float(claimed.double().mean()),
    }


def one_against_batch(candidate: Tensor, truth: Tensor) -> tuple[Tensor, float, int]:
    """One picture (1, C, H, W) against a batch of them: plain PSNR of each (n,), the best registered one, and
    the nearest picture's index."""
    plain = psnr(candidate.expand_as(truth).contiguous(), truth, data_range=1.0)
    best = plain.topk(min(COMPARED, len(truth))).indices
    registered = registered_psnr(candidate.expand_as(truth[best]).contiguous(), truth[best], data_range=1.0)
    (nearest,) = nearest_truth(candidate, truth)[0].tolist()
    return plain, float(registered.max()), int(nearest)


def flat_psnr(truth: Tensor) -> Tensor:
    """(n,) PSNR of each picture's own mean colour, without any detail. Moving a flat picture changes nothing,
    so that its registered PSNR is the same.

    >>> round(flat_psnr(torch.tensor([[[[0.0, 1.0]]]])).item(), 4)  # every pixel is off by a half
    6.0206
    """
    flat = truth.mean(dim=(-2, -1), keepdim=True).expand_as(truth)
    return psnr(flat, truth, data_range=1.0)

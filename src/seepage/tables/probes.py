"""What the tables measure beside an audit's own scores: probes, which see the truth and attack nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.attacks.prior_only import flat_guess
from seepage.attacks.traps.traps import lonely
from seepage.core.types import Modality
from seepage.data import Dataset
from seepage.engine.probes import Seen
from seepage.engine.views import raw_candidates
from seepage.metrics import (
    EXACT_TOLERANCE,
    ExactRule,
    assign,
    data_range,
    exact_match,
    extraction_scores,
    mse,
    nearest_truth,
    psnr,
)
from seepage.models.choice import choose_layer
from seepage.models.hooks import layer_input, watching
from seepage.models.signals import BackwardSignals

CLEARLY = 1.0
"""dB above grey from which on a picture counts as recovered in part: what is seen in it lies above."""
KEPT_BATCHES = 100
_LEAST_POOL = 1000
_BATCHES_A_POOL = 10
"""Batches are drawn from so many times their size, so that two of them have little in common."""
_CHUNK = 250
_KEPT_SEED = 0
"""Not that of a run: all runs count the same batches."""


def pictures(seen: Seen) -> dict[str, float]:
    """Every picture of the batch beside the candidate that it is assigned at the least total error; one that
    got none counts as grey, the flat mid-range picture."""
    spec = seen.data.spec
    truth = spec.to_raw(seen.played.truth.inputs)
    unit = data_range(spec, truth)
    grey = flat_guess(spec).expand_as(truth).to(truth)
    values = raw_candidates(seen.result, spec, truth.dtype)
    found = assign(values, truth)
    shown = grey.clone()
    shown[found.matched] = values[found.candidate[found.matched]].to(shown)
    quality = psnr(shown, truth, data_range=unit)
    above = (quality >= psnr(grey, truth, data_range=unit) + CLEARLY).double()
    levels = torch.tensor([1.0, 0.9, 0.5, 0.0], dtype=quality.dtype)
    best, tenth, median, worst = quality.quantile(levels).tolist()
    return {
        "PSNR": float(quality.mean()),
        "best": best,
        "upper tenth": tenth,
        "median": median,
        "worst": worst,
        "above grey": float(above.mean()),
        "recovered": float(above.sum()),
        "error": float(mse(shown, truth).mean()),
        "exact": float(exact_match(shown, truth, data_range=unit).double().mean()),
    }


def mean_picture(seen: Seen) -> dict[str, float]:
    """PSNR of the mean of the whole dataset: a guess without any update."""
    spec, truth = seen.data.spec, seen.data.spec.to_raw(seen.played.truth.inputs)
    prior = seen.data.inputs.mean(dim=0, keepdim=True).expand_as(truth)
    return {"PSNR of the mean": float(psnr(prior, truth, data_range=data_range(spec, truth)).mean())}


def each_user(seen: Seen) -> dict[str, float]:
    """R of each client's own examples, whatever the server saw of them."""
    truth, clients = seen.data.spec.to_raw(seen.played.truth.inputs), seen.played.truth_clients
    return {
        f"R of user {client}": _recall(seen, truth[clients == client]) for client in clients.unique().tolist()
    }


def _recall(seen: Seen, truth: Tensor) -> float:
    low, high = seen.data.spec.value_range or (0.0, 1.0)
    found = seen.result
    assert found.rows is not None
    rule = ExactRule(unit=high - low)
    return extraction_scores(found.values, found.support, found.rows, truth, rule=rule).recall


def against_all(seen: Seen, *, batches: int) -> dict[str, float]:
    """R of what was read, counted against the examples of so many equal batches."""
    return {"R against all": seen.scored.batch_scores["extraction_recall"] / batches}


def kept_batches(seen: Seen, *, first: bool = False) -> dict[str, float]:
    """R of many batches under the model that was sent; `first`: also of the data's first examples.

    The paper's means go over 10 initialisations. If all of them saw the same batch, no average takes away
    what is special about that batch. R follows from the activations alone (an example is found where it is
    alone at some neuron), so many batches can be counted under the same models without a single gradient.
    """
    model, size = seen.played.exchanges[0].broadcast.model, len(seen.played.truth)
    generator = torch.Generator().manual_seed(_KEPT_SEED)
    drawn_from = max(_LEAST_POOL, _BATCHES_A_POOL * size)
    pool = torch.randperm(len(seen.data), generator=generator)[:drawn_from]
    fires = activations(model, seen.data, pool)  # (pool, N)
    recalls = {
        f"R of batch {k}": counted_recall(fires[torch.randperm(len(pool), generator=generator)[:size]])
        for k in range(KEPT_BATCHES)
    }
    if first:
        recalls["R first"] = counted_recall(activations(model, seen.data, torch.arange(size)))
    return recalls


@torch.no_grad()
def activations(model: nn.Module, data: Dataset, index: Tensor) -> Tensor:
    """(n, N) bool: which neurons of the first dense layer each example activates."""
    with watching(model, "relu0") as seen:
        for part in data.inputs[index].split(_CHUNK):
            model(part)
    return torch.cat(seen) > 0


def counted_recall(fires: Tensor) -> float:
    """R (eq. 10) by counting.

    >>> counted_recall(torch.tensor([[1, 1, 0], [0, 1, 0]]).bool())
    0.5
    """
    return float(lonely(fires).float().mean())


def peeled(seen: Seen) -> dict[str, float]:
    """What of the batch the attack claims rightly and wrongly, and how much of it left any trace."""
    found, spec, batch = seen.result, seen.data.spec, seen.played.truth
    if found.claimed is None:
        return {}
    truth = spec.to_raw(batch.inputs)
    claims = found.values[found.claimed.to(found.values.device)]
    low, high = spec.value_range or (0.0, 1.0)
    nearest, errors = nearest_truth(claims, truth)
    right = errors <= EXACT_TOLERANCE * (high - low)
    recall, traced = len(nearest[right].unique()) / len(truth), int(leaves_trace(seen).sum())
    scores = {
        "R peel": recall,
        "false": float((~right).sum()),
        "complete": float(found.complete is True),
        "no trace": float(len(batch) - traced),
    }
    if traced:
        scores["R traced"] = recall * len(batch) / traced
    if spec.modality is not Modality.TEXT and bool(right.any()):
        off = (claims[right] - truth[nearest[right]]).flatten(1).double().norm(dim=1).median()
        scores["L2 error"] = float(off) / (high - low)
    return scores


def leaves_trace(seen: Seen) -> Tensor:
    """(n,) bool: examples with any gradient at all in the first dense layer."""
    exchange, batch = seen.played.exchanges[0], seen.played.truth
    model = exchange.broadcast.model
    layer = choose_layer(model, seen.known.input, "dense0")
    signals = BackwardSignals(model, layer, seen.known.input, loss=seen.known.loss)
    return (signals.at_all_rows(layer_input(model, layer.name, batch.inputs), batch.labels) != 0).any(dim=1)

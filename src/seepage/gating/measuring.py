"""`gate`: before an update leaves, run on it what a server could, with the truth at hand."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.core.errors import DataError
from seepage.core.types import (
    INPUT_SPACE,
    Batch,
    Broadcast,
    InputSpec,
    LocalTraining,
    Modality,
    Update,
    UpdateKind,
)
from seepage.gating.advice import advise
from seepage.gating.attacked import Site, Tried
from seepage.gating.report import Exposure, GateReport, How
from seepage.gating.shares import LayerShares, layer_shares
from seepage.models.layers import trace_linear_layers
from seepage.protocol import client, loss_name
from seepage.protocol.losses import loss_of_numbers

ISOLATED = 9.0
"""D-SNR from which on one example owns an update. Derived: nine tenths of the gradient are its own."""
_PLAIN = 1e-4
"""Relative distance from the gradient of the batch, below which an update is that gradient. Derived: ten
times the rounding of a sum over a batch in float32."""
_BUDGET = 2.0
"""Seconds for taking apart what peeling leaves, at each layer. Cost: time; a server may take longer."""


def gate(
    model: nn.Module,
    update: Update | Mapping[str, Tensor] | None,
    batch: Batch | tuple[Tensor, Tensor],
    *,
    spec: InputSpec | None = None,
    local: LocalTraining | None = None,
    threshold: float = 0.0,
    quick: bool = False,
    advice: bool = True,
    budget: float = _BUDGET,
) -> GateReport:
    """Which of my examples would this update give away, how well, through which layer, and what to change.

    model: as it was received. update: what is to be sent; tensors alone are taken for a gradient (fedsgd) or
    for new weights minus received ones (fedavg); None: what `local` training makes of the batch.
    batch: the private examples behind it, as the model is fed them. They stay here: attacks see the model
    and the update, and what they find is compared with the batch.
    threshold: share of the batch that may be exposed. quick: from one pass forward and back alone.
    advice: also measure what would help. budget: seconds of search at each layer.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 3))
    >>> mine = Batch(torch.rand(3, 1, 4, 4), torch.tensor([2, 0, 2]))
    >>> report = gate(net, None, mine)
    >>> report.answer, report.exposed
    ('block', [0, 1, 2])
    """
    started = time.process_time()
    mine = batch if isinstance(batch, Batch) else Batch(*batch)
    if not len(mine):
        raise DataError(
            "the batch holds no example, so there is nothing to measure: give the private examples."
        )
    local = local or LocalTraining()
    numbers = mine.labels.is_floating_point() or mine.labels.ndim > 1
    if numbers:  # whatever shape and type they come in; which loss they are for is settled once
        mine = replace(mine, labels=mine.labels.reshape(len(mine), -1).to(torch.get_default_dtype()))
        local = replace(local, loss=loss_of_numbers(local.loss, mine.labels))
    known = spec or spec_of(model, mine)
    loss = local.loss if numbers else loss_name(local.loss, _outputs(model, mine))
    site = Site(model, mine, known, local, loss, budget)
    sent = _as_update(update, site)
    shares = layer_shares(model, mine, loss)
    watched = {one.name for one in shares} if quick else _read_directly(site, sent)
    exposures = list(_measures(shares, watched))
    tried = Tried((), {})
    if not quick:
        tried = site.attacked(sent)
        exposures += found_exposures(tried)
    counts = next((found.labels for found in tried.found if found.labels is not None), None)
    true = torch.bincount(mine.classes.cpu(), minlength=known.num_classes)
    return GateReport(
        examples=len(mine),
        exposures=exposures,
        threshold=threshold,
        measured=tried.measured or (quick and bool(shares)),
        label_counts=None if counts is None else [int(c) for c in counts],
        labels_right=None if counts is None else torch.equal(counts.round().long().cpu(), true),
        not_run=tried.not_run,
        quick=quick,
        advice=advise(site, sent, exposures) if advice and exposures and not quick else (),
        seconds=time.process_time() - started,
    )


def found_exposures(tried: Tried) -> Iterator[Exposure]:
    """Of every attack, the examples that it has."""
    for found in tried.found:
        for i, exact in enumerate(found.exact.tolist()):
            layer = found.layer if found.space == INPUT_SPACE else found.space
            psnr = None if found.psnr is None else float(found.psnr[i])
            how: How = "picture"
            if exact:
                how = "exact" if found.space == INPUT_SPACE else "features"
            if exact or bool(found.pictured[i]):
                yield Exposure(example=i, how=how, by=found.attack, layer=layer, psnr=psnr)


def _measures(shares: list[LayerShares], owned: set[str]) -> Iterator[Exposure]:
    """What bounds reading and fishing, from the client's own pass."""
    for one in shares:
        if one.name not in owned and not one.rungs:
            continue  # there the attacks themselves tell
        count = one.owned()
        for i in one.peelable().nonzero().flatten().tolist():
            yield Exposure(example=i, how="owned", by="peeling", layer=one.name, strength=float(count[i]))
        for i in one.unmixable().nonzero().flatten().tolist():
            yield Exposure(example=i, how="unmixed", by="unmixing", layer=one.name)
    if shares and shares[-1].norms is not None and len(shares[-1].norms) > 1:
        ratio = shares[-1].dominance()
        for i in (ratio >= ISOLATED).nonzero().flatten().tolist():
            yield Exposure(
                example=i, how="isolated", by="D-SNR", layer=shares[-1].name, strength=float(ratio[i])
            )


def _read_directly(site: Site, sent: Update) -> set[str]:
    """Layers that read the input, if the update is the plain gradient: whom peeling reaches there is known.

    An attack may stop earlier for lack of time; a server has more of it. What noise left is for the attacks.
    """
    if sent.kind is not UpdateKind.GRADIENT:
        return set()
    plain = client(replace(site.local, algorithm="fedsgd"))(Broadcast(site.model), site.batch).tensors
    off = sum(float((sent.tensors[n] - t).square().sum()) for n, t in plain.items() if n in sent.tensors)
    if off > _PLAIN**2 * sum(float(t.square().sum()) for t in plain.values()):
        return set()
    return {layer.name for layer in trace_linear_layers(site.model, site.spec) if layer.reads == "input"}


def _as_update(update: Update | Mapping[str, Tensor] | None, site: Site) -> Update:
    if update is None:
        return client(site.local)(Broadcast(site.model), site.batch)
    if isinstance(update, Update):
        return update
    kind = UpdateKind.GRADIENT if site.local.algorithm == "fedsgd" else UpdateKind.DELTA
    return Update(kind=kind, tensors=dict(update), num_examples=len(site.batch))


def spec_of(model: nn.Module, batch: Batch) -> InputSpec:
    """What the examples themselves say: pictures have three dimensions, tokens are whole numbers."""
    shape = tuple(batch.inputs.shape[1:])
    classes = max(2, _outputs(model, batch))
    if not batch.inputs.is_floating_point():
        top = int(batch.inputs.max()) + 1
        sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
        return InputSpec(
            modality=Modality.TEXT,
            shape=shape,
            num_classes=classes,
            value_range=None,
            vocabulary=max([top, *sizes]),
        )
    numbers = batch.labels.is_floating_point()
    low, high = float(batch.inputs.min()), float(batch.inputs.max())
    range_ = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
    kind = Modality.IMAGE if len(shape) == 3 else Modality.TABULAR
    return InputSpec(
        modality=kind,
        shape=shape,
        num_classes=1 if numbers else classes,
        num_targets=batch.labels.shape[1] if numbers else 0,
        value_range=range_ if kind is Modality.IMAGE else None,
    )


def _outputs(model: nn.Module, batch: Batch) -> int:
    with torch.no_grad():
        logits = model(batch.inputs[:1]) if not model.training else model.eval()(batch.inputs[:1])
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        raise DataError(
            "the model does not return one row of logits for each example: wrap it so that it does."
        )
    return logits.shape[1]

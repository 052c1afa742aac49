"""`gate`: before an update leaves, run on it what a server could, with the truth at hand."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from seepage.core.types import (
    INPUT_SPACE,
    Batch,
    Broadcast,
    InputSpec,
    LocalTraining,
    Update,
    UpdateKind,
)
from seepage.gating.advice import advise
from seepage.gating.attacked import Site, Tried
from seepage.gating.given import check_values, explained, loss_of, plain_model, spec_of
from seepage.gating.noise import needed_noise
from seepage.gating.others import example_shares, unmeasured
from seepage.gating.report import Exposure, GateReport, How
from seepage.gating.sent import batch_of, check_limits, check_sent
from seepage.gating.shares import LayerShares, layer_shares
from seepage.protocol import client
from seepage.protocol.losses import loss_of_numbers

ISOLATED = 9.0
"""D-SNR from which on one example owns an update. Derived: nine tenths of the gradient are its own."""
_PLAIN = 1e-4
"""Relative distance from the gradient of the batch, below which an update is that gradient. Derived: ten
times the rounding of a sum over a batch in float32."""
_SHRUNK = 4
"""A layer that no attack reads counts if what it reads has at least one number for so many of the input.
Derived: a picture of half the width and height can be recognised; a low-rank adapter's numbers cannot."""
_UNMEASURED = "it cannot see who is alone in '{}', which is no dense layer's: ask without it."
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
    noise: float = 0.0,
) -> GateReport:
    """Which of my examples would this update give away, how well, through which layer, and what to change.

    model: as it was received. update: what is to be sent; tensors alone are taken for a gradient (fedsgd) or
    for new weights minus received ones (fedavg); None: what `local` training makes of the batch.
    batch: the private examples behind it, as the model is fed them. They stay here: attacks see the model
    and the update, and what they find is compared with the batch.
    threshold: share of the batch that may be exposed. quick: from one pass forward and back alone.
    advice: also measure what would help. budget: seconds of search at each layer. noise: standard deviation
    of the Gaussian noise on each number of the update, added after it was clipped to a norm of one. Where
    that hides every example by a bound (`gating.noise`), measures of the pass before it do not count, and
    attacks that noise keeps from beginning are not missed.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 3))
    >>> mine = Batch(torch.rand(3, 1, 4, 4), torch.tensor([2, 0, 2]))
    >>> report = gate(net, None, mine)
    >>> report.answer, report.exposed
    ('block', [0, 1, 2])
    """
    started = time.perf_counter() if quick else time.process_time()
    check_limits(threshold, budget)
    mine = batch_of(batch)
    check_values(mine)
    local = local or LocalTraining()
    model = plain_model(model, mine, spec)
    check_sent(update, model)
    mine, local = _settled(mine, local)
    train = local.batch_norm == "train"
    try:
        shares = layer_shares(model, mine, local.loss, train=train)
    except (IndexError, RuntimeError) as error:
        raise explained(error, model, mine) from error
    others = unmeasured(model, shares, unknowns(model, mine) // _SHRUNK)
    if quick:
        return GateReport(
            examples=len(mine),
            exposures=list(measures(shares, unknowns(model, mine))),
            threshold=threshold,
            measured=any(not one.places for one in shares) and not others,
            not_run={"quick mode": _UNMEASURED.format(next(iter(others)))} if others else {},
            quick=True,
            seconds=time.perf_counter() - started,
        )
    shares += example_shares(model, mine, local.loss, others)
    site = site_of(model, mine, spec=spec, local=local, budget=budget)
    known = site.spec
    sent = _as_update(update, site)
    exposures: list[Exposure] = []
    hidden = noise > 0 and noise >= needed_noise(site)
    if not hidden:
        exposures += measures(_told_by_measures(shares, site, sent), unknowns(model, mine))
    tried = site.attacked(sent)
    exposures += found_exposures(tried)
    counts = next((found.labels for found in tried.found if found.labels is not None), None)
    words = next((found.words for found in tried.found if found.words is not None), None)
    return GateReport(
        examples=len(mine),
        exposures=exposures,
        threshold=threshold,
        measured=tried.measured or hidden,
        label_counts=None if counts is None else [int(c) for c in counts],
        labels_right=None if counts is None else _counted(mine, counts, known.num_classes),
        words=None if words is None else _known(mine, words),
        not_run=tried.not_run,
        advice=advise(site, sent, exposures) if advice and exposures else (),
        seconds=time.process_time() - started,
    )


def _settled(batch: Batch, local: LocalTraining) -> tuple[Batch, LocalTraining]:
    """Targets that are numbers come in any shape and type; which loss they are for is settled once."""
    if not (batch.labels.is_floating_point() or batch.labels.ndim > 1):
        return batch, local
    labels = batch.labels.reshape(len(batch), -1).to(torch.get_default_dtype())
    return replace(batch, labels=labels), replace(local, loss=loss_of_numbers(local.loss, labels))


def unknowns(model: nn.Module, batch: Batch) -> int:
    """Numbers that a search for one example has to find: of tokens those of their embeddings."""
    if batch.inputs.is_floating_point():
        return batch.inputs[0].numel()
    dims = [module.embedding_dim for module in model.modules() if isinstance(module, nn.Embedding)]
    return batch.inputs[0].numel() * max(dims, default=1)


def site_of(
    model: nn.Module,
    batch: Batch,
    *,
    spec: InputSpec | None = None,
    local: LocalTraining | None = None,
    budget: float = _BUDGET,
) -> Site:
    """The client's side, with what was not said read off its examples."""
    batch, local = _settled(batch, local or LocalTraining())
    model = plain_model(model, batch, spec)
    return Site(model, batch, spec or spec_of(model, batch), local, loss_of(model, batch, local), budget)


def _counted(batch: Batch, counts: Tensor, classes: int) -> bool:
    true = torch.bincount(batch.classes.cpu(), minlength=classes)
    return torch.equal(counts.round().long().cpu(), true)


def _known(batch: Batch, words: Tensor) -> float:
    there = batch.inputs[batch.inputs >= 0].unique().cpu()
    return float(words[there].double().mean())


def found_exposures(tried: Tried) -> Iterator[Exposure]:
    """Of every attack, the examples that it has."""
    for found in tried.found:
        for i, exact in enumerate(found.exact.tolist()):
            layer = found.layer if found.space == INPUT_SPACE else found.space
            psnr = None if found.psnr is None else float(found.psnr[i])
            how: How = "picture"
            if exact:
                how = "exact" if found.space == INPUT_SPACE else "features"
            elif bool(found.worded[i]):
                how = "text"
            elif bool(found.reachable[i]):
                how, psnr = "searched", None
            if exact or bool((found.pictured | found.worded | found.reachable)[i]):
                yield Exposure(example=i, how=how, by=found.attack, layer=layer, psnr=psnr)


def measures(shares: Sequence[LayerShares], values: int) -> Iterator[Exposure]:
    """What bounds reading, fishing and searching, from the client's own pass; `values`: of one example."""
    for one in shares:
        if one.places:
            continue
        peeled = one.peelable().nonzero().flatten().tolist()
        counts = one.owned().tolist() if peeled else []
        for i in peeled:
            yield Exposure(example=i, how="owned", by="peeling", layer=one.name, strength=counts[i])
        for i in one.unmixable().nonzero().flatten().tolist():
            yield Exposure(example=i, how="unmixed", by="unmixing", layer=one.name)
    for one in shares:
        if one.norms is not None and len(one.norms) > 1:
            ratio = one.dominance()
            for i in (ratio >= ISOLATED).nonzero().flatten().tolist():
                strength = float(ratio[i])
                yield Exposure(example=i, how="isolated", by="D-SNR", layer=one.name, strength=strength)
    over_places = [one for one in shares if one.places]
    if over_places:
        numbers = torch.stack([one.alone() for one in over_places])  # (layers, n)
        for i in (numbers.sum(dim=0) >= values).nonzero().flatten().tolist():
            most = over_places[int(numbers[:, i].argmax())]
            strength = float(numbers[:, i].sum()) / values
            yield Exposure(example=i, how="isolated", by="shares", layer=most.name, strength=strength)


def _told_by_measures(shares: Sequence[LayerShares], site: Site, sent: Update) -> list[LayerShares]:
    """Layers of which the measures alone tell, or tell more than attacks do in their time.

    Of dense layers that read features the attacks themselves tell. If the update is what one plain step makes
    of the batch, whom peeling reaches is known where the input is read, and where no attack reads: an attack
    may stop earlier for lack of time, and a server has more of it. What noise left is for the attacks.
    """
    plain = _is_plain(site, sent)
    enough = unknowns(site.model, site.batch) // _SHRUNK
    kept = []
    for one in shares:
        unread = not one.attacked and one.inputs >= enough
        if one.rungs or one.places or (plain and (one.reads_input or unread)):
            kept.append(one)
        elif one.norms is not None:  # its rows are left to the attacks; what it sends back is not
            kept.append(replace(one, signals=one.signals[:, :0]))
    return kept


def _is_plain(site: Site, sent: Update) -> bool:
    if site.local.num_steps(len(site.batch)) > 1 or not site.local.plain:
        return False
    plain = client(site.local)(Broadcast(site.model), site.batch)
    if plain.kind is not sent.kind:
        return False
    if any(isinstance(module, _DropoutNd) and module.p > 0 for module in site.model.modules()):
        return True  # nobody can draw the training's masks again, which are all that may lie between them
    pairs = [(sent.tensors[n], t) for n, t in plain.tensors.items() if n in sent.tensors]
    off = sum(float((mine - t).square().sum()) for mine, t in pairs)
    return off <= _PLAIN**2 * sum(float(t.square().sum()) for t in plain.tensors.values())


def _as_update(update: Update | Mapping[str, Tensor] | None, site: Site) -> Update:
    if update is None:
        return client(site.local)(Broadcast(site.model), site.batch)
    if isinstance(update, Update):
        return update
    kind = UpdateKind.GRADIENT if site.local.algorithm == "fedsgd" else UpdateKind.DELTA
    return Update(kind=kind, tensors=dict(update), num_examples=len(site.batch))

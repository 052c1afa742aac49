"""The whole batch, exactly, from one linear layer's gradient: extraction by peeling.

Plain extraction (Boenisch et al. 2021, Section 5) reads an example only where it alone activates a neuron.
But the server knows the model: of an example it has read it can compute the whole contribution to the
gradient, take it away, and read the next one from what is left. `peeling.loop` has the loop. Where no neuron
is alone, `unmixing` takes apart what is left, and peeling goes on. Where the server cannot compute what an
example sent (several local steps, dropout), `patterns` goes by the alphabet and activation patterns alone.

Passive: no weight is changed. The crafting attacks use `peel` as their reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from seepage.attacks.reading.analytic_extraction import with_labels
from seepage.attacks.reading.batch_statistics import read_by_statistics
from seepage.attacks.reading.bias_free import choose_bias_free, read_bias_free
from seepage.attacks.reading.local_steps import Through, read_through_steps, trained_alike, unmixed_change
from seepage.attacks.reading.masked import MASKED, may_be_masked
from seepage.attacks.reading.one_layer import LayerAttack
from seepage.attacks.reading.patterns.by_alphabet import ByAlphabet, Gates, read_by_alphabet
from seepage.attacks.reading.patterns.no_bias import read_without_bias
from seepage.attacks.reading.patterns.notes import describe_by_alphabet, describe_without_bias
from seepage.attacks.reading.peeling.loop import Peeling
from seepage.attacks.reading.peeling.notes import describe
from seepage.attacks.reading.peeling.of_update import peeling_of
from seepage.attacks.reading.peeling.outcome import Outcome
from seepage.attacks.reading.peeling.residual import Residual
from seepage.attacks.reading.plain import plain_readings
from seepage.attacks.reading.rows import rows_once
from seepage.attacks.reading.scale import expected_kappa
from seepage.attacks.reading.union import read_each, unite
from seepage.attacks.reading.unmixing.assemble import Unmixed
from seepage.core.errors import NotApplicable
from seepage.core.settings import check_budget
from seepage.core.types import (
    INPUT_SPACE,
    Exchange,
    Knowledge,
    Modality,
    Reconstruction,
    RowCount,
    UpdateKind,
)
from seepage.labels import counts_if_inferred
from seepage.models.choice import layers_to_read, unreadable
from seepage.models.gradients import Decode, layer_gradient
from seepage.models.invertible import inputs_of
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.models.precision import EXACT
from seepage.models.signals import BackwardSignals, draws_chances
from seepage.protocol.losses import OF_NUMBERS


class ExactExtraction(LayerAttack):
    """Peels each update by itself.

    >>> from torch import nn
    >>> from seepage.protocol import local_update
    >>> from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 3))
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=3)
    >>> secret = Batch(torch.rand(3, 1, 4, 4), torch.tensor([2, 0, 2]))
    >>> sent = local_update(Broadcast(model), secret, LocalTraining())
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> found = ExactExtraction().run([seen], Knowledge(input=spec))
    >>> len(found), found.claimed.tolist(), found.label_counts.tolist()
    (3, [True, True, True], [1, 0, 2])
    """

    def __init__(self, *, layer: str | None = None, budget: float | None = None) -> None:
        check_budget(budget)
        self.layer = layer
        self.budget = budget

    def read(self, exchange: Exchange, known: Knowledge, layer: str | None) -> Reconstruction:
        if (whole := _through_batch_norm(exchange, known, layer)) is not None:
            return whole
        bias_free = choose_bias_free(exchange.broadcast.model, known.input, layer)
        if bias_free is not None:
            return with_labels(_without_bias(exchange, known, bias_free), exchange, known)
        layers = layers_to_read(exchange.broadcast.model, known.input, layer)
        return read_each(
            layers, lambda one: peel(exchange, known, one, budget=self.budget), exchange, known.input
        )


def exact_extraction(*, layer: str | None = None, budget: float | None = None) -> ExactExtraction:
    """Passive, exact: reads whole batches from a linear layer's gradient by peeling, with a certificate each.

    layer: name of the linear layer to read; by default all that read the model's input, else the first one
    there is.
    budget: seconds an update for the search for examples that share all their neurons; by default it ends by
    itself when it has found nothing for long.
    """
    return ExactExtraction(layer=layer, budget=budget)


def peel(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    *,
    decode: Decode | None = None,
    budget: float | None = None,
) -> Reconstruction:
    """Every example that can be read from `layer` in one update; claimed where its certificate holds.

    Where the certificate does not say that there is nothing else, what plain extraction reads is there too.
    decode: maps what the layer reads (k, m) to model inputs, where a crafted pass-through stands before it;
    None: the layer reads the flattened input, token embeddings, or features that are returned as they are.
    budget: seconds for taking apart what peeling leaves.
    """
    if why := unreadable(layer):
        raise NotApplicable(
            f"layer '{layer.name}' {why}: read another layer, or use an attack that optimises."
        )
    peeled, explained = _peeled(exchange, known, layer, decode, budget)
    if explained:
        return peeled
    return unite(peeled, plain_readings(exchange, known, layer, decode=decode), known.input)


def _through_batch_norm(exchange: Exchange, known: Knowledge, name: str | None) -> Reconstruction | None:
    """By the statistics of batch norm in train mode, where they are sent and say enough."""
    if known.local is None or known.local.batch_norm != "train" or exchange.update.buffers is None:
        return None
    layers = trace_linear_layers(exchange.broadcast.model, known.input)
    first = [each for each in layers if each.reads == "input" and each.per_example and each.trained]
    first = [each for each in first if name in (None, each.name)]
    return read_by_statistics(exchange, known, first[0]) if first else None


def _without_bias(exchange: Exchange, known: Knowledge, layer: LinearLayer) -> Reconstruction:
    """Single rows, and what they leave of others; a grid must say how long each example is."""
    rows, spec = read_bias_free(exchange, known, layer), known.input
    if known.normalised or spec.value_range is None or known.loss in OF_NUMBERS:
        return rows
    gradient = layer_gradient(exchange, known, layer)
    signals = BackwardSignals(exchange.broadcast.model, layer, spec, loss=known.loss)
    read = read_without_bias(
        Residual(gradient, seed=known.seed, signal_rounding=signals.rounding),
        (gradient.weight != 0).any(1),
        signals,
        spec,
        kappa=expected_kappa(exchange, known) if gradient.steps == 1 else None,
        num_examples=exchange.update.num_examples,
    )
    if not len(read):
        return rows
    better = Reconstruction(
        values=spec.to_raw(read.features.reshape(-1, *spec.shape)),
        space=INPUT_SPACE,
        claimed=read.claimed.cpu(),
        confidence=read.claimed.double().cpu(),
        support=rows_once(read.support.cpu(), 0 if rows.rows is None else rows.rows.active),
        rows=rows.rows,
        complete=read.complete,
        if_declared=bool(read.claimed.any()),
        notes=(*rows.notes, *describe_without_bias(read)),
    )
    return better if read.complete else unite(better, rows, spec)


def _peeled(
    exchange: Exchange, known: Knowledge, layer: LinearLayer, decode: Decode | None, budget: float | None
) -> tuple[Reconstruction, bool]:
    """What peeling reads, and whether that is all there is."""
    model, steps = exchange.broadcast.model, layer_gradient(exchange, known, layer).steps
    peeling = peeling_of(exchange, known, layer, decode=decode, budget=budget)
    code, through = peeling.code, None
    if steps in (1, None) and not draws_chances(model, known.local):
        peeling.run()
    else:
        peeling.read_only()
    plainly = peeling
    apart = cache(lambda: None if steps == 1 else unmixed_change(exchange, known, layer, plainly))
    outcome = Outcome.of(peeling)
    plain, masked = None, False
    if not bool(outcome.certified.any()):
        plain = _by_alphabet(peeling, exchange, known, layer, outcome, apart)
        masked = plain is not None and steps == 1 and may_be_masked(peeling, model, known)
    if plain is not None and masked:
        plain = replace(plain, claimed=torch.zeros_like(plain.claimed), complete=False)
    if plain is not None and not bool(plain.claimed.any()) and len(peeling.found) > len(plain):
        plain = None  # what may be means of near copies was read all the same
    if decode is None and (plain is None or not plain.complete):
        through = _through_steps(exchange, known, layer, plain, budget)
    if through is not None:
        peeling, plain, outcome = through.peeling, None, through.outcome
    replayed = None if through is None else through.replayed
    candidates = _candidates(peeling, outcome) if plain is None else _of_alphabet(plain, peeling)
    counts, label_note = _label_counts(exchange, known, peeling, outcome)
    inputs = code.inputs(candidates.features)
    if inputs is None:
        inputs = inputs_of(model, layer, candidates.features, known.input)
    if inputs is not None and known.input.modality is not Modality.TEXT:
        inputs = known.input.to_raw(inputs)
    complete = outcome.complete if plain is None else plain.complete
    # Of numbers nothing is certified, but what explains every row leaves nothing to be read.
    explained = complete or (known.loss in OF_NUMBERS and len(peeling.found) > 0 and outcome.open_rows == 0)
    read = Reconstruction(
        values=candidates.features if inputs is None else inputs,
        space=layer.name if inputs is None else INPUT_SPACE,
        model_units=inputs is not None and known.normalised,
        claimed=candidates.claimed.cpu(),
        confidence=candidates.confidence.cpu(),
        support=candidates.support.cpu(),
        rows=RowCount(total=len(peeling.active), active=int(peeling.active.sum())),
        label_counts=counts,
        complete=complete,
        if_declared=outcome.if_declared if plain is None else bool(plain.claimed.any()),
        notes=(
            *describe(peeling, outcome, exchange, layer, steps, replayed, by_alphabet=plain is not None),
            *(() if plain is None else describe_by_alphabet(plain, exchange)),
            *((MASKED,) if masked else ()),
            *label_note,
        ),
    )
    return read, explained


def _through_steps(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    plain: ByAlphabet | None,
    budget: float | None,
) -> Through | None:
    """What training on what is known shows besides; None: no more than is known."""
    first = None if plain is None else plain.features if len(plain) else plain.rest
    through = read_through_steps(exchange, known, layer, first, budget)
    if through is None or first is None or through.confirmed or len(through.peeling.found) > len(first):
        return through
    return None


def _by_alphabet(
    peeling: Peeling,
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    outcome: Outcome,
    apart: Callable[[], Unmixed | None],
) -> ByAlphabet | None:
    """What needs no backward signal; unclaimed where signals did not show that each is one example."""
    residual, moved = peeling.residual, None
    if exchange.update.kind is UpdateKind.DELTA:
        moved = (residual.weight, residual.bias)
    return read_by_alphabet(
        residual,
        peeling.reader,
        peeling.first,
        peeling.active,
        Gates(*peeling.signals.parameters, moved=moved),
        num_examples=None if outcome.alike and known.loss not in OF_NUMBERS else exchange.update.num_examples,
        apart=apart,
        trained=lambda features: trained_alike(exchange, known, layer, features, peeling.signals.rounding),
    )


def _of_alphabet(read: ByAlphabet, peeling: Peeling) -> _Candidates:
    """What was read, then what was peeled or what rows share besides, unclaimed."""
    more = read.rest if read.complete else torch.cat([peeling.found.features, read.rest])
    rest = torch.zeros(len(more), dtype=torch.long, device=read.support.device)
    claimed = torch.cat([read.claimed, rest.bool()])
    support = rows_once(torch.cat([read.support, rest]), int(peeling.active.sum()))
    return _Candidates(torch.cat([read.features, more]), claimed, claimed.double(), support)


@dataclass(frozen=True)
class _Candidates:
    features: Tensor
    claimed: Tensor
    confidence: Tensor
    support: Tensor


def _candidates(peeling: Peeling, outcome: Outcome) -> _Candidates:
    """What was certified; where nothing was, the plain readings, unclaimed. Then rough pictures."""
    found, first, active = peeling.found, peeling.first, int(peeling.active.sum())
    if len(found):
        read = _Candidates(
            found.features,
            outcome.certified,
            1.0 / (1.0 + found.mismatch / EXACT) * (outcome.certified.double() + outcome.read) / 2,
            rows_once(found.support, active),
        )
    else:
        unclaimed = torch.zeros(len(first), dtype=torch.bool, device=first.row.device)
        support = rows_once(first.support, active)
        read = _Candidates(first.features, unclaimed, torch.zeros_like(first.error), support)
    rough = peeling.rough
    if rough is None:
        return read
    nothing = torch.zeros(len(rough), dtype=torch.long, device=rough.device)
    return _Candidates(
        torch.cat([read.features, rough]),
        torch.cat([read.claimed, nothing.bool()]),
        torch.cat([read.confidence, nothing.to(read.confidence)]),
        torch.cat([read.support, nothing.to(read.support)]),
    )


def _label_counts(
    exchange: Exchange, known: Knowledge, peeling: Peeling, outcome: Outcome
) -> tuple[Tensor | None, tuple[str, ...]]:
    """The found examples' own labels if they are the whole batch; else from the last layer."""
    found = peeling.found
    n = exchange.update.num_examples
    if len(found) and bool(outcome.certified.all()) and (len(found) == n or (n is None and outcome.complete)):
        counts = torch.bincount(found.labels.cpu(), minlength=known.input.num_classes)
        return counts, ("Labels are those of the certified examples.",)
    return counts_if_inferred(exchange, known)

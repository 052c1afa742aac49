"""Several local steps read as one: the update, less what the steps after the first have added to it.

The change of the weights over T steps is -lr T times the mean of T gradients, at weights along a way. Where
the network is smooth, that is the gradient of the model halfway but for second orders, and whoever knows some
of the examples can compute those: the way is trained again with them, and what they do not explain is taken
for the same in every step. So what is read corrects the update that more is read from, until training on all
that was found ends where the client ended: that is the certificate. Behind a ReLU, whose kinks are no second
orders, the first examples come from the neurons that each leaves off in every step. Nothing here sees the
truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.loop import Peeling
from seepage.attacks.reading.peeling.of_update import peeling_of
from seepage.attacks.reading.peeling.outcome import Outcome
from seepage.attacks.reading.peeling.residual import Found, delta_rounding
from seepage.attacks.reading.peeling.tolerances import BEYOND, MOST_ROWS, READABLE, SPARE
from seepage.attacks.reading.unmixing.assemble import Unmixed
from seepage.attacks.reading.unmixing.unmix import Unmixer
from seepage.core.progress import Clock
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, UpdateKind
from seepage.models.layers import LinearLayer
from seepage.models.signals import BackwardSignals, draws_chances
from seepage.protocol import local_update, trainable, training_mode
from seepage.protocol.copies import own_copy
from seepage.protocol.local import batch_gradients
from seepage.protocol.losses import OF_NUMBERS

_ROUNDS, _IN_VAIN = 24, 4
"""Times that the update is corrected, and those in a row that show nothing new. Cost: each reads it once."""
_AGAIN = 4
"""Times that the way of known examples is trained. Cost: each takes as long as the client's training."""
_MODELS = 8
"""Models on the way at which labels are compared. Cost: a pass for each label."""

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Through:
    """What was read from the update as one step's."""

    peeling: Peeling
    replayed: float
    """By how much the update that training on the found examples makes differs from the one received, in what
    rounding makes of it; inf: not all were found."""

    @property
    def confirmed(self) -> bool:
        return self.replayed <= 1.0

    @property
    def rank(self) -> tuple[int, int]:
        """More examples first, then fewer rows that they leave open."""
        return len(self.peeling.found), -Outcome.of(self.peeling).open_rows

    @property
    def outcome(self) -> Outcome:
        """Nothing is certified unless the whole training leads to the update that was received."""
        outcome = Outcome.of(self.peeling)
        if self.confirmed:
            return outcome
        return replace(outcome, certified=torch.zeros_like(outcome.certified), complete=False)


def can_be_replayed(exchange: Exchange, known: Knowledge, layer: LinearLayer) -> bool:
    """Whether a client's training is known but for its examples: plain steps on all of them at once."""
    local, count = known.local, exchange.update.num_examples
    if local is None or count is None or exchange.update.kind is not UpdateKind.DELTA:
        return False
    if known.loss in OF_NUMBERS:  # targets cannot be tried out
        return False
    plain = local.plain and not local.momentum and not local.weight_decay and not local.mixed_precision
    at_once = local.batch_size is None or local.batch_size >= count
    several = local.num_steps(count) > 1 and not draws_chances(exchange.broadcast.model, local)
    whole = layer.reads == "input" and layer.bias is not None
    return plain and at_once and several and whole and len(exchange.clients) == 1


def unmixed_change(
    exchange: Exchange, known: Knowledge, layer: LinearLayer, peeling: Peeling
) -> Unmixed | None:
    """Examples by the neurons that they leave off in every step; None: not all can be told apart.

    No signal need be foretold for that: what is sparse is what the examples sent in all steps together.
    """
    if exchange.update.kind is not UpdateKind.DELTA or not layer.followed_by_relu or peeling.unmixer is None:
        return None
    residual, found = peeling.residual, Found.none(peeling.residual.weight)
    change = (residual.weight, residual.bias)
    middle = [p + part / 2 for p, part in zip(peeling.signals.parameters, change, strict=True)]
    unmixer = Unmixer((middle[0], middle[1]), peeling.unmixer.made_up, moves=True, seed=known.seed)
    rows = residual.scan(peeling.active.nonzero().squeeze(1), found)
    index = rows.index[rows.norm > READABLE * rows.weight_noise][:MOST_ROWS]
    if len(index) < SPARE:
        return None
    return unmixer.unmix(residual, index, found, Clock(seconds=peeling.budget))


def read_through_steps(
    exchange: Exchange, known: Knowledge, layer: LinearLayer, first: Tensor | None, budget: float | None
) -> Through | None:
    """What peeling reads of the update once it is one step's; None: nothing.

    first: (k, m) examples that are known already, as far as they are.
    """
    if not can_be_replayed(exchange, known, layer):
        return None
    assert known.local is not None and exchange.update.num_examples is not None
    steps = known.local.num_steps(exchange.update.num_examples)
    guess = None if first is None or not len(first) else _labelled(exchange, known, layer, first)
    best: Through | None = None
    vain, clock = 0, Clock(seconds=budget)
    for again in range(_ROUNDS):
        at, as_one = halfway(exchange, known, guess)
        # Starts that led nowhere are not tried again.
        as_one = replace(as_one, seed=known.seed + again)
        peeling = peeling_of(at, as_one, layer, budget=budget, rounded=steps)
        peeling.run()
        new = Batch(peeling.found.features.reshape(-1, *known.input.shape), peeling.found.labels)
        apart = replayed(exchange, known, new, peeling.signals.rounding) if len(new) else math.inf
        found = Through(peeling, apart)
        better = len(new) > 0 and (best is None or found.rank > best.rank)
        if better:
            best, guess = found, new
        vain = 0 if better else vain + 1
        if vain == _IN_VAIN or (found.confirmed and found.outcome.open_rows == 0) or clock.expired:
            break
    return best


def halfway(exchange: Exchange, known: Knowledge, guess: Batch | None) -> tuple[Exchange, Knowledge]:
    """The update as one step of the model halfway, and what is known of that step.

    guess: some of the examples; their part of the second orders is computed and taken away.

    >>> from seepage.core.types import InputSpec, LocalTraining, Modality
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> local = LocalTraining(algorithm="fedavg", epochs=4, lr=0.5)
    >>> batch = Batch(torch.rand(3, 5), torch.tensor([0, 1, 1]))
    >>> sent = local_update(Broadcast(model), batch, local)
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(5,), num_classes=2)
    >>> known = Knowledge(input=spec, local=local)
    >>> def missed(guess):
    ...     at, as_one = halfway(seen, known, guess)
    ...     one = local_update(at.broadcast, batch, as_one.local).tensors["0.weight"]
    ...     return float((at.update.tensors["0.weight"] - one).norm() / one.norm())
    >>> missed(None) > 1e-3, missed(batch) < 1e-5
    (True, True)
    """
    local, update, model = known.local, exchange.update, exchange.broadcast.model
    assert local is not None and update.num_examples is not None
    steps = local.num_steps(update.num_examples)
    start = {name: p.detach() for name, p in trainable(model).items()}
    mean = {name: update.tensors[name].double() / (-local.lr * steps) for name in start}
    middle = {name: w + update.tensors[name] * ((steps - 1) / (2 * steps)) for name, w in start.items()}
    if guess is not None:
        share = 1.0 if known.loss.endswith("_sum") else len(guess) / update.num_examples
        rest = _unexplained(exchange, known, guess, share, mean)
        there = _gradient(exchange, known, middle, guess)
        mean = {name: share * there[name].double() + rest[name] for name in mean}
    model = own_copy(model)
    with torch.no_grad():
        for name, weight in middle.items():
            model.get_parameter(name).copy_(weight)
    rate = local.lr * steps
    tensors = {name: (-rate * g).to(update.tensors[name]) for name, g in mean.items()}
    once = replace(local, epochs=1, steps=None, batch_size=None, lr=rate)
    at = replace(exchange, broadcast=replace(exchange.broadcast, model=model))
    return replace(at, update=replace(update, tensors=tensors)), replace(known, local=once)


def _unexplained(exchange: Exchange, known: Knowledge, guess: Batch, share: float, mean: Weights) -> Weights:
    """What the steps' mean gradient holds beside that of the guess, on the way that both lead along."""
    local = known.local
    assert local is not None and exchange.update.num_examples is not None
    steps = local.num_steps(exchange.update.num_examples)
    rest = {name: torch.zeros_like(g) for name, g in mean.items()}
    start = {name: p.detach() for name, p in trainable(exchange.broadcast.model).items()}
    for again in range(_AGAIN):
        weights, total = start, {name: torch.zeros_like(g) for name, g in mean.items()}
        for step in range(steps):
            if again == 0 and len(guess) != exchange.update.num_examples:  # the straight way
                weights = {n: w + exchange.update.tensors[n] * (step / steps) for n, w in start.items()}
            gradient = _gradient(exchange, known, weights, guess)
            total = {name: t + share * gradient[name] for name, t in total.items()}
            weights = {
                name: w.add((share * gradient[name] + rest[name]).to(w), alpha=-local.lr)
                for name, w in weights.items()
            }
        rest = {name: g - total[name] / steps for name, g in mean.items()}
    return rest


def _gradient(exchange: Exchange, known: Knowledge, weights: Weights, guess: Batch) -> Weights:
    model = exchange.broadcast.model
    leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
    buffers = dict(model.named_buffers())
    with training_mode(model, False):
        found = batch_gradients(model, leaves, buffers, guess, known.loss)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if g is None else g for (name, leaf), g in pairs}


def replayed(exchange: Exchange, known: Knowledge, batch: Batch, rounding: float) -> float:
    """What the client's training makes of this batch, less the update: over what rounding may make of it.

    Each step rounds every new weight to its last digit, and the gradient by `rounding`, as a backward signal.
    """
    local, update, model = known.local, exchange.update, exchange.broadcast.model
    assert local is not None
    if len(batch) != update.num_examples:
        return math.inf
    ours = local_update(Broadcast(model), batch, local).tensors
    steps, worst = local.num_steps(len(batch)), 0.0
    for name, sent in update.tensors.items():
        rounded = delta_rounding(model.get_parameter(name).detach().reshape(1, -1), sent.new_zeros(1))[0]
        allowed = math.hypot(steps**0.5 * float(rounded), steps * rounding * float(sent.double().norm()))
        apart = float((ours[name].double() - sent.double()).norm())
        worst = max(worst, apart / (BEYOND * allowed) if allowed else math.inf * bool(apart))
    return worst


def trained_alike(
    exchange: Exchange, known: Knowledge, layer: LinearLayer, features: Tensor, rounding: float
) -> bool:
    """Whether the client's training on examples (k, m), each with its likeliest label, makes the update."""
    if not can_be_replayed(exchange, known, layer):
        return False
    return replayed(exchange, known, _labelled(exchange, known, layer, features), rounding) <= 1.0


def _labelled(exchange: Exchange, known: Knowledge, layer: LinearLayer, features: Tensor) -> Batch:
    """Examples (k, m), each with the label whose signals, on the straight way, are most like what it sent."""
    sent = exchange.update.tensors
    assert layer.bias is not None and known.local is not None and exchange.update.num_examples is not None
    rows = torch.cat([sent[layer.weight], sent[layer.bias].unsqueeze(1)], dim=1).double()  # (N, m + 1)
    extended = torch.cat([features, torch.ones_like(features[:, :1])], dim=1).double()
    observed = -torch.linalg.lstsq(extended.T, rows.T, driver="gelsd").solution  # (k, N)
    steps = min(_MODELS, known.local.num_steps(exchange.update.num_examples))
    labels = torch.arange(max(2, known.input.num_classes), device=features.device)
    likeness = features.new_zeros(len(features), len(labels), dtype=torch.float64)
    for label in labels.tolist():
        predicted = torch.zeros_like(observed)
        for step in range(steps):
            model = own_copy(exchange.broadcast.model)
            with torch.no_grad():
                for name in trainable(model):
                    model.get_parameter(name).add_(sent[name], alpha=step / steps)
            signals = BackwardSignals(model, layer, known.input, loss=known.loss)
            predicted += signals.at_all_rows(
                features, torch.full_like(labels[:1], label).expand(len(features))
            )
        likeness[:, label] = torch.cosine_similarity(observed, predicted, dim=1)
    return Batch(features.reshape(-1, *known.input.shape), likeness.argmax(1))

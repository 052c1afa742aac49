"""Cuts in several local steps by the layer before the last one: whoever lies below has no gradient at all.

A softmax head cannot cut and die for a batch of all classes (`dying_cuts`). A ReLU can cut: every unit of the
dense layer before the head reads the same score s * (w.a - t), so whoever has w.a < t is dead in all of them.
The head's row r is gamma * u with u > 0, and every example has p_r = 1 in the first step. One that is caught
and not of class r weighs +1 and lowers all units, which die; one of class r weighs 0. Nobody raises them. So
a row shows all examples but those of its class, and a second row shows these.

One unit, the mark, is 1 for everybody and reads nothing. It makes p_r = 1 and dies in the first step as well.
Its gradient is the sum of a over all examples that are not of class r: which batch answered, whatever the
cut.
The last biases go on moving after the death, and how they do gives the number of examples of every class.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.bisection import State, begin_gated
from seepage.attacks.fishing.catch import Fished, head_gradient
from seepage.attacks.fishing.cuts import ALONE, WHOLE
from seepage.attacks.fishing.dying import plain_steps
from seepage.attacks.fishing.head import Head, HeadReading, dense_direction, single_example_model
from seepage.attacks.fishing.last_layer import LIVES, LastLayer, find_last_layer, length, probe_inputs
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining
from seepage.models.hooks import layer_input, watching
from seepage.models.probes import run_model
from seepage.protocol import local_update, trainable, training_mode

_ROOM = 4.0
"""Times the spread of made-up inputs' scores that real ones may lie beyond them. Derived: as `dying` has
it."""
_LOWERED = 4.0
"""Times what would make the units negative, that one caught example of `_MOST` lowers them by.
A choice: as `dying` has it, whose test shows its plateau."""
_MOST = 256
"""Examples in a batch that are reckoned with. A choice: as `dying` has it."""
_MOVED = (1.0, 0.03, 0.001)
"""Lengths of the step of all layers below over that of their weights; the first that the model dies at.
Derived: as `dying` has it."""
_ITERATIONS = 200
"""Of the fixed point of `_classes`. Derived: there, as in `dying_cuts`."""
SHARP = 1e12
"""A ReLU's cut has no width but that of rounding. A choice: anything far above
the 1e7 steps that float32 resolves."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gate:
    """What the server remembers of a model that cuts so."""

    weight: str
    bias: str
    """Of the layer before the head."""
    w: Tensor
    """(m,) float64: scores are w.a."""
    u: Tensor
    """(units,) the head's row over gamma; 0 at the mark."""
    gamma: float
    loud: float
    """The head's weight of the mark."""
    s: float
    below: float
    """A score that nobody reaches downwards."""

    @property
    def mark(self) -> int:
        return len(self.u) - 1


def gated_everyone(model: nn.Module, head: Head, row: int, known: Knowledge) -> tuple[nn.Module, Gate]:
    """The network that catches everybody and dies; NotApplicable where the layer is no plain dense one."""
    local = plain_steps(known, head)
    layer = find_last_layer(model, head, known.input)
    part = model.get_submodule(layer.name)
    if not isinstance(part, nn.Linear) or part.out_features != head.features or part.out_features < 2:
        raise NotApplicable(LIVES)
    inputs = probe_inputs(known, model)
    w = dense_direction(part.in_features, seed=known.seed)
    scores = layer_input(model, layer.name, inputs).double().cpu() @ w
    spread = max(float(scores.max() - scores.min()), float(scores.abs().max()), 1e-6)
    u = 0.5 + torch.rand(head.features, generator=torch.Generator().manual_seed(known.seed)).double()
    u[-1] = 0.0
    lowered = _LOWERED * (2 * _ROOM + 1) * spread / float(u[:-1].min())
    pulled = _pull(model, layer, w, inputs) * lowered * float(u.sum())
    below = [p for name, p in trainable(model).items() if name not in (layer.weight, layer.bias)]
    size = length([p for p in below if p is not model.get_parameter(head.weight)])
    for moved in _MOVED:
        s = min(1.0, (moved * size / pulled) ** 0.5) if pulled > 0 else 1.0
        gate = Gate(
            weight=layer.weight,
            bias=layer.bias,
            w=w,
            u=u,
            gamma=lowered * s * _MOST / local.lr,
            loud=2 * _MOST / local.lr,
            s=s,
            below=float(scores.min()) - _ROOM * spread,
        )
        if _dies(model, head, row, gate, known, inputs, scores):
            return gated_cut(model, head, row, gate), gate
    raise NotApplicable(LIVES)


def _pull(model: nn.Module, layer: LastLayer, w: Tensor, inputs: Tensor) -> float:
    """The largest length of d(w.a) in the weights below, over made-up inputs."""
    weights = [p for name, p in trainable(model).items() if name not in (layer.weight, layer.bias)]
    lengths = [0.0]
    with training_mode(model, False), watching(model, layer.name) as seen:
        for one in inputs.split(1):
            seen.clear()
            with torch.enable_grad():
                run_model(model, one)
                score = (seen[0].flatten(1) @ w.to(seen[0])).sum()
            if score.requires_grad:
                found = torch.autograd.grad(score, weights, allow_unused=True)
                lengths.append(length([g for g in found if g is not None]))
    return max(lengths)


@torch.no_grad()
def gated_cut(model: nn.Module, head: Head, row: int, gate: Gate, above: float = -math.inf) -> nn.Module:
    """The model that catches whoever has w.a > `above` and is not of class `row`."""
    assert head.bias is not None
    cut = copy.deepcopy(model)
    weight, bias = cut.get_parameter(gate.weight), cut.get_parameter(gate.bias)
    weight.copy_((gate.s * gate.w).to(weight).expand_as(weight))
    bias.fill_(-gate.s * (gate.below if math.isinf(above) else above))
    weight[gate.mark], bias[gate.mark] = 0.0, 1.0
    last, offset = cut.get_parameter(head.weight), cut.get_parameter(head.bias)
    last.zero_()
    offset.zero_()
    last[row] = (gate.gamma * gate.u).to(last)
    last[row, gate.mark] = gate.loud
    return cut


@dataclass(frozen=True, kw_only=True)
class GatedReading:
    """What a cut caught in the first step."""

    caught: float
    """Examples above the cut that are not of the row's class; not a number where units disagree."""
    total: Tensor
    """(m,) sum of a over them, float64."""
    mark: Tensor
    """(m,) sum of a over all examples that are not of the row's class."""
    counts: Tensor | None
    """(K,) examples of each class; None where the answer is no plain first step of a batch."""

    def as_head(self, row: int) -> HeadReading:
        """In the form that bisection reads: features are a, and the mark tells the batch."""
        classes = 0 if self.counts is None else len(self.counts)
        others = self.mark.new_zeros(max(classes, 2), len(self.mark))
        others[(row + 1) % len(others)] = self.mark
        return HeadReading(
            weight=self.caught if self.counts is not None else math.nan,
            features=self.total,
            others_bias=others.new_zeros(len(others)),
            others_weight=others,
        )


def read_gated(exchange: Exchange, known: Knowledge, head: Head) -> GatedReading:
    """NotApplicable for sums over clients and for mini-batches."""
    gate, row, local = exchange.secret.dying, exchange.secret.target, known.local
    examples = exchange.update.num_examples
    assert local is not None and examples is not None and head.bias is not None
    if len(exchange.clients) > 1:
        raise NotApplicable(
            "the update is a sum over clients that take several local steps, and one that catches nobody "
            "does not die: a cut needs single updates, or one local step; class_fishing reads such sums."
        )
    if local.batch_size is not None and local.batch_size < examples:
        raise NotApplicable(
            "clients train in mini-batches, and a cut is read from the first that catches anybody, whichever "
            "that was: it needs batches taken whole; class_fishing does not."
        )
    sent = {
        name: exchange.update.tensors[name].detach().double().cpu() * (examples / -local.lr)
        for name in (gate.weight, gate.bias, head.bias)
    }
    units = gate.u[:-1] * gate.gamma
    each = sent[gate.bias][:-1] / units
    middle = float(each.median())
    agree = float((each - middle).abs().max()) <= ALONE * max(1.0, abs(middle))
    rest = float(sent[gate.bias][gate.mark]) / gate.loud
    counts: Tensor | None = _classes(-sent[head.bias] / examples * local.lr, row, local, examples)
    assert counts is not None
    if not any(bool(tensor.any()) for tensor in sent.values()):  # all are of the row's class
        counts = torch.zeros_like(counts)
        counts[row] = examples
    elif not (whole(counts) and abs(rest - (examples - float(counts[row]))) <= WHOLE):
        counts = None
    return GatedReading(
        caught=middle if agree else math.nan,
        total=(sent[gate.weight][:-1] / units.unsqueeze(1)).mean(dim=0),
        mark=sent[gate.weight][gate.mark] / gate.loud,
        counts=counts,
    )


def whole(counts: Tensor) -> bool:
    return float((counts - counts.round()).abs().max()) <= WHOLE and float(counts.min()) > -0.5


def _classes(sent: Tensor, row: int, local: LocalTraining, examples: int) -> Tensor:
    """(K,) examples of each class, by the biases (K,) after p_row = 1 in the first step and a death then.

    The first step moves them by lr * (shares - e_row), each later one by lr * (shares - softmax(b)): the
    shares that lead to the biases sent are found by iteration.
    """
    steps = local.num_steps(examples)
    target = torch.zeros_like(sent)
    target[row] = 1.0
    shares = torch.zeros_like(sent)
    for _ in range(_ITERATIONS):
        biases = local.lr * (shares - target)
        for _ in range(steps - 1):
            biases = biases - local.lr * (biases.softmax(dim=0) - shares)
        shares = shares + (sent - biases) / (local.lr * steps)
    return shares * examples


def begin_in(reading: GatedReading, row: int, examples: int, epsilon: float, gate: Gate) -> State:
    """The state of a search under this row, after a cut below everybody."""
    counts = torch.full((2,), math.nan) if reading.counts is None else reading.counts
    return begin_gated(
        reading.as_head(row),
        row,
        counts=counts,
        examples=examples,
        direction=gate.w,
        beta=SHARP,
        epsilon=epsilon,
    )


def alone_under(model: nn.Module, head: Head, row: int, gate: Gate, sign: float) -> nn.Module:
    """The model in which every input is caught, and one example's gradient is -sign * grad(u.f)."""
    return single_example_model(gated_cut(model, head, row, gate), head, row, sign * gate.u)


def fished_gated(
    tensors: dict[str, Tensor], a: Tensor, alone: nn.Module, head: Head, gate: Gate, row: int, **told: object
) -> Fished:
    """One example's gradient under `alone`, of the sums without what the mark says and the head's."""
    clean = {name: tensor.clone() for name, tensor in tensors.items()}
    for name in (gate.weight, gate.bias):
        clean[name][gate.mark] = 0.0
    weight, bias = (alone.get_parameter(name).detach().double().cpu() for name in (gate.weight, gate.bias))
    feature = (weight @ a + bias).clamp_min(0)
    return Fished(
        tensors={**clean, **head_gradient(feature, head, row, alone)},
        model=alone,
        label=row,
        count=1,
        feature=feature,
        **told,  # type: ignore[arg-type]
    )


def _dies(
    model: nn.Module, head: Head, row: int, gate: Gate, known: Knowledge, inputs: Tensor, scores: Tensor
) -> bool:
    """The server plays a client of its own, with one made-up example above the cut, and with all of them."""
    assert known.local is not None
    other = (row + 1) % head.classes
    batch = Batch(inputs, torch.full((len(inputs),), other, device=inputs.device))
    one = LocalTraining(algorithm="fedavg", lr=known.local.lr, loss=known.local.loss)
    ordered = scores.sort(descending=True).values
    cuts = [(len(inputs), -math.inf)]
    if len(ordered) > 1 and float(ordered[0]) > float(ordered[1]):
        cuts.append((1, float(ordered[:2].mean())))
    for caught, above in cuts:
        cut = gated_cut(model, head, row, gate, above)
        first, third = (
            local_update(Broadcast(cut), batch, replace(one, epochs=epochs)).tensors for epochs in (1, 3)
        )
        same = all(
            torch.allclose(tensor, third[name], rtol=1e-3, atol=1e-30)
            for name, tensor in first.items()
            if name != head.bias
        )
        counted = first[gate.bias].double().cpu()[:-1] * len(inputs) / (-one.lr * gate.gamma * gate.u[:-1])
        if not same or float((counted - caught).abs().max()) > ALONE * caught:
            return False
    return True

"""A crafted network that trains one step on whom it catches and is dead then: fishing in several local steps.

After a step the crafted classification layer is no longer what it was, and examples that it let pass begin
to have gradients. So the layer before it is crafted as well. Its biases are raised until every unit is active
for everybody, and the target's row is -gamma * u with u > 0. The gradient of a caught example then lowers
every one of these units, for every example:

    z_j(x') = s V_j.a(x') + v_j  becomes  z_j(x') - lr/b * gamma * u_j * (1 + a(x).a(x')) < 0

where a(x).a(x') >= 0 as after a ReLU. From then on all features are 0 and nothing but the last bias moves:
what is sent is the gradient of the first step that caught anybody. V is scaled by s so that this layer moves
by much more than those below. Mini-batches before that step teach the classification layer something, and
through it V: by lr^2 * f * a for each step, beside s * V. So the layer below is scaled by q, which makes f
and a smaller.

Proof that exactly one example was caught: by the chain rule every bias v_j has moved by -lr/b * gamma *
d(u.f)/dv_j for each caught example and by nothing else. It holds for all j, or the answer is not used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.catch import Fished, head_gradient
from seepage.attacks.fishing.cuts import ALONE
from seepage.attacks.fishing.head import Head, head_features
from seepage.attacks.fishing.last_layer import (
    LIVES,
    LastLayer,
    find_last_layer,
    height,
    length,
    probe_inputs,
    pull,
    weights_below,
)
from seepage.attacks.fishing.loudness import USUAL_ALPHA
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining
from seepage.protocol import local_update

_RAISED = 4.0
"""Raised by so many times the largest activation of made-up inputs. Tested:
test_constants_of_the_dying_layer_lie_on_a_plateau."""
_LOWERED = 4.0
"""Times what would make the units negative, that one caught example of `_MOST` lowers them by. Tested:
test_constants_of_the_dying_layer_lie_on_a_plateau."""
_MOST = 256
"""Examples in one local step that are reckoned with where the server does not know their number. A choice:
the largest local batches in use."""
_STEPS = 10
"""Local steps without a catch that are reckoned with. A choice: more than deployments of one epoch have."""
_MOVED = (1.0, 0.03, 0.001)
"""Lengths of the step of all layers below over that of their weights, in a batch of `_MOST`; the first that
the model dies at is taken. Derived: where they move as far as they are long, rounding takes no digit of the
delta; where they move by a thousandth, it takes 6e-5 of it. In mini-batches the first is left out, for they
teach these layers too. Tested as above."""
_TAUGHT = 1e-2
"""Share of V that mini-batches without a catch may change. Derived: a cosine of 1 - 1e-4 / 2."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dying:
    """What the server remembers of such a model."""

    bias: str
    gamma: float
    unit: Tensor
    """(units,) d(u.f)/dv while all units are active."""
    u: Tensor
    """(m,) what a caught example is lowered along."""
    lowest: float
    """Of u.f over made-up inputs."""


Dies = Callable[[nn.Module, Head, int, Dying, Knowledge, Tensor], bool]


def takes_several_steps(local: LocalTraining | None) -> bool:
    """Clients may take more than one local step, depending on how many examples they have.

    >>> takes_several_steps(LocalTraining(algorithm="fedavg")), takes_several_steps(None)
    (False, False)
    >>> takes_several_steps(LocalTraining(algorithm="fedavg", batch_size=8))
    True
    """
    if local is None or local.algorithm == "fedsgd" or local.steps == 1:
        return False
    return local.epochs > 1 or local.batch_size is not None


def takes_several_epochs(local: LocalTraining | None) -> bool:
    """Every example is in more than one local step.

    >>> takes_several_epochs(LocalTraining(algorithm="fedavg", epochs=2)), takes_several_epochs(None)
    (True, False)
    """
    return local is not None and local.algorithm == "fedavg" and local.epochs > 1 and local.steps != 1


def dying_model(
    model: nn.Module,
    head: Head,
    target: int,
    known: Knowledge,
    *,
    dies: Dies | None = None,
    sharp: tuple[float, ...] = (),
) -> tuple[nn.Module, Dying]:
    """The crafted model and how its answer is read; NotApplicable where it would not die.

    dies: whether it does, as the server finds out on made-up inputs; by default for one example of the class.
    sharp: lengths of the step below that are tried before `_MOVED`.
    """
    local = plain_steps(known, head)
    layer = find_last_layer(model, head, known.input)
    inputs = probe_inputs(known, model)
    few = inputs[:: -(-len(inputs) // (local.batch_size or len(inputs)))]
    # between 1/2 and 3/2: all units are to be lowered, none alike
    u = 0.5 + torch.rand(head.features, generator=torch.Generator().manual_seed(known.seed)).double()
    calm = copy.deepcopy(model)
    if local.batch_size is not None:
        _calm(calm, head, layer, u, inputs, local.lr)
    for moved in (*sharp, *(_MOVED if local.batch_size is None else _MOVED[1:])):
        crafted, dying = _crafted(calm, head, target, layer, u, inputs, local, moved=moved)
        if (dies or _dies)(crafted, head, target, dying, known, few):
            return crafted, dying
    raise NotApplicable(LIVES)


def _crafted(
    calm: nn.Module,
    head: Head,
    target: int,
    layer: LastLayer,
    u: Tensor,
    inputs: Tensor,
    local: LocalTraining,
    *,
    moved: float,
) -> tuple[nn.Module, Dying]:
    crafted = copy.deepcopy(calm)
    high, found = height(crafted, layer, inputs), pull(crafted, head, layer, u, inputs)
    # lr / most * gamma * unit = `_LOWERED` * (`_RAISED` + 1) * s * high, and layers below move by `moved`
    lowered = _LOWERED * (_RAISED + 1) * high / float(found.unit.min())
    step = found.below * lowered
    s = min(1.0, (moved * length(weights_below(crafted, head, layer)) / step) ** 0.5) if step > 0 else 1.0
    gamma = lowered * s * (local.batch_size or _MOST) / local.lr
    assert head.bias is not None
    with torch.no_grad():
        crafted.get_parameter(layer.weight).mul_(s)
        crafted.get_parameter(layer.bias).mul_(s).add_(_RAISED * s * high)
        row, last = crafted.get_parameter(head.weight), crafted.get_parameter(head.bias)
        row.zero_()
        row[target] = -gamma * u.to(row)
        last.zero_()
        last[target] = -USUAL_ALPHA
    lowest = float((head_features(crafted, head, inputs) @ u).min())
    return crafted, Dying(bias=layer.bias, gamma=gamma, unit=found.unit, u=u, lowest=lowest)


def plain_steps(known: Knowledge, head: Head) -> LocalTraining:
    """NotApplicable where several local steps are no plain ones."""
    local = known.local
    assert local is not None
    if local.momentum or local.weight_decay:
        raise NotApplicable(
            "clients take several local steps with momentum or weight decay, which go on after the one step "
            "that is read: fishing needs plain SGD then, or a single local step."
        )
    if known.loss.endswith("_sum"):
        raise NotApplicable(
            "clients take several local steps and sum their losses, so that one caught example of many "
            "counts as much as one of few: fishing needs the mean of losses, or a single local step."
        )
    if head.bias is None:
        raise NotApplicable(
            f"clients take several local steps and the classification layer '{head.name}' has no bias: "
            "fishing needs a bias there, or a single local step."
        )
    return local


def _calm(crafted: nn.Module, head: Head, layer: LastLayer, u: Tensor, inputs: Tensor, lr: float) -> None:
    """Scale the layer before the last one by q, so that `_STEPS` without a catch leave V as it is."""
    if layer.before is None:
        return  # V reads the inputs: its gradient shows them, whatever V has become
    features = (_RAISED + 1) * height(crafted, layer, inputs)
    taught = _STEPS * lr**2 * features * pull(crafted, head, layer, u, inputs).weight
    share = taught / length([crafted.get_parameter(layer.weight)])
    q = min(1.0, (_TAUGHT / share) ** 0.5) if share > 0 else 1.0
    with torch.no_grad():
        for parameter in crafted.get_submodule(layer.before).parameters(recurse=False):
            parameter.mul_(q)


def fished_in_first_step(
    exchange: Exchange, known: Knowledge, head: Head, *, count: int, size: float, source: int
) -> Fished:
    """The mean gradient of the caught examples under the crafted model with a row of ordinary size."""
    target, dying, local = exchange.secret.target, exchange.secret.dying, known.local
    assert local is not None
    alone = copy.deepcopy(exchange.broadcast.model)
    with torch.no_grad():
        alone.get_parameter(head.weight)[target] /= dying.gamma
    share = size / (-local.lr * count)
    tensors = {name: t.detach() * (share / dying.gamma) for name, t in exchange.update.tensors.items()}
    others = torch.arange(head.classes) != target
    moved = exchange.update.tensors[head.weight].detach().double().cpu()[others]
    feature = moved.sum(dim=0) * share  # the rows of a softmax gradient sum to zero, and these were 0
    return Fished(
        tensors={**tensors, **head_gradient(feature, head, target, alone)},
        model=alone,
        label=target,
        count=count,
        isolated=count == 1,
        feature=feature,
        score=None,
        source=source,
        queries=exchange.broadcast.round + 1,
    )


def read_caught(exchange: Exchange, known: Knowledge, dying: Dying) -> tuple[int | None, float]:
    """(how many examples were caught in the step that is read, the size of its mini-batch), by the biases.

    None: no whole number, the same for every unit, explains all of them, or more than one could.
    """
    local, update = known.local, exchange.update
    assert local is not None and update.num_examples is not None
    if len(exchange.clients) > 1 and local.batch_size is not None:
        raise NotApplicable(
            "the update is a sum over clients that train in mini-batches, each with a number of its own, so "
            "the caught cannot be counted: fishing needs single updates, or batches taken whole."
        )
    moved = update.tensors[dying.bias].detach().double().cpu()
    share = moved / (-local.lr * dying.gamma * dying.unit)  # caught / size of the mini-batch, for each unit
    if float(share.abs().max()) * update.num_examples <= ALONE:
        return 0, float(update.num_examples)
    found = {}
    size = min(local.batch_size or update.num_examples, update.num_examples)
    for held in {size, update.num_examples % size or size}:  # the last mini-batch may be smaller
        counts = share * held
        whole = round(float(counts.median()))
        if whole >= 1 and float((counts - whole).abs().max()) <= ALONE * whole:
            found[held] = whole
    if len(found) != 1:
        return None, float(update.num_examples)
    ((held, whole),) = found.items()
    return whole, float(held)


def _dies(
    crafted: nn.Module, head: Head, target: int, dying: Dying, known: Knowledge, inputs: Tensor
) -> bool:
    """One made-up example of the target class among others."""
    labels = torch.full((len(inputs),), (target + 1) % head.classes, device=inputs.device)
    labels[0] = target
    return sends_its_first_step(crafted, head, dying, known, Batch(inputs, labels), caught=1)


def sends_its_first_step(
    crafted: nn.Module, head: Head, dying: Dying, known: Knowledge, batch: Batch, *, caught: int
) -> bool:
    """The server plays a client of its own: three local steps must send what the first one does."""
    assert known.local is not None
    one = LocalTraining(algorithm="fedavg", lr=known.local.lr, loss=known.local.loss)
    first, third = (local_update(Broadcast(crafted), batch, replace(one, epochs=epochs)) for epochs in (1, 3))
    same = all(
        torch.allclose(tensor, third.tensors[name], rtol=1e-3, atol=0.0)
        for name, tensor in first.tensors.items()
        if name != head.bias
    )
    exchange = Exchange(broadcast=Broadcast(crafted), update=third, clients=(0,))
    return same and read_caught(exchange, replace(known, local=one), dying)[0] == caught

"""One dense layer for all clients of a sum, of which each client fills columns of its own (LOKI's kernels).

The layer before the trapped one carries the input unaltered (`traps.pass_through`), for every client by
filters of its own; all other filters are zero. Of the trapped layer's gradient, the columns behind a client's
filters then hold that client's examples alone, whoever else is in the sum. One more filter of each client is
a constant: the gradient of its column is the client's own bias gradient, which the sum of biases hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.traps.carried import Hiding
from seepage.attacks.traps.placement import Placed, place
from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Exchange, Knowledge
from seepage.models.choice import choose_layer
from seepage.models.hooks import layer_input
from seepage.models.path import path_to
from seepage.models.probes import dummy_inputs
from seepage.protocol.copies import beside

_PROBES = 8
"""Made-up inputs. Cost: one pass forward for all of them."""
_CONSTANT = 1.0
"""What the constant filter puts out. Derived: as large as an input value at most is, so that its gradient is
rounded no more than theirs."""
_ELSEWHERE = "use insert = true, which brings layers of its own."


@dataclass(frozen=True)
class Columns:
    """Which columns of the trapped layer are one group's."""

    own: Tensor
    """(m,) bool: behind the group's filters, the constant one included."""
    constant: int
    """A column that holds `value` whatever the input."""
    value: float


@dataclass(frozen=True)
class Slots(Hiding):
    """Uses places from `first` on."""

    first: int = 0

    def order(self, size: int, like: Tensor) -> Tensor:
        return (torch.arange(size, device=like.device) + self.first) % size


def set_apart(
    model: nn.Module, trapped: nn.Module, layer: str, known: Knowledge, *, most: int
) -> tuple[tuple[nn.Module, ...], tuple[Placed, ...], tuple[Columns, ...]]:
    """A model for each group of clients, at most `most` groups, and where its examples show.

    trapped: the model with trap rows in `layer`, behind a pass-through that uses the first filters.
    """
    carrier = _carrier(model, layer, known)
    filters = carrier[1].weight.shape[0]
    first = _placed(model, layer, known, 0)
    each = len(_filters(first, filters)) + 1
    count = min(most, filters // each)
    if count < 2:
        raise NotApplicable(
            f"'{carrier[0]}' has {filters} filters where a group of clients needs {each} of its own (one of "
            f"them constant), so clients of a sum cannot be kept apart there: {_ELSEWHERE}"
        )
    placed = tuple(_placed(model, layer, known, group * each) for group in range(count))
    rows, bias = (trapped.get_parameter(f"{layer}.{part}").detach() for part in ("weight", "bias"))
    weight = torch.zeros_like(rows)
    for one in placed:
        weight[:, one.carried.where] = rows[:, first.carried.where]
    models = []
    for group, one in enumerate(placed):
        own = trapped if group == 0 else beside(trapped)
        for name, parameter in one.model.named_parameters():
            if not name.startswith(f"{layer}."):
                own.get_parameter(name).data.copy_(parameter.data)
        with torch.no_grad():
            own.get_parameter(f"{layer}.weight").copy_(weight)
            own.get_parameter(f"{layer}.bias").copy_(bias)
        models.append(own)
    found = [
        _constant(own, layer, carrier[0], _filters(one, filters), (group + 1) * each - 1, known)
        for group, (own, one) in enumerate(zip(models, placed, strict=True))
    ]
    return tuple(models), placed, tuple(found)


def _placed(model: nn.Module, layer: str, known: Knowledge, first: int) -> Placed:
    hiding = Slots(False, torch.Generator().manual_seed(known.seed), first)
    return place(model, known, layer=layer, hiding=hiding)


def _carrier(model: nn.Module, layer: str, known: Knowledge) -> tuple[str, nn.Conv2d | nn.Linear]:
    """The last layer with weights before the trapped one."""
    steps = path_to(model, known.input, layer)
    carriers = [(step.name, step.module) for step in steps if isinstance(step.module, nn.Conv2d | nn.Linear)]
    if not carriers:
        raise NotApplicable(
            f"layer '{layer}' reads the input itself, and nothing before it could keep clients of a sum "
            f"apart: {_ELSEWHERE}"
        )
    if carriers[-1][1].bias is None:
        raise NotApplicable(
            f"'{carriers[-1][0]}' has no bias, so no filter can be a constant that shows each client's own "
            f"bias gradient: {_ELSEWHERE}"
        )
    return carriers[-1]


def _filters(placed: Placed, filters: int) -> list[int]:
    """Filters of the carrier that carry data. Behind a flattened convolution each has a block of columns."""
    block = placed.layer.in_features // filters
    found: list[int] = (placed.carried.where // block).unique().tolist()
    return found


@torch.no_grad()
def _constant(
    model: nn.Module, layer: str, carrier: str, carrying: Sequence[int], constant: int, known: Knowledge
) -> Columns:
    """Writes the constant filter and the zero ones; NotApplicable unless made-up inputs show both."""
    part = model.get_submodule(carrier)
    weight, bias = part.get_parameter("weight"), part.get_parameter("bias")
    idle = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    idle[list(carrying)] = False
    weight[idle], bias[idle] = 0.0, 0.0
    bias[constant] = _CONSTANT
    inputs = dummy_inputs(known.input, _PROBES, like=model, seed=1, model_units=known.normalised)
    arrived = layer_input(model, layer, inputs)  # (n, m)
    group = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
    group[[*carrying, constant]] = True
    own = group.repeat_interleave(arrived.shape[1] // len(weight))
    block = arrived.shape[1] // len(weight)
    column = constant * block + block // 2
    value = float(arrived[0, column])
    if bool(arrived[:, ~own].any()) or value <= 0 or bool((arrived[:, column] != value).any()):
        raise NotApplicable(
            f"what lies between '{carrier}' and '{layer}' does not keep clients' filters apart (batch norm "
            f"without an activation behind it, or a function that mixes them): {_ELSEWHERE}"
        )
    return Columns(own, column, value)


def own_exchange(
    exchange: Exchange,
    known: Knowledge,
    model: nn.Module,
    layer: str,
    columns: Columns,
    members: Sequence[int],
) -> Exchange:
    """What the sum of these clients alone would have been, in the trapped layer.

    A sum over clients is a mean over their examples: of `clients` equally large ones, `members` have their
    share. Of unequal ones what is read is too long or too short by a factor, which readers find.
    """
    chosen = choose_layer(model, known.input, layer)
    assert chosen.bias is not None
    factor = len(exchange.clients) / len(members)
    weight = exchange.update.tensors[chosen.weight].detach() * columns.own
    bias = weight[:, columns.constant] / columns.value
    known_model = beside(model)
    for name, parameter in known_model.named_parameters():
        parameter.requires_grad_(name in (chosen.weight, chosen.bias))
    count = exchange.update.num_examples
    whole = count is not None and count * len(members) % len(exchange.clients) == 0
    update = replace(
        exchange.update,
        tensors={chosen.weight: factor * weight, chosen.bias: factor * bias},
        num_examples=count * len(members) // len(exchange.clients) if count is not None and whole else None,
        derived=True,
        buffers=None,
    )
    return replace(
        exchange,
        broadcast=Broadcast(known_model, exchange.broadcast.round),
        update=update,
        clients=tuple(members),
        labels=None,
    )

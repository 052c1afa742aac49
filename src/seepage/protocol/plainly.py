"""Local training that is no plain SGD, read as if it were, where one step of it tells the gradient.

Accumulated mini-batches of one size are one larger mini-batch; a schedule has not begun to fall at the first
step; a gradient shorter than the clipping norm was not clipped. Adam's first step moves every weight by

    r = g / (|g| + eps)   times the rate,   so   |g| = eps |r| / (1 - |r|)

(Kingma and Ba 2015, Algorithm 1 at t = 1). In single precision weights round r so coarsely that g is lost
where it is much larger than eps, and its sign alone is left; in double precision, or for tiny gradients, it
comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge, LocalTraining, UpdateKind
from seepage.protocol.optimising import EPS

_UNTOUCHED = 1 - 1e-4
"""A gradient shorter than this share of the bound was not clipped. Derived: norms are known better."""
_READ = 0.01
"""Relative error up to which an entry of a gradient counts as read. Tested:
test_what_counts_as_read_lies_on_a_plateau."""
_ENOUGH = 0.999
"""Share of the entries that must be read. Derived: one entry in a thousand spoils a row of some hundred."""
ROUGH = (
    "Clients compute in mixed precision: their gradients are right to two or three digits, which attacks "
    "here do not allow for, so that they get rough pictures and vouch for little."
)
REPLAYED = (
    "Clients do not train with plain SGD at a constant rate: the search plays their own kind of steps. One "
    "step of Adam shows little more than the signs of a gradient."
)


def plainly(
    exchanges: Sequence[Exchange], known: Knowledge
) -> tuple[list[Exchange], Knowledge, tuple[str, ...]]:
    """The same exchanges as plain SGD leaves them, and what was done; NotApplicable where that cannot be."""
    assert known.local is not None
    found = [_one(exchange, known.local) for exchange in exchanges]
    local, told = found[0][1], found[0][2]
    if any(other != local for _, other, _ in found):
        raise _refused(known.local, "and its updates do not all come from the same number of steps")
    return [exchange for exchange, _, _ in found], replace(known, local=local), told


def _one(exchange: Exchange, local: LocalTraining) -> tuple[Exchange, LocalTraining | None, tuple[str, ...]]:
    examples = exchange.update.num_examples
    if examples is None or len(exchange.clients) > 1:
        raise _refused(local, "of which one step of one client, with a known number of examples, can be read")
    merged = one_batch_a_step(local, examples)
    if merged is None:
        raise _refused(local, "and accumulates mini-batches of different sizes, or across epochs")
    if merged.plain:
        return exchange, merged, ()
    if merged.num_steps(examples) > 1:
        raise _refused(local, "for several steps")
    merged = replace(merged, schedule="constant")
    if merged.optimizer != "sgd":
        return _after_adam(exchange, merged)
    return _after_clipping(exchange, merged) if merged.clip_norm is not None else (exchange, merged, ())


def one_batch_a_step(local: LocalTraining, examples: int) -> LocalTraining | None:
    """The same training, a step's mini-batches put together; None where they are no equal parts of it.

    >>> four = LocalTraining(algorithm="fedavg", batch_size=2, accumulation=4, epochs=3)
    >>> one_batch_a_step(four, 16).batch_size, one_batch_a_step(four, 12)
    (8, None)
    """
    if local.accumulation == 1:
        return local
    each = local.batch_size or examples
    batches = local.num_steps(examples)
    if batches == 1:
        return replace(local, accumulation=1)
    if examples % each:
        return None
    if batches <= local.accumulation and local.epochs == 1:
        return replace(local, accumulation=1, batch_size=batches * each, steps=1)
    if (examples // each) % local.accumulation or (local.steps or 0) % local.accumulation:
        return None
    steps = None if local.steps is None else local.steps // local.accumulation
    return replace(local, accumulation=1, batch_size=each * local.accumulation, steps=steps)


def _after_clipping(
    exchange: Exchange, local: LocalTraining
) -> tuple[Exchange, LocalTraining | None, tuple[str, ...]]:
    assert local.clip_norm is not None
    norm = float(
        torch.stack([g.norm() for g in _stepped(exchange, local, local.weight_decay).values()]).norm()
    )
    if norm < _UNTOUCHED * local.clip_norm:
        return exchange, replace(local, clip_norm=None), ()
    if local.weight_decay:
        raise _refused(local, "whose clipped gradient has weight decay on top")
    note = "The client clipped its gradient: it was read with the learning rate taken to be unknown."
    return exchange, None, (note,)


def _after_adam(
    exchange: Exchange, local: LocalTraining
) -> tuple[Exchange, LocalTraining | None, tuple[str, ...]]:
    if local.clip_norm is not None:
        raise _refused(local, "and clips before it")
    moved = _stepped(exchange, local, local.weight_decay if local.optimizer == "adamw" else 0.0)
    weights = {name: exchange.broadcast.model.get_parameter(name).detach().double() for name in moved}
    read, count, tensors = 0, 0, {}
    for name, r in moved.items():
        kind = exchange.update.tensors[name].dtype
        # new weights and their difference are each rounded to half of the last digit
        rounding = torch.finfo(kind).eps * (weights[name].abs() + local.lr) / local.lr
        gradient, known = first_adam_gradient(r, rounding)
        decay = local.weight_decay * weights[name] if local.optimizer == "adam" else 0.0
        tensors[name] = gradient - decay
        read, count = read + int(known.sum()), count + known.numel()
    if read < _ENOUGH * count:
        raise _refused(
            local,
            f"whose first step shows {1 - read / max(1, count):.0%} of the entries by their sign alone (they "
            "are far larger than Adam's 1e-8, and weights are rounded)",
        )
    update = replace(exchange.update, kind=UpdateKind.GRADIENT, tensors=tensors)
    note = f"The gradient was read back from the first step of {local.optimizer}."
    plain = LocalTraining(algorithm="fedsgd", loss=local.loss, batch_norm=local.batch_norm)
    return replace(exchange, update=update), plain, (note,)


def first_adam_gradient(r: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient behind r = g / (|g| + eps), and where r, known up to `rounding`, tells it.

    >>> g = torch.tensor([0.0, 3e-9, -2e-8, 1.0], dtype=torch.float64)
    >>> found, known = first_adam_gradient(g / (g.abs() + EPS), torch.full((4,), 1e-6))
    >>> known.tolist(), torch.allclose(found[:3], g[:3], rtol=1e-6, atol=0)
    ([True, True, True, False], True)
    """
    r = torch.where(r.abs() <= rounding, torch.zeros_like(r), r)
    size = r.abs()
    below = (1 - size).clamp_min(torch.finfo(torch.float64).eps)
    known = (size == 0) | ((1 - size > 0) & (rounding <= _READ * size * below))
    return EPS * r / below, known


def _stepped(exchange: Exchange, local: LocalTraining, decay: float) -> dict[str, Tensor]:
    """What the optimiser moved each weight by, over -rate, without the decay that is not in the gradient."""
    model = exchange.broadcast.model
    return {
        name: -t.detach().double() / local.lr - decay * model.get_parameter(name).detach().double()
        for name, t in exchange.update.tensors.items()
    }


def _refused(local: LocalTraining, why: str) -> NotApplicable:
    done = [
        f"optimizer = '{local.optimizer}'" if local.optimizer != "sgd" else "",
        f"schedule = '{local.schedule}'" if local.schedule != "constant" else "",
        f"accumulation = {local.accumulation}" if local.accumulation > 1 else "",
        f"clip_norm = {local.clip_norm:g}" if local.clip_norm is not None else "",
    ]
    return NotApplicable(
        f"it reads updates as sums of gradients of plain SGD, and clients train with "
        f"{' and '.join(one for one in done if one)}, {why}: that nothing was read here does not mean that "
        "nothing leaks."
    )

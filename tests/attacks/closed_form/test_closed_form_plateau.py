"""Constants of the closed forms that no derivation gives: some times as small or large, they claim the same.

Whether two examples behind one update are refused or read in vain may change; what is claimed does not. The
networks and examples here had no part in choosing them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.plateaus import scaled
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining
from seepage.protocol import local_update

from .setting import attack, plain_vit, random_batch
from .setting import seen as seen_by_april
from .test_recursive_inversion import ROWS, dense_chain, example

CLOSED = "seepage.attacks.closed_form"
CONSTANTS = {
    f"{CLOSED}.recursive_inversion:CONSISTENT": (1 / 3, 3.0),
    f"{CLOSED}.recursive_inversion:_ONE_EXAMPLE": (1 / 3, 3.0),
    f"{CLOSED}.recursive_inversion:_ROUNDING": (1 / 2, 2.0),
    f"{CLOSED}.transformer.trust:FLOAT_NOISE": (1 / 2, 2.0),
}


def sent(model: nn.Module, batch: Batch, *, told: bool, noise: float = 0.0) -> Exchange:
    update = local_update(Broadcast(model), batch, LocalTraining())
    torch.manual_seed(93_000)
    noisy = {name: t + noise * t.abs().mean() * torch.randn_like(t) for name, t in update.tensors.items()}
    update = replace(update, tensors=noisy, num_examples=update.num_examples if told else None)
    return Exchange(broadcast=Broadcast(model), update=update, clients=(0,))


@cache
def populations() -> tuple[tuple[Exchange, InputSpec, Batch], ...]:
    """One example each, and two where nobody says how many; plainly, in float32 and under noise."""
    found = []
    for seed, activation in enumerate((nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.2)), start=93_001):
        for dtype in (torch.float64, torch.float32):
            model = dense_chain(activation).to(dtype)
            one = example(ROWS, seed % 4, seed=seed, dtype=dtype)
            more = example(ROWS, (seed + 1) % 4, seed=seed + 10, dtype=dtype)
            two = Batch(torch.cat([one.inputs, more.inputs]), torch.cat([one.labels, more.labels]))
            found += [
                (sent(model, one, told=True), ROWS, one),
                (sent(model, one, told=False), ROWS, one),
                (sent(model, one, told=True, noise=0.1), ROWS, one),
                (sent(model, two, told=False), ROWS, two),
            ]
    return tuple(found)


def verdict(exchange: Exchange, spec: InputSpec, truth: Batch) -> tuple[str, bool]:
    """Refused, or claimed or not; and whether what came out is the example."""
    try:
        read = ATTACKS["recursive_inversion"]().run([exchange], Knowledge(input=spec))
    except NotApplicable:
        return "refused", False
    right = float((read.values - truth.inputs[:1]).abs().max()) < 1e-2
    assert read.claimed is not None
    return ("claimed" if bool(read.claimed.all()) else "read"), right


def outcome() -> list[tuple[str, bool]]:
    found = [verdict(*population) for population in populations()]
    for seed in (93_101, 93_102, 93_103):
        for dtype in (torch.float64, torch.float32):
            data = random_batch(seed=seed)
            data = Batch(data.inputs.to(dtype), data.labels)
            read = attack(seen_by_april(plain_vit(seed=seed, dtype=dtype), data))
            assert read.claimed is not None
            right = float((read.values - data.inputs).abs().max()) < 1e-2
            found.append(("claimed" if bool(read.claimed.all()) else "read", right))
    return found


@cache
def as_shipped() -> list[tuple[str, bool]]:
    return outcome()


def claimed_or_not(found: list[tuple[str, bool]]) -> list[tuple[bool, bool]]:
    return [(what == "claimed", right) for what, right in found]


def test_what_is_claimed_is_right_and_every_verdict_is_met() -> None:
    shipped = as_shipped()
    assert ("claimed", False) not in shipped
    assert {what for what, _ in shipped} == {"claimed", "read", "refused"}


@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_of_closed_forms_lie_on_a_plateau(constant: str) -> None:
    for factor in CONSTANTS[constant]:
        with scaled(constant, factor):
            assert claimed_or_not(outcome()) == claimed_or_not(as_shipped()), factor

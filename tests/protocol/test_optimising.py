"""A client's step written out ends where torch.optim's ends, and its derivative is that of the function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.protocol import local_batches, local_update
from seepage.protocol.optimising import grouped, local_step, rates
from seepage.protocol.replay import Replay

KINDS = {
    "adam": {"optimizer": "adam", "lr": 1e-2, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.1},
    "cosine": {"schedule": "cosine", "momentum": 0.9, "weight_decay": 0.01},
    "linear": {"schedule": "linear", "optimizer": "adam"},
    "clipped": {"clip_norm": 0.05, "momentum": 0.5},
    "accumulated": {"accumulation": 2, "clip_norm": 0.1},
}


def setting(kind: str) -> tuple[nn.Module, Batch, LocalTraining]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    batch = Batch(torch.rand(7, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0, 2, 2]))
    settings = {"lr": 0.1, **KINDS[kind]}
    return model, batch, LocalTraining(algorithm="fedavg", batch_size=2, epochs=2, **settings)  # type: ignore[arg-type]


def played(model: nn.Module, training: LocalTraining, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    names = [name for name, _ in model.named_parameters()]

    def gradient(weights, x, y, differentiable):  # type: ignore[no-untyped-def]
        logits = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x,))
        loss = nn.functional.cross_entropy(logits, y)
        return torch.autograd.grad(loss, list(weights), create_graph=differentiable)

    groups = grouped(local_batches(len(inputs), training), training)
    start = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    step = local_step(gradient, training, len(start), groups)
    end = Replay(step, [torch.cat(group) for group in groups], start).final_state(inputs, labels)
    return [new - old for new, old in zip(end, start, strict=False)]


@pytest.mark.parametrize("kind", KINDS)
def test_it_ends_where_the_client_ends(kind: str) -> None:
    model, batch, training = setting(kind)
    sent = local_update(Broadcast(model), batch, training).tensors
    for own, theirs in zip(played(model, training, batch.inputs, batch.labels), sent.values(), strict=True):
        torch.testing.assert_close(own.detach(), theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["adam", "cosine", "accumulated"])
def test_its_derivative_is_that_of_finite_differences(kind: str) -> None:
    model, batch, training = setting(kind)
    inputs = batch.inputs.clone().requires_grad_()

    def total(x: Tensor) -> Tensor:
        return torch.stack([t.pow(2).sum() for t in played(model, training, x, batch.labels)]).sum()

    (own,) = torch.autograd.grad(total(inputs), inputs)
    towards = torch.randn(inputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    small = 1e-6
    change = (total(batch.inputs + small * towards) - total(batch.inputs - small * towards)) / (2 * small)
    assert float((own * towards).sum()) == pytest.approx(float(change.detach()), rel=1e-4)


def test_the_last_rate_is_above_zero() -> None:
    assert min(rates(LocalTraining(schedule="cosine"), 3)) > 0

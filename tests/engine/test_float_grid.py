"""A difference of weights lies on their floating-point grid; gradients do not, however they were rounded."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seepage.engine.float_grid import is_a_difference

Tensors = dict[str, Tensor]


def _net(activation: type[nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    layers = (nn.Linear(20, 30), activation(), nn.BatchNorm1d(30), nn.Linear(30, 10))
    return nn.Sequential(*layers).to(dtype)


def _both(seed: int, optimizer: str, steps: int, size: int, dtype: torch.dtype) -> tuple[Tensors, ...]:
    """Weights, the gradient and the change, of a model that has been trained a little."""
    torch.manual_seed(seed)
    model = _net(nn.Tanh if seed % 2 else nn.ReLU, dtype)
    x, y = torch.randn(size, 20, dtype=dtype), torch.randint(10, (size,))
    model.eval()
    for _ in range(3 * seed):
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data -= 0.1 * (p.grad if p.grad is not None else 0)
            p.grad = None
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    F.cross_entropy(model(x), y).backward()
    gradient = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    trained = copy.deepcopy(model)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optim = kinds[optimizer](trained.parameters(), lr=0.01 if optimizer == "sgd" else 1e-3)
    for _ in range(steps):
        optim.zero_grad()
        F.cross_entropy(trained(x), y).backward()
        optim.step()
    return weights, gradient, {n: p.detach() - weights[n] for n, p in trained.named_parameters()}


_ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda t: t,
    "bfloat16": lambda t: t.bfloat16().to(t.dtype),
    "float16": lambda t: t.half().to(t.dtype),
    "8 bits": lambda t: (t / t.abs().max() * 127).round() * t.abs().max() / 127,
    "fixed point": lambda t: (t * 2**16).round() / 2**16,
    "pruned": lambda t: torch.where(t.abs() > t.abs().median(), t, 0),
    "signs": lambda t: 2**-10 * t.sign(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_change_of_weights_is_known_and_no_gradient_is_taken_for_one(
    optimizer: str, steps: int, dtype: torch.dtype
) -> None:
    for seed in range(4):
        weights, gradient, change = _both(seed, optimizer, steps, 4 + 20 * seed, dtype)
        assert is_a_difference(weights, change)
        for how, rounded in _ROUNDED.items():
            assert not is_a_difference(weights, {n: rounded(t) for n, t in gradient.items()}), how
        scaled = {n: 0.37 * t for n, t in change.items()}  # clipped, say: off the grid, so nothing is said
        assert not is_a_difference(weights, scaled)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_that_are_sent_in_sixteen_bits_have_a_coarser_grid(dtype: torch.dtype) -> None:
    weights, gradient, _ = _both(1, "sgd", 5, 24, torch.float32)
    narrow = {n: t.to(dtype) for n, t in weights.items()}
    moved = {n: (narrow[n] - 8 * gradient[n].to(dtype) / 10).float() - narrow[n].float() for n in weights}
    stored = {n: t.float() for n, t in narrow.items()}
    assert is_a_difference(stored, moved)
    assert not is_a_difference(stored, gradient)
    assert not is_a_difference(stored, {n: t.to(dtype).float() for n, t in gradient.items()})


def test_too_few_entries_say_nothing() -> None:
    weights = torch.rand(50) + 0.5
    change = (weights + 1e-3 * torch.randn(50)) - weights
    assert not is_a_difference({"w": weights}, {"w": change})
    assert not is_a_difference({"w": torch.zeros(500)}, {"w": torch.rand(500)})  # no weight to compare with

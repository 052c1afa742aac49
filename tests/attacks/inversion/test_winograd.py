"""Winograd's convolutions and their gradients against torch's own, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks.inversion.winograd import (
    FOUR_BY_FOUR,
    TWO_BY_TWO,
    WinogradTerms,
    suits_winograd,
    transforms,
)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padding", [0, 1, (2, 1), "same"])
@pytest.mark.parametrize("size", [(20, 20), (23, 22), (8, 8), (5, 9)])
def test_output_and_both_gradients(size: tuple[int, int], padding, bias: bool) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 5, 3, padding=padding, bias=bias).double()
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    expected = layer(x)
    delta = torch.randn_like(expected)
    terms = WinogradTerms(layer, "weight", "bias")
    assert terms.forward is not None
    output = terms.forward(x)
    assert close(output, expected)
    assert close(
        torch.autograd.grad(output, x, delta, retain_graph=True)[0],
        torch.autograd.grad(expected, x, delta)[0],
    )
    terms.saw(x, output)
    terms.receive(delta)
    pulls = torch.randn(2, *layer.weight.shape, dtype=torch.float64)
    inner = torch.zeros((), dtype=torch.float64)
    for restart in range(2):
        one = layer(x[restart : restart + 1])
        (by_hand,) = torch.autograd.grad(one, layer.weight, delta[restart : restart + 1], create_graph=True)
        assert close(terms.weight_gradient(restart), terms.arranged(by_hand))
        if bias:
            assert close(terms.bias_gradient(restart), delta[restart].sum(dim=(1, 2)))
        terms.inject(restart, terms.arranged(pulls[restart]))
        inner = inner + (by_hand * pulls[restart]).sum()
    # the second backward pass adds what was injected to what comes from above
    above = torch.randn_like(delta)
    (found,) = torch.autograd.grad(output, x, above)
    (of_inner,) = torch.autograd.grad(inner, x)
    (of_output,) = torch.autograd.grad(layer(x), x, above)
    assert close(found, of_inner + of_output)


@pytest.mark.parametrize("points", [TWO_BY_TWO, FOUR_BY_FOUR])
def test_transforms_multiply_polynomials(points: tuple[float, ...]) -> None:
    b, g, a = transforms(points)
    patch, kernel = torch.randn(len(points) + 1).double(), torch.randn(3).double()
    expected = torch.stack([(patch[i : i + 3] * kernel).sum() for i in range(len(points) - 1)])
    assert close(a.T @ ((g @ kernel) * (b @ patch)), expected)


def test_rounds_little_in_single_precision() -> None:
    torch.manual_seed(1)
    layer, x = nn.Conv2d(64, 64, 3, padding=1), torch.randn(1, 64, 32, 32).relu()
    found = WinogradTerms(layer, None, None).output_of(x)
    exact = layer.double()(x.double())
    assert (found - exact).norm() / exact.norm() < 3e-6


class Standardised(nn.Conv2d):
    """Looks like a convolution and is another one."""


@pytest.mark.parametrize(
    ("layer", "suits"),
    [
        (nn.Conv2d(64, 64, 3), True),
        (nn.Conv2d(64, 64, 3, padding="same"), True),
        (nn.Conv2d(64, 63, 3), False),
        (nn.Conv2d(64, 64, 5), False),
        (nn.Conv2d(64, 64, 3, stride=2), False),
        (nn.Conv2d(64, 64, 3, dilation=2), False),
        (nn.Conv2d(128, 128, 3, groups=2), False),
        (nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"), False),
        (nn.Conv2d(64, 64, 3).to(torch.bfloat16), False),
        (Standardised(64, 64, 3), False),
        (nn.Linear(64, 64), False),
    ],
)
def test_which_layers_it_suits(layer: nn.Module, suits: bool) -> None:
    assert suits_winograd(layer) is suits

"""Rows that are products of one example: what floating point says, against chances that are counted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import PROOF
from seepage.attacks.reading.products import joint_evidence, product_evidence

TYPES = [torch.float32, torch.float64]


def evidence(weight: Tensor, bias: Tensor) -> Tensor:
    return product_evidence(weight, bias, torch.arange(len(bias)), weight.dtype)


def drawn(rows: int, values: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(rows, values, generator=generator, dtype=dtype)
    return x, torch.randn(rows, generator=generator, dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_products_are_never_refuted_and_prove_themselves(dtype: torch.dtype) -> None:
    x, d = drawn(200, 300, dtype)
    found = evidence(x * d.unsqueeze(1), d)
    assert bool(found.isfinite().all()) and float((found <= PROOF).double().mean()) >= 0.75


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("apart", [0.0, 1e-3, 1.0])
def test_mixtures_pass_as_often_as_their_evidence_says(dtype: torch.dtype, apart: float) -> None:
    """One value a row: exp(evidence) is its probability to be a product, 1 / s."""
    x, d = drawn(4000, 1, dtype)
    other, more = drawn(8000, 1, dtype)
    e = d * (1.01 + 0.5 * more[4000:].abs())
    mixed = x * d.unsqueeze(1) + (x + apart * other[4000:]) * e.unsqueeze(1)
    found = evidence(mixed, d + e)
    telling = found != 0
    significand = 2 * torch.frexp(d + e).mantissa.abs().double()
    passed = found[telling].isfinite().double()
    assert int(telling.sum()) > 1000
    error = (passed.mean() - (1 / significand[telling]).mean()).abs()
    assert float(error) < 4 * 0.5 / math.sqrt(len(passed))
    finite = telling & found.isfinite()
    assert torch.allclose(found[finite], -significand[finite].log())


def test_equal_values_and_powers_of_two_are_no_evidence() -> None:
    d = torch.tensor([1.9])
    row = torch.tensor([[0.0, 1.0, 0.25, 1.01, 1.01, 2.02, 0.505]]) * d
    assert evidence(row, d).item() == pytest.approx(-math.log(1.9))


def test_faint_values_refute_nothing() -> None:
    """Below the smallest normal number products lose digits."""
    x, d = drawn(50, 300, torch.float32)
    assert bool(evidence(x * d.unsqueeze(1) * 2.0**-140 * 3, d * 2.0**-140 * 2.5).isfinite().all())


def test_the_best_of_many_rows_pays_for_the_choice() -> None:
    groups = torch.tensor([0, 0, 1])
    assert joint_evidence(groups, torch.tensor([-3.0, torch.inf, torch.inf])).tolist() == [
        pytest.approx(-3.0 + math.log(2)),
        torch.inf,
    ]

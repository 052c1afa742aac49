"""Rows that are products of one example: what floating point says, against chances that are counted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seepage.attacks.reading.products import joint_evidence, product_evidence, proves, speaks_for

TYPES = [torch.float32, torch.float64]


def evidence(weight: Tensor, bias: Tensor) -> Tensor:
    return product_evidence(weight, bias, torch.arange(len(bias)), weight.dtype)


def drawn(rows: int, values: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(rows, values, generator=generator, dtype=dtype)
    return x, torch.randn(rows, generator=generator, dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_products_are_never_refuted_and_prove_themselves(dtype: torch.dtype) -> None:
    x, d = drawn(200, 500, dtype)
    found = evidence(x * d.unsqueeze(1), d)
    assert bool(found.isfinite().all()) and float((found == math.log(1 / 20)).double().mean()) > 0.9


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("apart", "ratio"), [(0.0, 1.00001), (1e-3, 1.00001), (0.0, 1.3), (1.0, 1.3)])
def test_mixtures_are_products_no_more_often_than_their_evidence_says(
    dtype: torch.dtype, apart: float, ratio: float
) -> None:
    """One value a row. The most alike two are so as often: the same x, and d_1 + d_2 is exact."""
    x, d = drawn(20000, 1, dtype)
    e = d * ratio
    total = d + e
    exact = (total - d == e) & (total - e == d)
    mixed = torch.addcmul(d.unsqueeze(1) * x, e.unsqueeze(1), x + apart * x.flip(0))
    found = evidence(mixed, total)
    significand = 2 * torch.frexp(total).mantissa.abs().double()
    telling = (found != 0) & (significand > 1.25) & (exact if ratio < 1.1 else True)
    passed = float(found[telling].isfinite().double().mean())
    assert int(telling.sum()) > 1000
    margin = 4 * 0.33 / math.sqrt(int(telling.sum()))
    assert passed < 7 / 8 + margin and (passed > 7 / 8 - margin or ratio > 1.1 or apart > 0)
    finite = telling & found.isfinite()
    assert torch.allclose(found[finite], torch.tensor(7 / 8).double().log())


def test_equal_values_and_powers_of_two_are_no_evidence() -> None:
    d = torch.tensor([1.9])
    row = torch.tensor([[0.0, 1.0, 0.25, 1.01, 1.01, 2.02, 0.505]]) * d
    assert evidence(row, d).item() == pytest.approx(math.log(7 / 8))


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


def test_a_few_that_pass_among_many_that_do_not_prove_nothing() -> None:
    """Each of 20 means passes with probability .05: two or three of them do."""
    evidence = torch.full((20,), torch.inf, dtype=torch.float64)
    for passed, asked in ((2, speaks_for), (4, speaks_for), (5, proves)):
        some = evidence.clone()
        some[:passed] = math.log(0.05)
        assert not asked(some)
    evidence[:15] = math.log(0.05)
    assert speaks_for(evidence) and proves(evidence)
    assert not speaks_for(evidence[:0])


def test_one_that_passes_is_enough_for_a_declared_number_only_where_more_speaks_for_it() -> None:
    """One mean of two in a table of 30 columns passes in one case of three."""
    one = torch.tensor([math.log(1 / 3)])
    assert speaks_for(one) and not speaks_for(one, surely=True) and not proves(one)

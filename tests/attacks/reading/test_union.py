"""Exact extraction never reports less than plain extraction of the same update."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.reading.peeling.builders import errors, patterned, sent
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.attacks.reading.union import merge_claims, unite
from seepage.core.types import Batch, Exchange, InputSpec, Knowledge, Modality, Reconstruction, RowCount
from seepage.metrics import extraction_scores
from seepage.metrics.exact import EXACT_TOLERANCE

KINDS = ("pictures", "integers", "reals", "coarse pictures")


def table(kind: str, n: int, columns: int, generator: torch.Generator) -> tuple[Tensor, tuple[float, float]]:
    """Values of each kind, and their range."""
    unit = torch.rand(n, columns, generator=generator)
    if kind == "pictures":
        return (unit * 255).round() / 255, (0.0, 1.0)
    if kind == "coarse pictures":
        return (unit * 16).round() / 16, (0.0, 1.0)
    if kind == "integers":  # ages, counts, codes: few values in some columns, many in others
        most = torch.tensor([1.0, 5.0, 90.0, 255.0])[torch.arange(columns) % 4]
        return (unit * most).round(), (0.0, 255.0)
    return 3 * unit - 1, (-1.0, 2.0)


def setting(kind: str, n: int, width: int, columns: int, seed: int) -> tuple[Exchange, Knowledge, Batch]:
    generator = torch.Generator().manual_seed(seed)
    inputs, value_range = table(kind, n, columns, generator)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, 3))
    # Integers are fed as they are: losses are certain, and peeling alone finds few of them.
    spec = InputSpec(modality=Modality.TABULAR, shape=(columns,), num_classes=3, value_range=value_range)
    batch = Batch(inputs, torch.randint(3, (n,), generator=generator))
    exchange, known = sent(model, batch, spec)
    return exchange, known, batch


def exact(result: Reconstruction, batch: Batch, unit: float) -> int:
    return int((errors(result.values, batch.inputs) <= EXACT_TOLERANCE * unit).any(0).sum())


def vouched(result: Reconstruction, batch: Batch, unit: float) -> int:
    """Distinct examples that right claims are about."""
    assert result.claimed is not None
    claimed = result.values[result.claimed]
    return int((errors(claimed, batch.inputs) <= EXACT_TOLERANCE * unit).any(0).sum()) if len(claimed) else 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 20),
    width=st.integers(5, 150),
    columns=st.integers(4, 40),
    seed=st.integers(0, 999),
)
def test_it_has_at_least_the_examples_that_plain_extraction_has(
    kind: str, n: int, width: int, columns: int, seed: int
) -> None:
    exchange, known, batch = setting(kind, n, width, columns, seed)
    assert known.input.value_range is not None
    unit = known.input.value_range[1] - known.input.value_range[0]
    plain, better = (
        ATTACKS[name]().run([exchange], known) for name in ("analytic_extraction", "exact_extraction")
    )
    assert exact(better, batch, unit) >= exact(plain, batch, unit)
    assert vouched(better, batch, unit) >= vouched(plain, batch, unit)
    assert better.rows is not None and better.support is not None
    # Boenisch et al.'s metrics refuse candidates that claim more rows than were active.
    extraction_scores(better.values, better.support, better.rows, batch.inputs)


def test_plain_readings_are_not_dropped_once_something_is_found() -> None:
    """Integer columns that make the losses certain: peeling certifies some, and stalls."""
    total = 0
    for seed in range(8):
        exchange, known, batch = setting("integers", 12, 120, 12, seed)
        plain = ATTACKS["analytic_extraction"]().run([exchange], known)
        better = ATTACKS["exact_extraction"]().run([exchange], known)
        assert exact(better, batch, 255.0) >= exact(plain, batch, 255.0)
        total += exact(plain, batch, 255.0)
    assert total > 0


def reading(
    values: list[list[float]], claimed: list[bool], support: list[int], active: int
) -> Reconstruction:
    return Reconstruction(
        values=torch.tensor(values),
        claimed=torch.tensor(claimed),
        confidence=torch.ones(len(values)),
        support=torch.tensor(support),
        rows=RowCount(total=9, active=active),
    )


SPEC = InputSpec(modality=Modality.TABULAR, shape=(2,), num_classes=2)


def test_united_candidates_hold_each_claimed_example_once() -> None:
    better = reading([[0.1, 0.2], [0.5, 0.5]], [True, False], [2, 1], active=8)
    plain = reading([[0.1, 0.2005], [0.5, 0.5005], [0.9, 0.9]], [False, False, True], [2, 1, 1], active=8)
    both = unite(better, plain, SPEC)
    # The first is claimed already. The second is near one that nobody vouches for: it may be the better one.
    assert both.values.tolist() == torch.tensor([[0.1, 0.2], [0.5, 0.5], [0.5, 0.5005], [0.9, 0.9]]).tolist()
    assert both.claimed.tolist() == [True, False, False, True] and both.support.tolist() == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("active", "supports"), [(6, [2, 2, 2]), (5, [1, 2, 2]), (3, [1, 1, 1]), (2, [1, 1, 0])]
)
def test_no_more_rows_are_counted_than_were_active(active: int, supports: list[int]) -> None:
    better = reading([[0.1, 0.2]], [True], [2], active=active)
    plain = reading([[0.3, 0.3], [0.9, 0.9]], [False, False], [2, 2], active=active)
    assert unite(better, plain, SPEC).support.tolist() == supports


@pytest.mark.parametrize("labels", [(2, 1), (0, 1)])
def test_copies_that_are_more_than_the_rows_share_these(labels: tuple[int, int]) -> None:
    """Both copies were read from the only active row."""
    model, batch, spec = patterned([[0]], 1)
    inputs = (batch.inputs * 255).round() / 255
    exchange, known = sent(model, Batch(inputs.repeat(2, 1), torch.tensor(labels)), spec)
    result = exact_extraction().run([exchange], known)
    assert len(result) == 2 and result.rows.active == 1
    assert result.support.tolist() == [1, 0]


def test_an_example_that_rows_show_with_different_rounding_is_claimed_once() -> None:
    values = [[0.1, 0.2], [0.1004, 0.2], [0.1, 0.2], [0.7, 0.7]]
    merged = merge_claims(reading(values, [True, True, False, True], [1, 2, 3, 1], active=9), SPEC)
    assert merged.support.tolist() == [3, 3, 1] and merged.claimed.tolist() == [True, False, True]


TABLE = InputSpec(
    modality=Modality.TABULAR,
    shape=(2,),
    num_classes=2,
    value_range=None,
    mean=(14.0, 650.0),
    std=(3.5, 350.0),
)
"""Mean radius and area of a tumour: no range is known, and the columns share no unit."""


def test_a_candidate_without_bounds_does_not_make_all_others_the_same() -> None:
    """A row with nearly no bias gradient shows 1e25: measured by that, one claim spoke for every reading."""
    values = [[14.0, 600.0], [11.0, 400.0], [1e25, -1e25]]
    peeled = reading(values, [False] * 3, [1, 1, 1], active=9)
    plain = reading(values, [True, False, False], [1, 1, 1], active=9)
    both = unite(peeled, plain, TABLE)
    assert len(both) == 3 and both.claimed.tolist() == [True, False, False]


def test_claims_that_differ_in_a_narrow_column_stay_two() -> None:
    """3 of the mean radius is less than a thousandth of the area, and nearly a standard deviation."""
    values = [[14.0, 3600.0], [11.0, 3600.0]]
    assert len(merge_claims(reading(values, [True, True], [1, 1], active=9), TABLE)) == 2

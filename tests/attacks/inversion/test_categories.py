"""Tables with categories: searched by softmax, and the right ones found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks.inversion.categories import Categories, categories_of
from seepage.attacks.inversion.deep_leakage import deep_leakage, idlg
from seepage.attacks.inversion.distances import euclidean
from seepage.attacks.inversion.gradient_inversion import GradientInversion
from seepage.attacks.inversion.inverting_gradients import inverting_gradients
from seepage.attacks.inversion.objective import Candidates, update_matching
from seepage.attacks.inversion.tag import tag
from seepage.core.types import Batch, InputSpec, LocalTraining, Modality

from .setting import exchange_for, knowledge, problem_for

GROUPS = ((3, 4, 5, 6), (7, 8, 9))
SPEC = InputSpec(modality=Modality.TABULAR, shape=(10,), num_classes=3, categories=GROUPS)
STANDARDISED = replace(
    SPEC, value_range=(0.0, 1.0), mean=tuple(0.1 * i for i in range(10)), std=(0.3,) * 5 + (0.6,) * 5
)
FIRST, SECOND = [2, 0, 3], [1, 1, 2]  # the rows' categories


def rows() -> Tensor:
    """Three numbers and two categories."""
    generator = torch.Generator().manual_seed(7)
    raw = torch.zeros(3, 10, dtype=torch.float64)
    raw[:, :3] = torch.rand(3, 3, generator=generator, dtype=torch.float64)
    for row, (first, second) in enumerate(zip(FIRST, SECOND, strict=True)):
        raw[row, 3 + first] = raw[row, 7 + second] = 1
    return raw


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(10, 40), nn.Sigmoid(), nn.Linear(40, 3)).double()


def batch_of(spec: InputSpec) -> Batch:
    return Batch(spec.to_model(rows()), torch.tensor([0, 1, 2]))


def categories(spec: InputSpec) -> Categories:
    return categories_of(problem_for(network(), spec, batch_of(spec), LocalTraining()))


@pytest.mark.parametrize(
    ("attack", "count", "spec"),
    [
        (idlg(steps=200), 3, SPEC),
        (deep_leakage(steps=200), 3, STANDARDISED),
        (inverting_gradients(steps=400), 1, STANDARDISED),
        (tag(steps=400), 1, SPEC),
    ],
)
def test_rows_come_back_with_the_right_categories(
    attack: GradientInversion, count: int, spec: InputSpec
) -> None:
    truth = rows()[:count]
    batch = batch_of(spec).select(slice(count))
    exchange = exchange_for(network(), batch, LocalTraining(), grant_labels=False)
    found = attack.run([exchange], knowledge(spec, LocalTraining()))
    order = torch.cdist(truth, found.values).argmin(dim=1)
    assert sorted(order.tolist()) == list(range(count))
    values = found.values[order]
    torch.testing.assert_close(values[:, 3:], truth[:, 3:], atol=1e-9, rtol=0)  # exactly one 1, and where
    assert float((values[:, :3] - truth[:, :3]).abs().max()) < 0.01
    assert any("2 categorical column(s)" in note for note in found.notes)


def test_a_softmax_takes_the_place_of_each_group_in_model_units() -> None:
    held = categories(STANDARDISED)
    free = torch.randn(2, 3, 10, dtype=torch.float64)
    raw = STANDARDISED.to_raw(held.inputs(free))
    for group in GROUPS:
        expected = free[..., list(group)].exp()  # centre 0 and unit 1, as the table is standardised
        torch.testing.assert_close(raw[..., list(group)], expected / expected.sum(-1, keepdim=True))
    torch.testing.assert_close(held.inputs(free)[..., :3], free[..., :3])
    hard = STANDARDISED.to_raw(held.decoded(free))
    for group in GROUPS:
        assert torch.equal(hard[..., list(group)].argmax(-1), free[..., list(group)].argmax(-1))
        torch.testing.assert_close(hard[..., list(group)].sum(-1), torch.ones(2, 3, dtype=torch.float64))


def test_the_gradient_in_free_values_agrees_with_finite_differences() -> None:
    problem = problem_for(network(), SPEC, batch_of(SPEC), LocalTraining())
    objective = categories_of(problem).searched(update_matching(problem, euclidean))
    start = Candidates(
        torch.randn(2, 3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        torch.zeros(2, 3, dtype=torch.long),
    )
    gradient = objective(start).gradients[0]
    for place in ((0, 0, 1), (0, 2, 4), (1, 1, 8)):
        values = []
        for sign in (1, -1):
            inputs = start.inputs.clone()
            inputs[place] += sign * 1e-5
            values.append(objective(replace(start, inputs=inputs)).values.sum())
        assert float(gradient[place]) == pytest.approx(
            float(values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-9
        )


def test_only_numbers_are_held_inside_the_box() -> None:
    free = torch.full((1, 1, 10), 5.0, dtype=torch.float64)
    assert categories(SPEC).project(free).flatten().tolist() == [1.0] * 3 + [5.0] * 7


def test_without_known_units_columns_are_continuous_and_it_is_said() -> None:
    spec = replace(STANDARDISED, mean=None, std=None, value_range=None)
    known = replace(knowledge(spec, LocalTraining()), normalised=True)
    exchange = exchange_for(network(), batch_of(STANDARDISED), LocalTraining())
    found = idlg(steps=3).run([exchange], known)
    assert found.model_units and any("normalisation was not granted" in note for note in found.notes)

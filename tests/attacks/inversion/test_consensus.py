"""Registration by phase correlation, and the consensus of restarts that show the same thing elsewhere."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from seepage.attacks.inversion.consensus import (
    distance_to_consensus,
    group_consistency,
    registered_consensus,
    shifted,
    shifts_between,
)
from seepage.core.types import InputSpec, LocalTraining, Modality
from seepage.data import load_data

from .setting import conv_net, dense_net, image_spec, problem_for, random_batch

SHIFTS = [(0, 0), (3, -5), (-6, 2), (1, 0), (0, -6)]
TEXTURED = 78
"""Number of a photograph with contrast."""


@cache
def photographs() -> Tensor:
    return load_data("photos", size=64).inputs.double()


def photograph(number: int) -> Tensor:
    return photographs()[number]


def window(photo: Tensor, down: int, right: int) -> Tensor:
    """32 x 32 pixels of a larger picture, with what it shows moved by so much: new content at the border."""
    return photo[:, 16 - down : 48 - down, 16 - right : 48 - right]


@pytest.mark.parametrize(("down", "right"), SHIFTS)
@pytest.mark.parametrize("number", [3, TEXTURED, 114])
def test_a_shift_is_found_and_undone(number: int, down: int, right: int) -> None:
    fixed, moving = window(photograph(number), 0, 0), window(photograph(number), down, right)
    found = shifts_between(fixed, moving)
    assert found.tolist() == [-down, -right]
    back = shifted(moving[None], found[None], torch.full_like(moving[None], torch.nan))[0]
    seen = ~back.isnan()
    assert torch.equal(back[seen], fixed[seen])
    assert int(seen.sum()) == 3 * (32 - abs(down)) * (32 - abs(right))


def test_each_example_has_its_own_shift() -> None:
    photos = torch.stack([window(photograph(n), 0, 0) for n in (3, TEXTURED)])
    moved = torch.stack([window(photograph(3), 4, 1), window(photograph(TEXTURED), -2, 6)])
    assert shifts_between(photos, moved).tolist() == [[-4, -1], [2, -6]]


def test_noise_is_not_aligned() -> None:
    generator = torch.Generator().manual_seed(3)
    one, other = torch.rand(2, 50, 3, 32, 32, generator=generator)
    assert int(shifts_between(one, other).any(dim=-1).sum()) <= 1


def test_the_consensus_of_shifted_noisy_copies_is_cleaner_than_each_and_stays_in_its_place() -> None:
    generator = torch.Generator().manual_seed(4)
    photo, deviation = photograph(TEXTURED), 0.02
    places = [(0, 0), (3, -3), (-3, 2), (1, 0), (0, -3)]
    clean = torch.stack([window(photo, *place) for place in places])[:, None]  # (5, 1, 3, 32, 32)
    noisy = clean + deviation * torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    agreed = registered_consensus(noisy)
    inner = (..., slice(9, 22), slice(9, 22))  # covered by every restart
    for r in range(len(places)):
        error = (agreed[r] - clean[r])[inner].square().mean().sqrt()
        # the mean of five independent disturbances, and nothing of a blur
        assert float(error) == pytest.approx(deviation / 5**0.5, rel=0.1)
    blurred = (noisy.mean(dim=0) - clean[0])[inner].square().mean().sqrt()
    assert float(blurred) > 3 * deviation


def test_restarts_in_the_same_place_have_their_plain_mean() -> None:
    generator = torch.Generator().manual_seed(5)
    photo = window(photograph(TEXTURED), 0, 0)
    images = photo + 0.02 * torch.randn((3, 2, 3, 32, 32), generator=generator, dtype=torch.float64)
    torch.testing.assert_close(registered_consensus(images), images.mean(dim=0).expand_as(images))


def test_distance_of_two_restarts_in_closed_form() -> None:
    inputs = torch.stack([torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 4.0)])
    assert distance_to_consensus(inputs, inputs.mean(dim=0, keepdim=True)).tolist() == [4.0, 4.0]


def test_group_consistency_pulls_each_restart_to_the_mean() -> None:
    spec = image_spec()
    problem = problem_for(conv_net(spec), spec, random_batch(spec, [0, 3]), LocalTraining())
    prior = group_consistency(0.7)(problem)
    assert prior is not None
    x = random_batch(spec, [0] * 4, seed=1).inputs.reshape(2, 2, *spec.shape).requires_grad_()
    (gradient,) = torch.autograd.grad(prior(x).sum(), x)
    # the consensus is held fixed (Yin et al., eq. 11): d/dx mean (x - m)^2 = 2 (x - m) / size
    expected = 2 * 0.7 * (x - x.mean(0)) / x[0].numel() / problem.unit**2
    torch.testing.assert_close(gradient, expected.detach())


def test_shifted_copies_cost_nothing_where_they_overlap() -> None:
    """Two restarts that show the same thing elsewhere agree once they are registered."""
    spec = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=5)
    problem = problem_for(dense_net(spec), spec, random_batch(spec, [1]), LocalTraining())
    prior = group_consistency(1.0)(problem)
    assert prior is not None
    restarts = torch.stack([window(photograph(TEXTURED), *shift) for shift in SHIFTS[:2]])[:, None]
    plain = distance_to_consensus(restarts, restarts.mean(dim=0, keepdim=True)) / problem.unit**2
    assert prior(restarts).tolist() == pytest.approx([0, 0], abs=1e-12) and float(plain.min()) > 0.05


def test_tables_are_compared_column_by_column_and_one_restart_agrees_with_itself() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=5)
    problem = problem_for(dense_net(spec), spec, random_batch(spec, [1]), LocalTraining())
    prior = group_consistency(2.0)(problem)
    assert prior is not None and group_consistency(0.0)(problem) is None
    rows = torch.tensor([[[0.0, 0, 0, 0]], [[1.0, 1, 1, 1]]], dtype=torch.float64)
    assert prior(rows).tolist() == pytest.approx([2 * 0.25 / problem.unit**2] * 2)
    assert prior(rows[:1]).tolist() == [0.0]

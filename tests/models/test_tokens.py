"""Embeddings back to tokens, against a brute-force search."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seepage.models.tokens import hashed_tokens, tokens_of


def texts(vocabulary: int, dim: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(vocabulary, dim, generator=generator)
    return table, torch.randint(vocabulary, (7, 20), generator=generator)


@pytest.mark.parametrize("dim", [2, 5, 64])
def test_rounded_embeddings_are_looked_up_without_a_search(dim: int) -> None:
    table, ids = texts(500, dim)
    read = table[ids] * 0.37 / 0.37  # rounded, as a quotient of gradients is
    found, distance = hashed_tokens(read, table)
    assert torch.equal(found, ids) and float(distance.max()) < 1e-5
    assert torch.equal(tokens_of(read, table)[0], ids)


def test_rows_with_the_same_hash_are_told_apart() -> None:
    """Among 10,000 rows some hashes differ by less than a quotient of gradients is rounded."""
    table, _ = texts(300, 8)
    table[1] = table[0]
    table[1, :2] += torch.tensor([2.0**0.5, -1.0]) / 10  # the hash weighs them by 1 and sqrt(2)
    ids = torch.randint(2, (7, 20), generator=torch.Generator().manual_seed(1))
    noise = 1e-6 * torch.randn(7, 20, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(hashed_tokens(table[ids] + noise, table)[0], ids)


def test_noisy_embeddings_fall_back_to_the_nearest_row() -> None:
    table, ids = texts(300, 40)
    noisy = table[ids] + 0.15 * torch.randn(7, 20, 40, generator=torch.Generator().manual_seed(1))
    found, distance = tokens_of(noisy, table)
    brute = torch.cdist(noisy.flatten(0, 1), table).argmin(dim=1).view(7, 20)
    assert torch.equal(found, brute) and torch.equal(found, ids)
    expected = (noisy - table[ids]).norm(dim=2) / table.norm(dim=1).median()
    assert torch.allclose(distance, expected, rtol=1e-4)


def test_a_text_that_dominates_a_mixture_is_still_read() -> None:
    table, ids = texts(300, 40)
    mixed = 0.8 * table[ids[:3]] + 0.2 * table[ids[3:6]]
    assert torch.equal(tokens_of(mixed, table)[0], ids[:3])
    found, distance = tokens_of(mixed, table, nearest=False)
    assert torch.equal(found < 0, distance > 1e-5) and bool((found < 0).any(dim=1).all())


def test_no_text_at_all() -> None:
    table, _ = texts(30, 4)
    found, distance = tokens_of(torch.zeros(0, 5, 4), table)
    assert found.shape == distance.shape == (0, 5)

"""Sentences out of links that are known: what stands together is found whatever its length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seepage.attacks.text import assembling
from seepage.attacks.text.places import Places
from seepage.core.types import PADDING

LENGTH = 16
FIRST = 101
"""The token that every sentence begins with: one candidate for all of them."""


def linked(sizes: list[int], seed: int) -> tuple[Tensor, Places, Tensor]:
    """Sentences (m, LENGTH) of so many tokens, their candidates, and links inside sentences alone."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.full((len(sizes), LENGTH), PADDING)
    tokens, places, owner = [FIRST], [0], [-1]
    truth[:, 0] = FIRST
    for number, size in enumerate(sizes):
        for place in range(1, size):
            token = 1000 * (number + 1) + place
            truth[number, place] = token
            tokens.append(token)
            places.append(place)
            owner.append(number)
    own = torch.tensor(owner)
    together = (own[:, None] == own[None]) | (own[:, None] < 0) | (own[None] < 0)
    strength = torch.rand(len(own), len(own), generator=generator) * 0.9 + 0.1
    links = torch.where(together, (strength + strength.T) / 2, 1e-5)
    order = torch.randperm(len(own), generator=generator)
    found = Places(torch.tensor(tokens), torch.tensor(places), torch.ones(len(own), dtype=torch.bool), links)
    return truth, found.only(order), links[order][:, order]


@pytest.mark.parametrize("sizes", [[9, 16], [10, 16], [5, 16], [16, 16], [4, 9, 16], [3, 6, 11, 16]])
def test_a_long_sentence_does_not_swallow_a_short_one(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof stands for the second block's span: it accepts the sentences of the batch and no others."""
    for seed in range(10):
        truth, found, links = linked(sizes, seed)
        whole = {tuple(row) for row in truth.tolist()}
        monkeypatch.setattr(
            assembling,
            "inside",
            lambda _second, ids, whole=whole: torch.tensor(
                [tuple(row) in whole for row in ids.tolist()], dtype=torch.bool
            ),
        )
        told = assembling.sentences(None, found, links, LENGTH)  # type: ignore[arg-type]
        assert {tuple(row) for row in told.tolist()} == whole

"""Pruning, quantisation and signs with known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from seepage.core.types import Batch, Broadcast, Defense, Update, UpdateKind
from seepage.defenses.pruning import keep_top, pruning
from seepage.defenses.quantisation import quantisation, round_to
from seepage.defenses.sign import sign

BROADCAST = Broadcast(nn.Linear(2, 2))
BATCH = Batch(torch.zeros(3, 2), torch.tensor([0, 1, 0]))


def through(defense: Defense, **tensors: torch.Tensor) -> Update:
    sent = Update(kind=UpdateKind.DELTA, tensors=tensors, num_examples=3, buffers={"b": torch.ones(1)})
    return defense(BROADCAST, BATCH, lambda broadcast, batch: sent)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 300), share=st.sampled_from([0.0, 0.3, 0.8, 0.9, 0.99]), seed=st.integers(0, 99))
def test_exactly_the_largest_are_kept(n, share, seed) -> None:
    tensor = numbers(n, seed=seed)
    kept = keep_top(tensor, share)
    count = max(1, round((1 - share) * n))
    largest = set(np.argsort(-np.abs(tensor.numpy()))[:count].tolist())
    assert set(kept.nonzero().squeeze(1).tolist()) == largest
    assert torch.equal(kept[kept != 0], tensor[kept != 0])


def test_ties_are_broken_to_the_exact_number() -> None:
    assert (keep_top(torch.ones(10), 0.7) != 0).sum() == 3


def test_scope_tensor_keeps_a_share_of_each_and_scope_update_of_all() -> None:
    small, large = numbers(10, 10), 100 + numbers(10, 10, seed=1).abs()
    each = through(pruning(share=0.8), small=small, large=large)
    assert [(t != 0).sum().item() for t in each.tensors.values()] == [20, 20]
    whole = through(pruning(share=0.8, scope="update"), small=small, large=large)
    assert [(t != 0).sum().item() for t in whole.tensors.values()] == [0, 40]
    assert whole.tensors["large"].shape == (10, 10)
    assert torch.equal(whole.tensors["large"], keep_top(large, 0.6))
    assert (each.kind, each.num_examples) == (UpdateKind.DELTA, 3)
    assert each.buffers["b"].item() == 1.0


@settings(max_examples=60, deadline=None)
@given(bits=st.integers(2, 12), scale=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_codes_are_whole_numbers_and_the_error_is_half_a_step(bits, scale, seed) -> None:
    tensor = scale * numbers(50, seed=seed)
    sent = round_to(tensor, bits)
    step = tensor.abs().max() / (2 ** (bits - 1) - 1)
    codes = sent / step
    assert torch.allclose(codes, codes.round(), atol=1e-6)
    assert codes.abs().max().item() == pytest.approx(2 ** (bits - 1) - 1)
    assert (sent - tensor).abs().max() <= step / 2 * (1 + 1e-9)


def test_eight_bits_by_hand() -> None:
    sent = through(quantisation(), w=torch.tensor([[-12.7, 0.04], [0.06, 6.33]]), v=torch.zeros(3))
    assert torch.allclose(sent.tensors["w"], torch.tensor([[-12.7, 0.0], [0.1, 6.3]]), atol=1e-5)
    assert sent.tensors["v"].tolist() == [0.0, 0.0, 0.0]
    assert len(round_to(torch.linspace(-1, 1, 10_001), 8).unique()) == 255


def test_signs_with_one_magnitude_a_tensor() -> None:
    sent = through(sign(), w=torch.tensor([[1.0, -5.0], [0.0, 2.0]]), v=torch.tensor([-0.5]))
    assert sent.tensors["w"].tolist() == [[2.0, -2.0], [0.0, 2.0]]
    assert sent.tensors["v"].tolist() == [-0.5]
    tensor = numbers(100)
    compressed = through(sign(), w=tensor).tensors["w"]
    assert len(compressed.abs().unique()) == 1
    assert compressed.abs().sum().item() == pytest.approx(tensor.abs().sum().item())


@pytest.mark.parametrize("defense", [pruning(), quantisation(), sign()])
def test_a_tensor_without_entries_passes(defense) -> None:
    assert through(defense, w=torch.zeros(0, 3), v=torch.ones(2)).tensors["w"].shape == (0, 3)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_pruning_refuses_a_share(share) -> None:
    with pytest.raises(ValueError, match="share must be zero or more and below 1"):
        pruning(share=share)


def test_pruning_refuses_a_scope() -> None:
    with pytest.raises(ValueError, match="scope must be 'tensor' or 'update', not 'layer'"):
        pruning(scope="layer")  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [1, 0, 17, 2.5, "8"])
def test_quantisation_refuses(bits) -> None:
    with pytest.raises(ValueError, match="bits must be a whole number from 2 to 16"):
        quantisation(bits=bits)

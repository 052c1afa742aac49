"""Sparse traps: how many rows are crafted, where, how long they are, and how often they fire."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.attacks.traps.crafted_extraction import CraftedExtraction
from seepage.attacks.traps.quantile_traps import quantile_traps
from seepage.attacks.traps.sparse_traps import sparse_traps
from seepage.core.errors import SpecError

from .helpers import activations, attack_clients, dense_net, found_examples, image_batch, image_spec, knowing

SPEC = image_spec((1, 8, 8))
PUBLIC = image_batch(SPEC, 1000, seed=5)


def crafted_by(attack: CraftedExtraction, net: nn.Module, seed: int) -> nn.Module:
    sent = attack.craft(net, (), knowing(SPEC, auxiliary=PUBLIC, seed=seed))
    assert sent is not None
    return sent.model


def moved_rows(model: nn.Module, net: nn.Module) -> torch.Tensor:
    return (model.get_parameter("1.weight") != net.get_parameter("1.weight")).any(dim=1)


@pytest.mark.parametrize("kind", ["quantile_traps", "trap_weights"])
def test_a_share_of_the_rows_is_crafted_and_as_long_as_the_others(kind: str) -> None:
    net = dense_net(SPEC, 200)
    attack = sparse_traps(share=0.15, kind=kind, batch_size=50)
    model, other = (crafted_by(attack, net, seed) for seed in (0, 1))
    moved = moved_rows(model, net)
    assert int(moved.sum()) == 30 and not torch.equal(moved, moved_rows(other, net))
    lengths = model.get_parameter("1.weight").detach().norm(dim=1)
    assert float(lengths[moved].mean()) == pytest.approx(float(lengths[~moved].mean()), rel=0.05)
    changed = {n for n, p in net.named_parameters() if not torch.equal(p, model.get_parameter(n))}
    assert changed == {"1.weight", "1.bias"}


def test_a_crafted_row_fires_as_it_does_among_crafted_ones() -> None:
    """Row and bias are resized together: the inputs that fire a row are those of the whole attack."""
    net = dense_net(SPEC, 200)
    sparse = crafted_by(sparse_traps(share=0.15, batch_size=50), net, 0)
    whole = crafted_by(quantile_traps(batch_size=50), net, 0)
    rows = moved_rows(sparse, net)
    inputs = image_batch(SPEC, 500, seed=6).inputs
    fires = [activations(model, "1", inputs)[:, rows] for model in (sparse, whole)]
    assert float((fires[0] == fires[1]).float().mean()) > 0.999


def test_a_tenth_of_the_rows_lays_most_of_a_batch_bare() -> None:
    batch, net, known = image_batch(SPEC, 30, seed=9), dense_net(SPEC, 400), knowing(SPEC, auxiliary=PUBLIC)
    few, _ = attack_clients(sparse_traps(batch_size=30, read="rows"), net, [batch], known)
    assert int(found_examples(few.values, batch.inputs).sum()) >= 8


def test_wrong_settings_are_refused() -> None:
    for wrong in (
        {"share": 0.0},
        {"share": 1.5},
        {"kind": "imprint"},
        {"read": "nothing"},
        {"batch_size": 1},
    ):
        with pytest.raises(SpecError):
            sparse_traps(**wrong)

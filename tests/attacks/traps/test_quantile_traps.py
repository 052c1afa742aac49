"""Quantile traps: how often neurons fire, and where no value range is known."""

from __future__ import annotations

import pytest
import torch

from seepage.attacks.traps.quantile_traps import quantile_traps
from seepage.attacks.traps.traps import lonely
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, InputSpec, LocalTraining, Modality

from .helpers import (
    activations,
    attack_clients,
    dense_net,
    found_examples,
    image_batch,
    image_spec,
    knowing,
)


def test_quantile_traps_fire_for_one_in_b() -> None:
    spec = image_spec((1, 8, 8))
    public = image_batch(spec, 2000, seed=5)
    crafted = quantile_traps(batch_size=20, read="rows").craft(
        dense_net(spec, 100), (), knowing(spec, auxiliary=public)
    )
    assert crafted is not None
    fresh = image_batch(spec, 4000, seed=6)
    share = activations(crafted.model, "1", fresh.inputs).float().mean(dim=0)
    assert float((share - 1 / 20).abs().max()) < 0.03
    # Independent uniform pixels are what the assumed distribution describes: no data needed here.
    blind = quantile_traps(batch_size=20, read="rows").craft(dense_net(spec, 100), (), knowing(spec))
    assert blind is not None
    assert float(activations(blind.model, "1", fresh.inputs).float().mean()) == pytest.approx(0.05, abs=0.005)


def test_quantile_traps_work_where_normalisation_is_not_told() -> None:
    """Model values that are about N(0, 1) need no range, and candidates stay in model units."""
    spec = image_spec((1, 6, 6), normalised=True)
    generator = torch.Generator().manual_seed(2)
    raw = (0.4 + 0.25 * torch.randn(20, 1, 6, 6, generator=generator)).clamp(0, 1)
    batch = Batch(spec.to_model(raw), torch.randint(5, (20,), generator=generator))
    attack = quantile_traps(batch_size=20, read="rows")
    known = knowing(spec, deny=["normalisation"])
    result, played = attack_clients(attack, dense_net(spec, 100), [batch], known)
    expected = lonely(activations(played.exchanges[0].broadcast.model, "1", batch.inputs))
    assert result.model_units and int(expected.sum()) > 10
    assert torch.equal(found_examples(result.values, batch.inputs), expected)


def test_a_table_of_unknown_range_takes_public_examples() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(12,), num_classes=5, value_range=None)
    generator = torch.Generator().manual_seed(2)
    values = 3 + 50 * torch.randn(420, 12, generator=generator)
    labels = torch.randint(5, (420,), generator=generator)
    batch, public = Batch(values[:20], labels[:20]), Batch(values[20:], labels[20:])
    model = dense_net(spec, 100)
    with pytest.raises(NotApplicable, match="range of the input values is unknown"):
        quantile_traps(read="rows").check(model, knowing(spec))
    known = knowing(spec, auxiliary=public)
    result, played = attack_clients(quantile_traps(batch_size=20, read="rows"), model, [batch], known)
    expected = lonely(activations(played.exchanges[0].broadcast.model, "1", batch.inputs))
    assert int(expected.sum()) > 10
    assert torch.equal(found_examples(result.values, batch.inputs, tolerance=1e-2), expected)


def test_where_clients_send_weights_the_weights_are_small_and_as_much_is_read() -> None:
    spec = image_spec((1, 6, 6))
    batch, model = image_batch(spec, 20), dense_net(spec, 100)
    one_step = knowing(spec, local=LocalTraining(algorithm="fedavg", lr=0.1))
    sgd, honest = attack_clients(quantile_traps(batch_size=20, read="peel"), model, [batch], knowing(spec))
    avg, crafted = attack_clients(quantile_traps(batch_size=20, read="peel"), model, [batch], one_step)
    large, small = (p.exchanges[0].broadcast.model for p in (honest, crafted))
    assert torch.allclose(large[1].weight, 64 * small[1].weight, rtol=1e-5)
    assert torch.equal(*(activations(m, "1", batch.inputs) for m in (large, small)))
    assert sgd.claimed is not None and avg.claimed is not None
    assert int(sgd.claimed.sum()) > 15
    # Off a grid, nothing in a difference of weights tells an example from the mean of two near copies.
    assert int(avg.claimed.sum()) == 0
    assert bool(found_examples(avg.values, batch.inputs, tolerance=1e-3).sum() > 15)

"""Imprint: the inserted ladder, against batches whose brightness is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from seepage.attacks.traps.imprint import ImprintedModel, imprint
from seepage.attacks.traps.routes import Ladder
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, InputSpec, LocalTraining, Modality
from seepage.models.gradients import LayerGradient

from .helpers import (
    activations,
    attack_clients,
    dense_net,
    found_examples,
    image_batch,
    image_spec,
    knowing,
)


def stepped_batch(spec: InputSpec, count: int) -> Batch:
    """Example k has a mean raw value of (k + 1/2) / count: one in the middle of each of `count` even bins."""
    batch = image_batch(spec, count)
    raw = spec.to_raw(batch.inputs)
    wanted = (torch.arange(count) + 0.5) / count
    spread = 0.9 * torch.minimum(wanted, 1 - wanted)
    noise = raw - raw.flatten(1).mean(dim=1).view(-1, 1, 1, 1)
    scaled = noise / noise.flatten(1).abs().amax(dim=1).view(-1, 1, 1, 1) * spread.view(-1, 1, 1, 1)
    return Batch(spec.to_model(wanted.view(-1, 1, 1, 1) + scaled), batch.labels)


@pytest.mark.parametrize("normalised", [False, True], ids=["raw", "normalised"])
def test_a_batch_that_the_bins_separate_is_recovered_whole(normalised: bool) -> None:
    spec = image_spec((3, 5, 5), normalised=normalised)
    batch = stepped_batch(spec, 16)
    known = knowing(spec, auxiliary=stepped_batch(spec, 160) if normalised else None)
    bins = 160 if normalised else 16
    result, played = attack_clients(imprint(bins=bins, read="rows"), dense_net(spec, 30), [batch], known)
    truth = spec.to_raw(batch.inputs)
    assert bool(found_examples(result.values, truth, tolerance=1e-3).all())
    assert any("architecture was changed" in note for note in result.notes)
    assert isinstance(played.exchanges[0].broadcast.model, ImprintedModel)


def test_rungs_fire_below_the_mean_value_of_an_example() -> None:
    spec = image_spec((3, 4, 4), normalised=True)
    public = image_batch(spec, 200, seed=4)
    crafted = imprint(bins=20, read="rows").craft(dense_net(spec, 30), (), knowing(spec, auxiliary=public))
    assert crafted is not None
    fresh = image_batch(spec, 100, seed=5)
    fired = activations(crafted.model, "inserted_imprint", fresh.inputs)
    means = spec.to_raw(fresh.inputs).flatten(1).mean(dim=1)
    rungs = torch.quantile(spec.to_raw(public.inputs).flatten(1).mean(dim=1), torch.arange(1, 20) / 20)
    clear = (means.unsqueeze(1) - rungs).abs() > 1e-5
    assert torch.equal(fired[:, 1:][clear], (means.unsqueeze(1) > rungs)[clear])
    assert bool(fired[:, 0].all()), "the lowest rung lies below everybody"


def test_two_examples_in_one_bin_are_not_claimed() -> None:
    spec = image_spec((1, 5, 5))
    batch = image_batch(spec, 2)
    raw = batch.inputs
    raw[1] = raw[1] - raw[1].mean() + raw[0].mean()  # equally bright
    batch = Batch(raw, torch.tensor([0, 1]))
    result, _ = attack_clients(imprint(bins=8, read="rows"), dense_net(spec, 30), [batch], knowing(spec))
    assert not found_examples(result.values, batch.inputs).any()
    assert result.claimed is not None and not result.claimed.any()


def test_differences_of_rows_by_hand() -> None:
    gradient = LayerGradient(torch.tensor([[3.0], [2.0], [2.0]]), torch.tensor([6.0, 4.0, 4.0]), 1.0, 1)
    ladder = Ladder().gradient(gradient)
    assert ladder.weight.tolist() == [[1.0], [0.0], [2.0]] and ladder.bias.tolist() == [2.0, 0.0, 4.0]


def test_the_wrapped_model_computes_nearly_the_same() -> None:
    spec = image_spec((1, 6, 6))
    model = dense_net(spec, 30)
    crafted = imprint(bins=50, read="rows").craft(model, (), knowing(spec))
    assert crafted is not None
    inputs = image_batch(spec, 20).inputs
    assert torch.allclose(crafted.model(inputs), model(inputs), atol=0.05)


def test_text_unknown_ranges_and_one_bin_are_refused() -> None:
    text = InputSpec(modality=Modality.TEXT, shape=(6,), num_classes=2, vocabulary=30, value_range=None)
    with pytest.raises(NotApplicable, match="token ids"):
        imprint().check(nn.Embedding(30, 2), knowing(text))
    spec = image_spec()
    with pytest.raises(NotApplicable, match="neither the value range nor auxiliary"):
        imprint().check(dense_net(spec, 5), knowing(spec, deny=["value_range"]))
    with pytest.raises(SpecError, match="at least 2"):
        imprint(bins=1)


def test_where_clients_send_weights_the_layer_is_small_and_the_model_computes_the_same() -> None:
    spec = image_spec((3, 5, 5))
    batch, model = stepped_batch(spec, 16), dense_net(spec, 30)
    one_step = knowing(spec, local=LocalTraining(algorithm="fedavg", lr=0.1))
    usual, small = (
        imprint(bins=16, read="rows").craft(model, (), known) for known in (knowing(spec), one_step)
    )
    assert usual is not None and small is not None
    ratio = usual.model.inserted_imprint.bias / small.model.inserted_imprint.bias
    assert torch.allclose(ratio, torch.full_like(ratio, 64.0))
    assert torch.allclose(usual.model(batch.inputs), small.model(batch.inputs), atol=1e-5)
    result, _ = attack_clients(imprint(bins=16, read="rows"), model, [batch], one_step)
    assert bool(found_examples(result.values, batch.inputs, tolerance=2e-2).all())


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_peeling_tells_examples_apart_that_share_a_rung(algorithm: str) -> None:
    spec = image_spec((1, 6, 6))
    batch = image_batch(spec, 12)
    raw = batch.inputs - batch.inputs.flatten(1).mean(1).view(-1, 1, 1, 1) + 0.5  # all equally bright
    batch = Batch((raw * 255).round().clamp(0, 255) / 255, batch.labels)
    known = replace(knowing(spec), local=LocalTraining(algorithm=algorithm, lr=0.1))
    model = dense_net(spec, 30)
    found = {}
    for read in ("rows", "peel"):
        result, _ = attack_clients(imprint(bins=150, read=read), model, [batch], known)
        assert result.claimed is not None
        found[read] = int(found_examples(result.values, batch.inputs, tolerance=1e-3).sum())
        right = torch.cdist(result.values.flatten(1), batch.inputs.flatten(1), p=torch.inf) <= 1e-3
        assert bool(right.any(1)[result.claimed].all()), "nothing false is claimed"
    assert found["peel"] >= 10 and found["rows"] <= 6, found

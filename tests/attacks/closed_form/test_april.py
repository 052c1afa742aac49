"""APRIL end to end: what it recovers, where it fails, what it claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks.base import check_update
from seepage.attacks.closed_form.april import SURE
from seepage.core.errors import NotApplicable
from seepage.core.types import (
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Update,
    UpdateKind,
)
from seepage.data import load_data
from seepage.protocol import trainable

from .setting import GREY, april, attack, plain_vit, psnr, random_batch, seen


@pytest.mark.parametrize("seed", range(4))
def test_a_random_picture_comes_back_exactly(seed: int) -> None:
    data = random_batch(seed=seed)
    found = attack(seen(plain_vit(seed=seed), data))
    assert found.values.shape == (1, *GREY.shape)
    assert psnr(found.values, data.inputs) > 150
    assert found.claimed is not None and found.claimed.tolist() == [True]
    assert "relative residual" in found.notes[0] and "condition number" in found.notes[0]


@pytest.mark.parametrize(
    ("dtype", "patch_size", "dim", "least", "claimed"),
    [
        (torch.float64, 8, 256, 150, True),
        (torch.float64, 4, 64, 90, True),  # 64 patches, 64 dimensions: condition number 1e11
        (torch.float32, 8, 256, 50, False),
        (torch.float32, 4, 64, 20, False),
    ],
)
def test_a_photo_comes_back(
    dtype: torch.dtype, patch_size: int, dim: int, least: float, claimed: bool
) -> None:
    photos = load_data("photos")
    data = photos.batch(torch.tensor([0]))
    model = plain_vit(photos.spec, patch_size=patch_size, dim=dim, dtype=dtype)
    found = attack(seen(model, data), photos.spec)
    assert psnr(found.values, photos.inputs[:1]) > least
    assert found.claimed is not None and found.claimed.tolist() == [claimed]
    if claimed:
        assert float((found.values - photos.inputs[:1]).abs().max()) < 1e-3
    assert found.values.dtype == dtype


def test_in_float32_plain_least_squares_drowns_where_the_estimate_does_not() -> None:
    """The same equations solved without regard to rounding, as in the paper."""
    photos = load_data("photos")
    data = photos.batch(torch.tensor([0]))
    model = plain_vit(photos.spec, patch_size=4, dim=64, dtype=torch.float32)
    exchange = seen(model, data)
    gradient = {name: t.double() for name, t in exchange.update.tensors.items()}
    layers = [f"blocks.0.attention.{name}.weight" for name in ("query", "key", "value")]
    right = sum(model.get_parameter(name).detach().double().T @ gradient[name] for name in layers)
    tokens = torch.linalg.lstsq(gradient["position"][0].T, right, driver="gelsd").solution[1:]
    embedding = model.get_submodule("patch_embedding").double()
    tokens = tokens - model.get_parameter("position")[0, 1:].double() - embedding.get_parameter("bias")
    kernel = embedding.get_parameter("weight").flatten(1)
    patches = tokens.detach() @ torch.linalg.pinv(kernel.detach()).T
    plain = nn.functional.fold(patches.T.unsqueeze(0), (32, 32), 4, stride=4).clamp(0, 1)
    found = attack(exchange, photos.spec)
    assert psnr(plain, photos.inputs[:1]) < 12
    assert psnr(found.values, photos.inputs[:1]) > 20


@pytest.mark.parametrize("n", [2, 8])
def test_several_examples_give_a_blur_that_is_not_claimed(n: int) -> None:
    photos = load_data("photos")
    data = photos.batch(torch.arange(n))
    model = plain_vit(photos.spec, patch_size=8, dim=256)
    found = attack(seen(model, data), photos.spec)
    assert len(found) == 1
    best = max(psnr(found.values[0], truth) for truth in photos.inputs[:n])
    flat = max(psnr(torch.full_like(truth, 0.5), truth) for truth in photos.inputs[:n])
    assert best < flat + 3  # alone, the same picture comes back at 200 dB
    assert found.claimed is not None and not found.claimed.any()
    assert f"made from {n} examples" in found.notes[-1]


def test_the_truth_decides_no_claim_but_the_residual_does() -> None:
    """Two examples that call themselves one, noise on the update, and a count that is not sent."""
    model, data = plain_vit(), random_batch(2)
    two, one = seen(model, data), seen(model, data.select(slice(0, 1)))
    noisy = {name: t + 1e-6 * t.norm() * torch.randn_like(t) for name, t in one.update.tensors.items()}
    for exchange, reason in [
        (replace(two, update=replace(two.update, num_examples=1)), "no plain gradient of one example"),
        (replace(one, update=replace(one.update, tensors=noisy)), "no plain gradient of one example"),
        (replace(one, update=replace(one.update, num_examples=None)), "is not known"),
        (replace(one, clients=(0, 1)), "patches mix"),
    ]:
        found = attack(exchange)
        assert found.claimed is not None and not found.claimed.any()
        assert reason in found.notes[-1]
    assert attack(one).claimed == torch.tensor([True])


def test_the_loss_does_not_matter() -> None:
    """What fishing isolates: the gradient of some direction of the features, here with a factor."""
    model, data = plain_vit(), random_batch()
    direction = torch.randn(GREY.num_classes, dtype=torch.float64)
    value = -17.0 * (model(data.inputs)[0].tanh() @ direction)
    parameters = trainable(model)
    grads = torch.autograd.grad(value, list(parameters.values()))
    update = Update(
        kind=UpdateKind.GRADIENT, tensors=dict(zip(parameters, grads, strict=True)), num_examples=1
    )
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(3,))
    check_update(exchange)
    assert psnr(attack(exchange).values, data.inputs) > 150


def test_a_delta_of_one_step_is_a_gradient_and_of_two_is_none() -> None:
    model, data = plain_vit(), random_batch()
    once = LocalTraining(algorithm="fedavg", lr=0.05, weight_decay=0.3)
    assert psnr(attack(seen(model, data, once), local=once).values, data.inputs) > 100
    twice = replace(once, epochs=2)
    with pytest.raises(NotApplicable, match="2 local steps"):
        attack(seen(model, data, twice), local=twice)


def test_normalised_inputs_come_back_in_raw_units() -> None:
    spec = InputSpec(modality=Modality.IMAGE, shape=(2, 8, 8), num_classes=3, mean=(0.2, 0.6), std=(0.1, 0.4))
    raw = random_batch(spec=spec)
    model = plain_vit(spec, dim=48)
    exchange = seen(model, replace(raw, inputs=spec.to_model(raw.inputs)))
    assert psnr(attack(exchange, spec).values, raw.inputs) > 100
    told_nothing = replace(spec, mean=None, std=None, value_range=None)
    found = april().run([exchange], Knowledge(input=told_nothing, normalised=True))
    assert found.model_units
    assert psnr(spec.to_raw(found.values), raw.inputs) > 100


def test_an_embedding_that_is_too_narrow_loses_a_known_part() -> None:
    """16 values into 8 dimensions: the candidate has the right embedding, but not the right pixels."""
    spec = replace(GREY, value_range=None)
    model, data = plain_vit(spec, dim=8), random_batch(spec=spec)
    found = attack(seen(model, data), spec)
    embed = model.get_submodule("patch_embedding")
    torch.testing.assert_close(embed(found.values), embed(data.inputs), rtol=1e-6, atol=1e-8)
    assert psnr(found.values, data.inputs) < 20
    assert found.claimed is not None and not found.claimed.any()
    assert any("16 values but its embedding only 8" in note for note in found.notes)


def test_more_patches_than_dimensions_are_said_to_be_too_many() -> None:
    model, data = plain_vit(patch_size=2, dim=16), random_batch()  # 24 patches
    found = attack(seen(model, data))
    assert found.claimed is not None and not found.claimed.any()
    assert any("24 patches stand against 16 equations" in note for note in found.notes)
    assert found.confidence is not None and float(found.confidence) < 2 * SURE


def test_each_update_gives_its_own_candidate() -> None:
    model = plain_vit()
    batches = [random_batch(seed=s) for s in (1, 2)]
    found = april().run([seen(model, b) for b in batches], Knowledge(input=GREY))
    truth: Tensor = torch.cat([b.inputs for b in batches])
    assert psnr(found.values, truth) > 150
    assert found.source is not None and found.source.tolist() == [0, 1]

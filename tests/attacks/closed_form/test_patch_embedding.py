"""The patch embedding's own equations: any vision transformer with trained positions, one picture."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.closed_form.patch_embedding import patch_embedding
from seepage.core.errors import NotApplicable
from seepage.core.types import (
    Batch,
    Exchange,
    Grant,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.data import load_data
from seepage.models.patch_positions import trace_embedding
from seepage.protocol import THREATS, client, play

from .setting import GREY, plain_vit, psnr, random_batch, seen


def published_vit(spec: InputSpec = GREY, **options: object) -> nn.Module:
    """With layer norm and residual connections in every block, which APRIL cannot invert."""
    return plain_vit(spec, norm=True, residual=True, **options)  # type: ignore[arg-type]


def solve(exchange: Exchange, spec: InputSpec = GREY, local: LocalTraining | None = None) -> Reconstruction:
    return patch_embedding().run([exchange], Knowledge(input=spec, local=local))


@pytest.mark.parametrize("seed", range(3))
def test_a_published_block_gives_the_picture_exactly(seed: int) -> None:
    data, model = random_batch(seed=seed), published_vit(seed=seed)
    found = solve(seen(model, data))
    assert psnr(found.values, data.inputs) > 150
    assert found.claimed == torch.tensor([True])
    with pytest.raises(NotApplicable):
        ATTACKS["april"]().check(model, Knowledge(input=GREY))


def test_it_is_plain_least_squares_where_rounding_does_not_matter() -> None:
    """By hand, from the names that the model gives its parameters."""
    data, model = random_batch(), published_vit()
    gradient = seen(model, data).update.tensors
    at_patches = gradient["position"][0, 1:]  # (6, dim); the class token comes first
    right = gradient["patch_embedding.weight"].flatten(1)
    patches = torch.linalg.lstsq(at_patches.T, right).solution
    picture = nn.functional.fold(patches.T.unsqueeze(0), (8, 12), 4, stride=4)
    torch.testing.assert_close(solve(seen(model, data)).values, picture, rtol=1e-6, atol=1e-8)


def test_a_photo_comes_back_in_single_precision() -> None:
    photos = load_data("photos")
    model = published_vit(photos.spec, patch_size=8, dim=64, dtype=torch.float32)
    found = solve(seen(model, photos.batch(torch.tensor([0]))), photos.spec)
    assert psnr(found.values, photos.inputs[:1]) > 80
    assert found.values.dtype == torch.float32
    assert found.claimed == torch.tensor([True])


def test_the_residual_decides_the_claim() -> None:
    """Two examples that call themselves one, or do not say how many, and noise on the update."""
    model, data = published_vit(), random_batch(2)
    two, one = seen(model, data), seen(model, data.select(slice(0, 1)))
    noisy = {name: t + 1e-6 * t.norm() * torch.randn_like(t) for name, t in one.update.tensors.items()}
    for update in (
        replace(two.update, num_examples=1),
        replace(two.update, num_examples=None),
        replace(one.update, tensors=noisy),
    ):
        found = solve(replace(one, update=update))
        assert found.claimed == torch.tensor([False])
        assert "no plain gradient of one example" in found.notes[-1]


def test_as_many_patches_as_dimensions_leave_nothing_to_check_by() -> None:
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 16, 16), num_classes=3)
    found = solve(seen(published_vit(spec, patch_size=4, dim=16), random_batch(spec=spec)), spec)
    assert found.claimed == torch.tensor([False]) and "no more equations" in found.notes[-1]


def test_a_delta_of_one_step_is_a_gradient_and_of_two_is_none() -> None:
    model, data = published_vit(), random_batch()
    once = LocalTraining(algorithm="fedavg", lr=0.05, weight_decay=0.3)
    assert psnr(solve(seen(model, data, once), local=once).values, data.inputs) > 100
    twice = replace(once, epochs=2)
    with pytest.raises(NotApplicable, match="2 local steps"):
        solve(seen(model, data, twice), local=twice)


def test_normalised_inputs_come_back_in_raw_units() -> None:
    spec = InputSpec(modality=Modality.IMAGE, shape=(2, 8, 8), num_classes=3, mean=(0.2, 0.6), std=(0.1, 0.4))
    raw = random_batch(spec=spec)
    exchange = seen(published_vit(spec), replace(raw, inputs=spec.to_model(raw.inputs)))
    assert psnr(solve(exchange, spec).values, raw.inputs) > 100
    told_nothing = Knowledge(input=replace(spec, mean=None, std=None, value_range=None), normalised=True)
    found = patch_embedding().run([exchange], told_nothing)
    assert found.model_units and psnr(spec.to_raw(found.values), raw.inputs) > 100


class Tokens(nn.Module):
    """Patches, something done to them, positions of some kind, one layer norm, the mean, a linear layer."""

    def __init__(self, position: str, between: nn.Module | None = None) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, 16, 4, 4)
        self.between = between or nn.Identity()
        shape = {"flat": (6, 16), "longer": (9, 16)}.get(position, (1, 6, 16))
        self.position = nn.Parameter(torch.randn(shape), requires_grad=position != "fixed")
        self.kind = position
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.between(self.cut(x).flatten(2).transpose(1, 2))
        if self.kind != "absent":
            z = z + (self.position[3:] if self.kind == "longer" else self.position)
        return self.head(self.norm(z).square().mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "first"), [("usual", 0), ("flat", 0), ("longer", 3)])
def test_rows_are_found_wherever_they_lie(kind: str, first: int) -> None:
    torch.manual_seed(0)
    model, data = Tokens(kind).double(), random_batch()
    assert trace_embedding(model, GREY).first == first
    assert psnr(solve(seen(model, data)).values, data.inputs) > 120


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Tokens("fixed"), "fixed or relative positions"),
        (Tokens("absent"), "fixed or relative positions"),
        (Tokens("usual", nn.LayerNorm(16)), "a layer in between"),
        (nn.Sequential(nn.Flatten(), nn.Linear(96, 4)), "no vision transformer"),
        (nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(384, 4)), "no vision"),
    ],
)
def test_it_says_why_not(model: nn.Module, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        patch_embedding().check(model, Knowledge(input=GREY))


def test_too_many_patches_frozen_weights_and_other_data_are_refused() -> None:
    with pytest.raises(NotApplicable, match="24 patches, but each of their values stands in 16 equations"):
        trace_embedding(published_vit(patch_size=2, dim=16), GREY)
    frozen = published_vit()
    frozen.get_parameter("patch_embedding.weight").requires_grad_(False)
    with pytest.raises(NotApplicable, match="frozen"):
        trace_embedding(frozen, GREY)
    with pytest.raises(NotApplicable, match="no pictures"):
        trace_embedding(nn.Linear(3, 2), InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2))
    certain = seen(published_vit(), random_batch())
    still = {name: torch.zeros_like(t) for name, t in certain.update.tensors.items()}
    with pytest.raises(NotApplicable, match="zero at every patch"):
        solve(replace(certain, update=replace(certain.update, tensors=still)))


def test_several_examples_are_refused_and_fished_for() -> None:
    """Three of one class: refused as they are, and all three exact behind binary fishing."""
    model, data = published_vit(), random_batch(3)
    batch = Batch(data.inputs, torch.ones(3, dtype=torch.long))
    with pytest.raises(NotApplicable, match="fish for one first"):
        solve(seen(model, batch))
    attack = ATTACKS["binary_fishing"](inner="patch_embedding", beta=1e10)
    assert Grant.CRAFT_WEIGHTS in attack.requires
    known = Knowledge(input=GREY, local=LocalTraining())
    attack.check(model, known)
    played = play(
        lambda current, history: attack.craft(current, history, known),
        model,
        lambda _round: [batch],
        step=client(LocalTraining()),
        threat=THREATS["malicious_server"],
        max_rounds=20,
    )
    found = attack.run(played.exchanges, known)
    assert found.claimed is not None and found.claimed.tolist() == [True] * 3
    order = torch.cdist(batch.inputs.flatten(1), found.values.flatten(1)).argmin(dim=1)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert psnr(found.values[order], batch.inputs) > 60
